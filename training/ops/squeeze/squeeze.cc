#include "training/ops/squeeze/squeeze.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferSqueeze(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape& shape = x[0].shape;
  absl::StatusOr<std::vector<int64_t>> axes =
      ResolveAxes("axes", Squeeze::Read(attributes).axes, shape);
  if (!axes.ok()) return axes.status();
  const bool all = axes->empty();
  for (size_t i = 0; all && i < shape.size(); ++i) {
    if (shape[i] == 1) axes->push_back(static_cast<int64_t>(i) + 1);
  }
  Inference inferred;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t axis = static_cast<int64_t>(i) + 1;
    if (std::find(axes->begin(), axes->end(), axis) == axes->end()) {
      inferred.output.shape.push_back(shape[i]);
    } else if (shape[i] != 1) {
      return absl::InvalidArgumentError(absl::StrCat("attribute axes: axis ", axis, " of an input ",
                                                     ShapeToString(shape), " has ", shape[i],
                                                     " elements, want 1"));
    }
  }
  if (inferred.output.shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute axes: no axis of an input ",
                                                   ShapeToString(shape), " is left, want one"));
  }
  attributes.Set("axes", *axes);
  return inferred;
}

absl::StatusOr<Inference> InferUnsqueeze(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const std::vector<int64_t> asked = Unsqueeze::Read(attributes).axes;
  if (asked.empty()) {
    return absl::InvalidArgumentError("attribute axes: [], want at least one axis");
  }
  Shape shape(x[0].shape.size() + asked.size(), 1);
  const absl::StatusOr<std::vector<int64_t>> axes = ResolveAxes("axes", asked, shape);
  if (!axes.ok()) return axes.status();
  size_t next = 0;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool added =
        std::find(axes->begin(), axes->end(), static_cast<int64_t>(i) + 1) != axes->end();
    if (!added) shape[i] = x[0].shape[next++];
  }
  attributes.Set("axes", *axes);
  Inference inferred;
  inferred.output.shape = std::move(shape);
  return inferred;
}

}  // namespace

const OpDef& SqueezeOp() {
  static const OpDef& op =
      *new OpDef{.name = Squeeze::kName,
                 .attributes = {{"axes", Squeeze().axes}},
                 .infer = InferSqueeze,
                 .in_place = InPlace::kView,
                 .reference = {CopyForward<float>, AddBackward<float>},
                 .reference_double = {CopyForward<double>, AddBackward<double>}};
  return op;
}

const OpDef& UnsqueezeOp() {
  static const OpDef& op =
      *new OpDef{.name = Unsqueeze::kName,
                 .attributes = {{"axes", Unsqueeze().axes, /*required=*/true}},
                 .infer = InferUnsqueeze,
                 .in_place = InPlace::kView,
                 .reference = {CopyForward<float>, AddBackward<float>},
                 .reference_double = {CopyForward<double>, AddBackward<double>}};
  return op;
}

}  // namespace capstan::training
