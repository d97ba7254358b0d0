#include "training/ops/broadcast.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {

std::optional<Shape> BroadcastShape(const Shape& a, const Shape& b) {
  Shape shape(std::max(a.size(), b.size()), 1);
  for (const Shape* const x : {&a, &b}) {
    const size_t missing = shape.size() - x->size();
    for (size_t i = 0; i < x->size(); ++i) {
      int64_t& size = shape[missing + i];
      if ((*x)[i] != 1 && size != 1 && (*x)[i] != size) return std::nullopt;
      if ((*x)[i] != 1) size = (*x)[i];
    }
  }
  return shape;
}

Strides BroadcastStrides(const Shape& x, const Shape& y) {
  const Strides own = StridesOf(x);
  Strides strides(y.size(), 0);
  const size_t missing = y.size() - x.size();
  for (size_t i = 0; i < x.size(); ++i) strides[missing + i] = x[i] == 1 ? 0 : own[i];
  return strides;
}

absl::StatusOr<Inference> InferBroadcast(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  std::optional<Shape> shape = BroadcastShape(x[0].shape, x[1].shape);
  if (!shape.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("input 1: ", ShapeToString(x[1].shape),
                                                   ", want ", ShapeToString(x[0].shape),
                                                   " as input 0, or 1 where an axis differs"));
  }
  Inference inferred;
  inferred.output.shape = *std::move(shape);
  return inferred;
}

}  // namespace capstan::training
