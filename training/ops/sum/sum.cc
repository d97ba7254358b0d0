#include "training/ops/sum/sum.h"

#include "training/ops/infer.h"

namespace capstan::training {
namespace {

template <typename T>
void SumForward(const ForwardCall<T>& call) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (int64_t i = 0; i < size; ++i) {
    double sum = 0;
    for (const T* const x : call.x) sum += static_cast<double>(x[i]);
    call.y[i] = static_cast<T>(sum);
  }
}

template <typename T>
void SumBackward(const BackwardCall<T>& call) {
  const int64_t size = call.samples.count * Elements(call.op.x[0].shape);
  for (T* const dx : call.dx) {
    for (int64_t i = 0; dx != nullptr && i < size; ++i) dx[i] += call.dy[i];
  }
}

}  // namespace

const OpDef& SumOp() {
  static const OpDef& op =
      *new OpDef{.name = Sum::kName,
                 .max_inputs = kManyInputs,
                 .infer = InferSameShape,
                 .in_place = InPlace::kOutput,
                 .reference = {SumForward<float>, SumBackward<float>},
                 .reference_double = {SumForward<double>, SumBackward<double>}};
  return op;
}

}  // namespace capstan::training
