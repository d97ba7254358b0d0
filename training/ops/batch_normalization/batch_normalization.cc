#include "training/ops/batch_normalization/batch_normalization.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferBatchNormalization(absl::Span<const ValueType> x,
                                                  Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape& shape = x[0].shape;
  if (shape.size() != 1 && shape.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", ShapeToString(shape), ", want [C, H, W] or [C]"));
  }
  const BatchNormalization op = BatchNormalization::Read(attributes);
  constexpr double kSmallest = std::numeric_limits<float>::min();
  constexpr double kLargest = std::numeric_limits<float>::max();
  if (!(op.epsilon >= kSmallest && op.epsilon <= kLargest)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute epsilon: ", op.epsilon, ", want ", kSmallest, " to ", kLargest));
  }
  if (!(op.momentum >= 0 && op.momentum <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute momentum: ", op.momentum, ", want 0 to 1"));
  }
  Inference inferred;
  inferred.output = x[0];
  const Shape channels = {shape[0]};
  inferred.parameters = {
      {.suffix = "weight", .shape = channels, .init = ParameterInit::kOnes, .bias_like = true},
      {.suffix = "bias", .shape = channels, .init = ParameterInit::kZeros, .bias_like = true},
      {.suffix = "running_mean",
       .shape = channels,
       .init = ParameterInit::kZeros,
       .statistic = true,
       .momentum = op.momentum},
      {.suffix = "running_var",
       .shape = channels,
       .init = ParameterInit::kOnes,
       .statistic = true,
       .momentum = op.momentum}};
  inferred.saved = {{channels, /*per_sample=*/false}, {channels, /*per_sample=*/false}};
  return inferred;
}

}  // namespace

const OpDef& BatchNormalizationOp() {
  static const OpDef& op = *new OpDef{
      .name = BatchNormalization::kName,
      .attributes = {{"epsilon", BatchNormalization().epsilon},
                     {"momentum", BatchNormalization().momentum}},
      .infer = InferBatchNormalization,
      .reads = {.x = true},
      .in_place = InPlace::kOutput,
      .couples_samples = true,
      .reference = {BatchNormalizationForward<float>, BatchNormalizationBackward<float>},
      .reference_double = {BatchNormalizationForward<double>, BatchNormalizationBackward<double>}};
  return op;
}

}  // namespace capstan::training
