#include "training/ops/slice/slice.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

absl::Status CheckNumbers(const SliceNode& slice) {
  const size_t want = slice.starts.size();
  const auto differs = [want](const char* name, size_t size) {
    return absl::InvalidArgumentError(
        absl::StrCat("attribute ", name, ": ", size, " numbers, want ", want, " as starts"));
  };
  if (slice.ends.size() != want) return differs("ends", slice.ends.size());
  if (slice.axes.size() != want) return differs("axes", slice.axes.size());
  if (slice.steps.size() != want) return differs("steps", slice.steps.size());
  return absl::OkStatus();
}

// Resolves entry `i` over an axis of `size`. Returns how many indices it has.
absl::StatusOr<int64_t> ResolveSlice(int64_t size, size_t i, SliceNode& slice) {
  int64_t &start = slice.starts[i], &end = slice.ends[i], &step = slice.steps[i];
  const auto empty = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        "attribute starts: nothing from ", start, " before ", end, " in steps of ", step,
        " over axis ", slice.axes[i], " of ", size, ", want at least one index"));
  };
  if (step == 0) {
    return absl::InvalidArgumentError("attribute steps: 0, want any other number");
  }
  step = std::clamp(step, -size, size);  // a longer step takes the first index only, too
  const int64_t first = start < 0 ? start + size : start;
  int64_t last = end < 0 ? end + size : end;
  if (step > 0) {
    const int64_t from = std::clamp<int64_t>(first, 0, size);
    last = std::clamp<int64_t>(last, 0, size);
    if (from >= last) return empty();
    start = from;
    end = last;
    return (last - from - 1) / step + 1;
  }
  const int64_t from = std::clamp<int64_t>(first, 0, size - 1);
  last = std::clamp<int64_t>(last, -1, size - 1);
  if (from <= last) return empty();
  start = from;
  end = last < 0 ? -size - 1 : last;
  return (from - last - 1) / -step + 1;
}

absl::StatusOr<Inference> InferSlice(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  SliceNode slice = SliceNode::Read(attributes);
  if (slice.axes.empty()) {
    for (size_t i = 0; i < slice.starts.size(); ++i) {
      slice.axes.push_back(static_cast<int64_t>(i) + 1);
    }
  }
  if (slice.steps.empty()) slice.steps.assign(slice.starts.size(), 1);
  const absl::Status numbers = CheckNumbers(slice);
  if (!numbers.ok()) return numbers;
  absl::StatusOr<std::vector<int64_t>> axes = ResolveAxes("axes", slice.axes, x[0].shape);
  if (!axes.ok()) return axes.status();
  slice.axes = *std::move(axes);
  Inference inferred;
  inferred.output = x[0];
  for (size_t i = 0; i < slice.axes.size(); ++i) {
    int64_t& size = inferred.output.shape[static_cast<size_t>(slice.axes[i]) - 1];
    const absl::StatusOr<int64_t> count = ResolveSlice(size, i, slice);
    if (!count.ok()) return count.status();
    size = *count;
  }
  attributes.Set("starts", slice.starts);
  attributes.Set("ends", slice.ends);
  attributes.Set("axes", slice.axes);
  attributes.Set("steps", slice.steps);
  return inferred;
}

// Calls visit(place in x, place in y) for each number of y over a batch.
template <typename Visit>
void ForSliced(const OpInstance& op, int64_t count, Visit visit) {
  const Shape& y = op.inferred.output.shape;
  const SliceNode slice = SliceNode::Read(op.attributes);
  std::array<Strides, 2> strides = {StridesOf(op.x[0].shape), StridesOf(y)};
  int64_t first = 0;
  for (size_t i = 0; i < slice.axes.size(); ++i) {
    int64_t& stride = strides[0][static_cast<size_t>(slice.axes[i]) - 1];
    first += slice.starts[i] * stride;
    stride *= slice.steps[i];
  }
  const int64_t x_size = Elements(op.x[0].shape), y_size = Elements(y);
  for (int64_t n = 0; n < count; ++n) {
    ForPlaces<2>(y, strides, {n * x_size + first, n * y_size},
                 [&](const std::array<int64_t, 2>& at) { visit(at[0], at[1]); });
  }
}

template <typename T>
void SliceForward(const ForwardCall<T>& call) {
  ForSliced(call.op, call.samples.count,
            [&](int64_t from, int64_t to) { call.y[to] = call.x[0][from]; });
}

template <typename T>
void SliceBackward(const BackwardCall<T>& call) {
  ForSliced(call.op, call.samples.count,
            [&](int64_t from, int64_t to) { call.dx[0][from] += call.dy[to]; });
}

}  // namespace

const OpDef& SliceOp() {
  static const OpDef& op =
      *new OpDef{.name = SliceNode::kName,
                 .attributes = {{"axes", SliceNode().axes},
                                {"ends", SliceNode().ends, /*required=*/true},
                                {"starts", SliceNode().starts, /*required=*/true},
                                {"steps", SliceNode().steps}},
                 .infer = InferSlice,
                 .reference = {SliceForward<float>, SliceBackward<float>},
                 .reference_double = {SliceForward<double>, SliceBackward<double>}};
  return op;
}

}  // namespace capstan::training
