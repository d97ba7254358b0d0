#include "training/ops/gemm/gemm.h"
#include "training/ops/reference.h"

namespace capstan::training {

template <typename T>
void GemmForward(const ForwardCall<T>& call) {
  const int64_t inputs = call.op.x[0].shape[0];
  const int64_t outputs = call.op.inferred.output.shape[0];
  const bool bias = call.parameters.size() > 1;
  for (int64_t n = 0; n < call.samples.count; ++n) {
    for (int64_t o = 0; o < outputs; ++o) {
      double sum = bias ? static_cast<double>(call.parameters[1][o]) : 0;
      for (int64_t i = 0; i < inputs; ++i) {
        sum += static_cast<double>(call.parameters[0][o * inputs + i]) *
               static_cast<double>(call.x[0][n * inputs + i]);
      }
      call.y[n * outputs + o] = static_cast<T>(sum);
    }
  }
}

template <typename T>
void GemmBackward(const BackwardCall<T>& call) {
  const int64_t inputs = call.op.x[0].shape[0];
  const int64_t outputs = call.op.inferred.output.shape[0];
  const bool bias = call.dparameters.size() > 1;
  SumOver<T> dx(call.dx[0], call.samples.count * inputs);
  SumOver<T> dw(call.dparameters[0], outputs * inputs);
  SumOver<T> db(bias ? call.dparameters[1] : nullptr, outputs);
  for (int64_t n = 0; n < call.samples.count; ++n) {
    for (int64_t o = 0; o < outputs; ++o) {
      const double d = call.dy[n * outputs + o];
      db.Add(o, d);
      for (int64_t i = 0; i < inputs; ++i) {
        dw.Add(o * inputs + i, d * static_cast<double>(call.x[0][n * inputs + i]));
        dx.Add(n * inputs + i, d * static_cast<double>(call.parameters[0][o * inputs + i]));
      }
    }
  }
}

template void GemmForward(const ForwardCall<float>&);
template void GemmForward(const ForwardCall<double>&);
template void GemmBackward(const BackwardCall<float>&);
template void GemmBackward(const BackwardCall<double>&);

}  // namespace capstan::training
