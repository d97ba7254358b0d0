#include "training/ops/mean_squared_error/mean_squared_error.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferSquaredError(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape& shape = x[0].shape;
  constexpr int64_t kMost = int64_t{1} << 24;
  if (shape.size() != 1 || shape[0] > kMost) {
    return absl::InvalidArgumentError(absl::StrCat(
        "input ", ShapeToString(shape), ", want [outputs], at most ", kMost, " of them"));
  }
  Inference inferred;
  inferred.output.shape = {1};
  return inferred;
}

template <typename T>
double ErrorAt(const SampleInfo& samples, const T* x, int64_t i) {
  return static_cast<double>(x[i]) - static_cast<double>(samples.targets[i]);
}

template <typename T>
void SquaredErrorForward(const ForwardCall<T>& call) {
  const int64_t outputs = call.op.x[0].shape[0];
  for (int64_t n = 0; n < call.samples.count; ++n) {
    double sum = 0;
    for (int64_t k = 0; k < outputs; ++k) {
      const double error = ErrorAt(call.samples, call.x[0], n * outputs + k);
      sum += error * error;
    }
    call.y[n] = static_cast<T>(sum / static_cast<double>(outputs));
  }
}

template <typename T>
void SquaredErrorBackward(const BackwardCall<T>& call) {
  if (call.dx[0] == nullptr) return;
  const int64_t outputs = call.op.x[0].shape[0];
  for (int64_t n = 0; n < call.samples.count; ++n) {
    const double scale = static_cast<double>(call.dy[n]) * 2 / static_cast<double>(outputs);
    for (int64_t k = 0; k < outputs; ++k) {
      const int64_t i = n * outputs + k;
      call.dx[0][i] = static_cast<T>(static_cast<double>(call.dx[0][i]) +
                                     ErrorAt(call.samples, call.x[0], i) * scale);
    }
  }
}

}  // namespace

const OpDef& MeanSquaredErrorLossOp() {
  static const OpDef& op =
      *new OpDef{.name = MeanSquaredErrorLoss::kName,
                 .infer = InferSquaredError,
                 .reads = {.x = true},
                 .loss = true,
                 .numeric_targets = true,
                 .reference = {SquaredErrorForward<float>, SquaredErrorBackward<float>},
                 .reference_double = {SquaredErrorForward<double>, SquaredErrorBackward<double>}};
  return op;
}

}  // namespace capstan::training
