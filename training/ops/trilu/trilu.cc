#include "training/ops/trilu/trilu.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferTrilu(absl::Span<const ValueType> x, Attributes& attributes) {
  const Shape& shape = x[0].shape;
  if (shape.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("input ", ShapeToString(shape), ", want at least two axes"));
  }
  const absl::Status upper = CheckFlag(attributes, "upper");
  if (!upper.ok()) return upper;
  // Beyond the corners nothing changes.
  const int64_t rows = shape.end()[-2], columns = shape.back();
  attributes.Set("k", std::clamp(attributes.Int("k"), -rows, columns));
  return InferSameShape(x, attributes);
}

// Calls visit(place, whether it is kept) for each number of a batch.
template <typename Visit>
void ForTriangles(const OpInstance& op, int64_t count, Visit visit) {
  const Trilu trilu = Trilu::Read(op.attributes);
  const Shape& shape = op.x[0].shape;
  const int64_t rows = shape.end()[-2], columns = shape.back();
  const int64_t all = count * Elements(shape);
  for (int64_t first = 0, row = 0; first < all; first += columns, row = (row + 1) % rows) {
    for (int64_t j = 0; j < columns; ++j) {
      visit(first + j, trilu.upper ? j >= row + trilu.k : j <= row + trilu.k);
    }
  }
}

template <typename T>
void TriluForward(const ForwardCall<T>& call) {
  ForTriangles(call.op, call.samples.count,
               [&](int64_t at, bool kept) { call.y[at] = kept ? call.x[0][at] : T{0}; });
}

template <typename T>
void TriluBackward(const BackwardCall<T>& call) {
  ForTriangles(call.op, call.samples.count, [&](int64_t at, bool kept) {
    if (kept) call.dx[0][at] += call.dy[at];
  });
}

}  // namespace

const OpDef& TriluOp() {
  static const OpDef& op =
      *new OpDef{.name = Trilu::kName,
                 .attributes = {{"k", Trilu().k}, {"upper", int64_t{Trilu().upper}}},
                 .infer = InferTrilu,
                 .reference = {TriluForward<float>, TriluBackward<float>},
                 .reference_double = {TriluForward<double>, TriluBackward<double>}};
  return op;
}

}  // namespace capstan::training
