#include "training/ops/constant/constant.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferConstant(absl::Span<const ValueType>, Attributes& attributes) {
  constexpr double kMost = std::numeric_limits<float>::max();
  const absl::Status value = CheckNumber(attributes, "value", -kMost, kMost);
  if (!value.ok()) return value;
  const Shape shape = ConstantNode::Read(attributes).shape;
  const absl::StatusOr<int64_t> elements = ElementCount(shape, "attribute shape");
  if (!elements.ok()) return elements.status();
  if (shape.empty()) {
    return absl::InvalidArgumentError("attribute shape: [], want at least one dimension");
  }
  Inference inferred;
  inferred.output.shape = shape;
  return inferred;
}

template <typename T>
void ConstantForward(const ForwardCall<T>& call) {
  std::fill_n(call.y, call.samples.count * Elements(call.op.inferred.output.shape),
              static_cast<T>(ConstantNode::Read(call.op.attributes).value));
}

// There is nothing that a gradient could belong to.
template <typename T>
void ConstantBackward(const BackwardCall<T>&) {}

}  // namespace

const OpDef& ConstantOp() {
  static const OpDef& op =
      *new OpDef{.name = ConstantNode::kName,
                 .attributes = {{"shape", ConstantNode().shape},
                                {"value", ConstantNode().value, /*required=*/true}},
                 .min_inputs = 0,
                 .max_inputs = 0,
                 .infer = InferConstant,
                 .reference = {ConstantForward<float>, ConstantBackward<float>},
                 .reference_double = {ConstantForward<double>, ConstantBackward<double>}};
  return op;
}

}  // namespace capstan::training
