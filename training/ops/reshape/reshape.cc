#include "training/ops/reshape/reshape.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferReshape(absl::Span<const ValueType> x, Attributes& attributes) {
  const Shape asked = attributes.Ints("shape");
  const auto error = [&](auto... what) {
    return absl::InvalidArgumentError(absl::StrCat("attribute shape: ", ShapeToString(asked),
                                                   " of an input ", ShapeToString(x[0].shape),
                                                   ", want ", what...));
  };
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const absl::StatusOr<int64_t> elements = ElementCount(x[0].shape, "input");
  if (!elements.ok()) return elements.status();
  if (asked.empty()) return error("at least one dimension");

  Shape shape = asked;
  int free = -1;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < -1) return error("dimensions of at least -1");
    if (shape[i] == -1) {
      if (free >= 0) return error("one -1 at most");
      free = static_cast<int>(i);
      shape[i] = 1;
    } else if (shape[i] == 0) {
      if (i >= x[0].shape.size()) return error("no 0 beyond the dimensions of the input");
      shape[i] = x[0].shape[i];
    }
  }
  const absl::StatusOr<int64_t> known = ElementCount(shape, "attribute shape");
  if (!known.ok()) return known.status();
  if (free >= 0 && *elements % *known == 0) shape[free] = *elements / *known;
  if (Elements(shape) != *elements) {
    return error(free >= 0 ? "a divisor of " : "a product of ", *elements, " elements, got ",
                 *known);
  }
  attributes.Set("shape", shape);
  Inference inferred;
  inferred.output = x[0];
  inferred.output.shape = shape;
  return inferred;
}

}  // namespace

const OpDef& ReshapeOp() {
  static const OpDef& op =
      *new OpDef{.name = Reshape::kName,
                 .attributes = {{"shape", Shape(), /*required=*/true}},
                 .infer = InferReshape,
                 .in_place = InPlace::kView,
                 .reference = {CopyForward<float>, AddBackward<float>},
                 .reference_double = {CopyForward<double>, AddBackward<double>}};
  return op;
}

}  // namespace capstan::training
