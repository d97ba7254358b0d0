#include "training/ops/pad/pad.h"

#include <algorithm>
#include <array>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferPad(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  constexpr double kMost = std::numeric_limits<float>::max();
  const absl::Status value = CheckNumber(attributes, "value", -kMost, kMost);
  if (!value.ok()) return value;
  const std::vector<int64_t> pads = Pad::Read(attributes).pads;
  const Shape& shape = x[0].shape;
  if (pads.size() != 2 * shape.size()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute pads: ", pads.size(),
                                                   " numbers over an input ", ShapeToString(shape),
                                                   ", want two an axis"));
  }
  Inference inferred;
  inferred.output = x[0];
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t before = pads[i], after = pads[shape.size() + i];
    for (const int64_t pad : {before, after}) {
      if (pad < -kMaxTensorElements || pad > kMaxTensorElements) {
        return absl::InvalidArgumentError(absl::StrCat(
            "attribute pads: ", pad, ", want -", kMaxTensorElements, " to ", kMaxTensorElements));
      }
    }
    const int64_t kept = shape[i] + std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    if (kept < 1) {
      return absl::InvalidArgumentError(absl::StrCat("attribute pads: ", before, " and ", after,
                                                     " leave nothing of axis ", i + 1, " of ",
                                                     shape[i], ", want at least one element"));
    }
    inferred.output.shape[i] += before + after;
  }
  return inferred;
}

// Calls visit(place in x, place in y) for each number of x that y keeps, over a batch.
template <typename Visit>
void ForKept(const OpInstance& op, int64_t count, Visit visit) {
  const Shape &x = op.x[0].shape, &y = op.inferred.output.shape;
  const std::vector<int64_t>& pads = op.attributes.Ints("pads");
  const std::array<Strides, 2> strides = {StridesOf(x), StridesOf(y)};
  Shape kept = x;
  int64_t first_x = 0, first_y = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t before = pads[i], after = pads[x.size() + i];
    kept[i] += std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    first_x += std::max<int64_t>(-before, 0) * strides[0][i];
    first_y += std::max<int64_t>(before, 0) * strides[1][i];
  }
  for (int64_t n = 0; n < count; ++n) {
    ForPlaces<2>(kept, strides, {n * Elements(x) + first_x, n * Elements(y) + first_y},
                 [&](const std::array<int64_t, 2>& at) { visit(at[0], at[1]); });
  }
}

template <typename T>
void PadForward(const ForwardCall<T>& call) {
  const auto value = static_cast<T>(Pad::Read(call.op.attributes).value);
  std::fill_n(call.y, call.samples.count * Elements(call.op.inferred.output.shape), value);
  ForKept(call.op, call.samples.count,
          [&](int64_t from, int64_t to) { call.y[to] = call.x[0][from]; });
}

template <typename T>
void PadBackward(const BackwardCall<T>& call) {
  ForKept(call.op, call.samples.count,
          [&](int64_t from, int64_t to) { call.dx[0][from] += call.dy[to]; });
}

}  // namespace

const OpDef& PadOp() {
  static const OpDef& op =
      *new OpDef{.name = Pad::kName,
                 .attributes = {{"pads", Pad().pads, /*required=*/true}, {"value", Pad().value}},
                 .infer = InferPad,
                 .reference = {PadForward<float>, PadBackward<float>},
                 .reference_double = {PadForward<double>, PadBackward<double>}};
  return op;
}

}  // namespace capstan::training
