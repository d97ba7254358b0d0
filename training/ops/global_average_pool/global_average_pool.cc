#include "training/ops/global_average_pool/global_average_pool.h"

#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferGlobalAverage(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status image = CheckImage(x[0]);
  if (!image.ok()) return image;
  Inference inferred;
  inferred.output.shape = {x[0].shape[0], 1, 1};
  return inferred;
}

template <typename T>
void GlobalAverageForward(const ForwardCall<T>& call) {
  const Shape& x = call.op.x[0].shape;
  const int64_t pixels = x[1] * x[2];
  for (int64_t channel = 0; channel < call.samples.count * x[0]; ++channel) {
    double sum = 0;
    for (int64_t i = 0; i < pixels; ++i) sum += call.x[0][channel * pixels + i];
    call.y[channel] = static_cast<T>(sum / static_cast<double>(pixels));
  }
}

template <typename T>
void GlobalAverageBackward(const BackwardCall<T>& call) {
  const Shape& x = call.op.x[0].shape;
  const int64_t pixels = x[1] * x[2];
  for (int64_t channel = 0; channel < call.samples.count * x[0]; ++channel) {
    const double d = call.dy[channel] / static_cast<double>(pixels);
    for (int64_t i = 0; i < pixels; ++i) {
      T& dx = call.dx[0][channel * pixels + i];
      dx = static_cast<T>(static_cast<double>(dx) + d);
    }
  }
}

}  // namespace

const OpDef& GlobalAveragePoolOp() {
  static const OpDef& op =
      *new OpDef{.name = GlobalAveragePool::kName,
                 .infer = InferGlobalAverage,
                 .reference = {GlobalAverageForward<float>, GlobalAverageBackward<float>},
                 .reference_double = {GlobalAverageForward<double>, GlobalAverageBackward<double>}};
  return op;
}

}  // namespace capstan::training
