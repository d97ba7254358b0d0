#include "training/ops/conv/conv.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

struct ConvSizes {
  explicit ConvSizes(const OpInstance& op)
      : conv(Conv::Read(op.attributes)),
        channels(op.x[0].shape[0]),
        height(op.x[0].shape[1]),
        width(op.x[0].shape[2]),
        outputs(op.inferred.output.shape[0]),
        rows(op.inferred.output.shape[1]),
        columns(op.inferred.output.shape[2]),
        taps(conv.window.kernel_shape[0] * conv.window.kernel_shape[1]) {}

  // Calls visit(k, p, q, y) for every output of a sample. y is the output's index.
  template <typename Visit>
  void ForOutputs(Visit visit) const {
    int64_t y = 0;
    for (int64_t k = 0; k < outputs; ++k) {
      for (int64_t p = 0; p < rows; ++p) {
        for (int64_t q = 0; q < columns; ++q) visit(k, p, q, y++);
      }
    }
  }
  // Calls visit(x, w) for the indices of each input and weight that contribute to output (k, p, q).
  template <typename Visit>
  void ForProducts(int64_t k, int64_t p, int64_t q, Visit visit) const {
    const int64_t in_group = channels / conv.group;
    const int64_t first = k / (outputs / conv.group) * in_group;
    for (int64_t c = 0; c < in_group; ++c) {
      ForWindow(conv.window, height, width, p, q, [&](int64_t h, int64_t w, int64_t tap) {
        visit(((first + c) * height + h) * width + w, (k * in_group + c) * taps + tap);
      });
    }
  }
  int64_t x_size() const { return channels * height * width; }
  int64_t y_size() const { return outputs * rows * columns; }

  const Conv conv;
  const int64_t channels, height, width, outputs, rows, columns, taps;
};

}  // namespace

template <typename T>
void ConvForward(const ForwardCall<T>& call) {
  const ConvSizes sizes(call.op);
  const T* const weight = call.parameters[0];
  for (int64_t n = 0; n < call.samples.count; ++n) {
    const T* const x = call.x[0] + n * sizes.x_size();
    T* const y = call.y + n * sizes.y_size();
    sizes.ForOutputs([&](int64_t k, int64_t p, int64_t q, int64_t at) {
      double sum = sizes.conv.bias ? static_cast<double>(call.parameters[1][k]) : 0;
      sizes.ForProducts(k, p, q, [&](int64_t from, int64_t by) {
        sum += static_cast<double>(x[from]) * static_cast<double>(weight[by]);
      });
      y[at] = static_cast<T>(sum);
    });
  }
}

template <typename T>
void ConvBackward(const BackwardCall<T>& call) {
  const ConvSizes sizes(call.op);
  const T* const weight = call.parameters[0];
  SumOver<T> dx(call.dx[0], call.samples.count * sizes.x_size());
  SumOver<T> dw(call.dparameters[0], Elements(call.op.inferred.parameters[0].shape));
  SumOver<T> db(sizes.conv.bias ? call.dparameters[1] : nullptr, sizes.outputs);
  for (int64_t n = 0; n < call.samples.count; ++n) {
    const int64_t first = n * sizes.x_size();
    const T* const dy = call.dy + n * sizes.y_size();
    sizes.ForOutputs([&](int64_t k, int64_t p, int64_t q, int64_t at) {
      const double d = dy[at];
      db.Add(k, d);
      sizes.ForProducts(k, p, q, [&](int64_t from, int64_t by) {
        dw.Add(by, d * static_cast<double>(call.x[0][first + from]));
        dx.Add(first + from, d * static_cast<double>(weight[by]));
      });
    });
  }
}

template void ConvForward(const ForwardCall<float>&);
template void ConvForward(const ForwardCall<double>&);
template void ConvBackward(const BackwardCall<float>&);
template void ConvBackward(const BackwardCall<double>&);

}  // namespace capstan::training
