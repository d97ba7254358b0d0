#include "training/ops/flatten/flatten.h"

#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferFlatten(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const absl::StatusOr<int64_t> elements = ElementCount(x[0].shape, "input");
  if (!elements.ok()) return elements.status();
  Inference inferred;
  inferred.output = x[0];
  inferred.output.shape = {*elements};
  return inferred;
}

}  // namespace

const OpDef& FlattenOp() {
  static const OpDef& op =
      *new OpDef{.name = Flatten::kName,
                 .infer = InferFlatten,
                 .in_place = InPlace::kView,
                 .reference = {CopyForward<float>, AddBackward<float>},
                 .reference_double = {CopyForward<double>, AddBackward<double>}};
  return op;
}

}  // namespace capstan::training
