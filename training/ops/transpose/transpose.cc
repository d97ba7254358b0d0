#include "training/ops/transpose/transpose.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferTranspose(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const std::vector<int64_t> asked = Transpose::Read(attributes).perm;
  if (asked.size() != x[0].shape.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute perm: ", asked.size(), " numbers over an input ",
                     ShapeToString(x[0].shape), ", want one an axis"));
  }
  const absl::StatusOr<std::vector<int64_t>> perm = ResolveAxes("perm", asked, x[0].shape);
  if (!perm.ok()) return perm.status();
  attributes.Set("perm", *perm);
  Inference inferred;
  for (const int64_t axis : *perm) {
    inferred.output.shape.push_back(x[0].shape[static_cast<size_t>(axis) - 1]);
  }
  return inferred;
}

// Calls visit(place in x, place in y) for each number of a batch.
template <typename Visit>
void ForTransposed(const OpInstance& op, int64_t count, Visit visit) {
  const Shape& y = op.inferred.output.shape;
  const Strides of_x = StridesOf(op.x[0].shape);
  Strides from;
  for (const int64_t axis : Transpose::Read(op.attributes).perm) {
    from.push_back(of_x[static_cast<size_t>(axis) - 1]);
  }
  const std::array<Strides, 2> strides = {from, StridesOf(y)};
  const int64_t size = Elements(y);
  for (int64_t n = 0; n < count; ++n) {
    ForPlaces<2>(y, strides, {n * size, n * size},
                 [&](const std::array<int64_t, 2>& at) { visit(at[0], at[1]); });
  }
}

template <typename T>
void TransposeForward(const ForwardCall<T>& call) {
  ForTransposed(call.op, call.samples.count,
                [&](int64_t from, int64_t to) { call.y[to] = call.x[0][from]; });
}

template <typename T>
void TransposeBackward(const BackwardCall<T>& call) {
  ForTransposed(call.op, call.samples.count,
                [&](int64_t from, int64_t to) { call.dx[0][from] += call.dy[to]; });
}

}  // namespace

const OpDef& TransposeOp() {
  static const OpDef& op =
      *new OpDef{.name = Transpose::kName,
                 .attributes = {{"perm", Transpose().perm, /*required=*/true}},
                 .infer = InferTranspose,
                 .reference = {TransposeForward<float>, TransposeBackward<float>},
                 .reference_double = {TransposeForward<double>, TransposeBackward<double>}};
  return op;
}

}  // namespace capstan::training
