#include "training/ops/global_max_pool/global_max_pool.h"

#include <cmath>

#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferGlobalMax(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status image = CheckImage(x[0]);
  if (!image.ok()) return image;
  Inference inferred;
  inferred.output.shape = {x[0].shape[0], 1, 1};
  return inferred;
}

// Calls visit(channel, place of its first largest number or of its first NaN) over a batch.
template <typename T, typename Visit>
void ForMaxima(const OpInstance& op, int64_t count, const T* x, Visit visit) {
  const Shape& shape = op.x[0].shape;
  const int64_t pixels = shape[1] * shape[2];
  for (int64_t channel = 0; channel < count * shape[0]; ++channel) {
    int64_t largest = channel * pixels;
    for (int64_t at = largest; at < (channel + 1) * pixels; ++at) {
      if (x[at] > x[largest] || (std::isnan(x[at]) && !std::isnan(x[largest]))) largest = at;
    }
    visit(channel, largest);
  }
}

template <typename T>
void GlobalMaxForward(const ForwardCall<T>& call) {
  ForMaxima(call.op, call.samples.count, call.x[0],
            [&](int64_t channel, int64_t at) { call.y[channel] = call.x[0][at]; });
}

template <typename T>
void GlobalMaxBackward(const BackwardCall<T>& call) {
  ForMaxima(call.op, call.samples.count, call.x[0],
            [&](int64_t channel, int64_t at) { call.dx[0][at] += call.dy[channel]; });
}

}  // namespace

const OpDef& GlobalMaxPoolOp() {
  static const OpDef& op =
      *new OpDef{.name = GlobalMaxPool::kName,
                 .infer = InferGlobalMax,
                 .reads = {.x = true},
                 .reference = {GlobalMaxForward<float>, GlobalMaxBackward<float>},
                 .reference_double = {GlobalMaxForward<double>, GlobalMaxBackward<double>}};
  return op;
}

}  // namespace capstan::training
