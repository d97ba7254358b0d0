#include "training/ops/pool/pool.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferPool(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status image = CheckImage(x[0]);
  if (!image.ok()) return image;
  const auto size = InferWindow(x[0].shape, attributes);
  if (!size.ok()) return size.status();
  const Window window = ReadWindow(attributes);
  for (int side = 0; side < 4; ++side) {
    // A window that lies only in the padding would have no maximum and no mean.
    if (window.pads[side] >= window.kernel_shape[side % 2]) {
      return absl::InvalidArgumentError(absl::StrCat("padding ", window.pads[side],
                                                     ", want less than the kernel ",
                                                     window.kernel_shape[side % 2]));
    }
  }
  for (int axis = 0; axis < 2; ++axis) {
    // As above: with a wider dilation a window could skip the whole input.
    if (window.kernel_shape[axis] > 1 && window.dilations[axis] > x[0].shape[axis + 1]) {
      return absl::InvalidArgumentError(
          absl::StrCat("dilation ", window.dilations[axis], ", want at most the ",
                       axis == 0 ? "height " : "width ", x[0].shape[axis + 1]));
    }
  }
  Inference inferred;
  inferred.output.shape = {x[0].shape[0], (*size)[0], (*size)[1]};
  return inferred;
}

absl::StatusOr<Inference> InferAveragePool(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status flag = CheckFlag(attributes, "count_include_pad");
  if (!flag.ok()) return flag;
  return InferPool(x, attributes);
}

std::vector<AttributeDef> AverageSchema() {
  std::vector<AttributeDef> schema = WindowSchema();
  schema.push_back({"count_include_pad", int64_t{0}});
  return schema;
}

}  // namespace

MaxPool::operator Operator() const {
  Operator op{kName, {}};
  SetWindow(window, op.attributes);
  return op;
}

AveragePool::operator Operator() const {
  Operator op{kName, {}};
  SetWindow(window, op.attributes);
  op.attributes.Set("count_include_pad", int64_t{count_include_pad});
  return op;
}

const OpDef& MaxPoolOp() {
  static const OpDef& op =
      *new OpDef{.name = MaxPool::kName,
                 .attributes = WindowSchema(),
                 .infer = InferPool,
                 .reads = {.x = true},
                 .reference = {MaxPoolForward<float>, MaxPoolBackward<float>},
                 .reference_double = {MaxPoolForward<double>, MaxPoolBackward<double>}};
  return op;
}

const OpDef& AveragePoolOp() {
  static const OpDef& op =
      *new OpDef{.name = AveragePool::kName,
                 .attributes = AverageSchema(),
                 .infer = InferAveragePool,
                 .reference = {AveragePoolForward<float>, AveragePoolBackward<float>},
                 .reference_double = {AveragePoolForward<double>, AveragePoolBackward<double>}};
  return op;
}

}  // namespace capstan::training
