#include "training/ops/constant_of_shape/constant_of_shape.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferConstant(absl::Span<const ValueType>, Attributes& attributes) {
  const ConstantOfShape op = ConstantOfShape::Read(attributes);
  if (op.shape.empty()) {
    return absl::InvalidArgumentError("attribute shape: [], want at least one dimension");
  }
  absl::Status status = ElementCount(op.shape, "attribute shape").status();
  constexpr double kMost = std::numeric_limits<float>::max();
  if (status.ok()) status = CheckNumber(attributes, "value", -kMost, kMost);
  if (!status.ok()) return status;
  Inference inferred;
  inferred.output.shape = op.shape;
  return inferred;
}

template <typename T>
void ConstantForward(const ForwardCall<T>& call) {
  const auto value = static_cast<float>(call.op.attributes.Float("value"));
  std::fill_n(call.y, call.samples.count * Elements(call.op.inferred.output.shape),
              static_cast<T>(value));
}

template <typename T>
void ConstantBackward(const BackwardCall<T>&) {}

}  // namespace

const OpDef& ConstantOfShapeOp() {
  static const OpDef& op =
      *new OpDef{.name = ConstantOfShape::kName,
                 .attributes = {{"shape", ConstantOfShape().shape, /*required=*/true},
                                {"value", ConstantOfShape().value}},
                 .min_inputs = 0,
                 .max_inputs = 0,
                 .infer = InferConstant,
                 .reference = {ConstantForward<float>, ConstantBackward<float>},
                 .reference_double = {ConstantForward<double>, ConstantBackward<double>}};
  return op;
}

}  // namespace capstan::training
