#include "training/ops/reduce/reduce.h"

#include <algorithm>
#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

bool IsReduced(const std::vector<int64_t>& axes, size_t axis) {
  return std::find(axes.begin(), axes.end(), static_cast<int64_t>(axis) + 1) != axes.end();
}

absl::StatusOr<Inference> InferReduce(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const absl::Status flag = CheckFlag(attributes, "keepdims");
  if (!flag.ok()) return flag;
  const Shape& shape = x[0].shape;
  const ReduceMean op = ReduceMean::Read(attributes);
  absl::StatusOr<std::vector<int64_t>> axes = ResolveAxes("axes", op.axes, shape);
  if (!axes.ok()) return axes.status();
  const bool all = axes->empty();
  for (size_t i = 0; all && i < shape.size(); ++i) {
    axes->push_back(static_cast<int64_t>(i) + 1);
  }
  Inference inferred;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool reduced = IsReduced(*axes, i);
    if (!reduced || op.keepdims) inferred.output.shape.push_back(reduced ? 1 : shape[i]);
  }
  if (inferred.output.shape.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("attribute keepdims: 0 over every axis of ",
                                                   ShapeToString(shape), ", want 1"));
  }
  attributes.Set("axes", *axes);
  return inferred;
}

// Calls visit(place in x, place in y) for each number of x over a batch.
template <typename Visit>
void ForReduced(const OpInstance& op, int64_t count, Visit visit) {
  const Shape& x = op.x[0].shape;
  const std::vector<int64_t>& axes = op.attributes.Ints("axes");
  Shape kept = x;  // y's shape with keepdims
  for (size_t i = 0; i < x.size(); ++i) kept[i] = IsReduced(axes, i) ? 1 : x[i];
  std::array<Strides, 2> strides = {StridesOf(x), StridesOf(kept)};
  for (size_t i = 0; i < x.size(); ++i) strides[1][i] = IsReduced(axes, i) ? 0 : strides[1][i];
  for (int64_t n = 0; n < count; ++n) {
    ForPlaces<2>(x, strides, {n * Elements(x), n * Elements(kept)},
                 [&](const std::array<int64_t, 2>& at) { visit(at[0], at[1]); });
  }
}

// By how much a sum is divided.
double DivisorOf(const OpInstance& op, bool mean) {
  const int64_t summands = Elements(op.x[0].shape) / Elements(op.inferred.output.shape);
  return mean ? static_cast<double>(summands) : 1;
}

template <typename T, bool kMean>
void ReduceForward(const ForwardCall<T>& call) {
  const int64_t size = call.samples.count * Elements(call.op.inferred.output.shape);
  std::vector<double> sums(static_cast<size_t>(size), 0.0);
  ForReduced(call.op, call.samples.count, [&](int64_t from, int64_t to) {
    sums[static_cast<size_t>(to)] += static_cast<double>(call.x[0][from]);
  });
  const double divisor = DivisorOf(call.op, kMean);
  for (int64_t i = 0; i < size; ++i) {
    call.y[i] = static_cast<T>(sums[static_cast<size_t>(i)] / divisor);
  }
}

template <typename T, bool kMean>
void ReduceBackward(const BackwardCall<T>& call) {
  const double divisor = DivisorOf(call.op, kMean);
  ForReduced(call.op, call.samples.count, [&](int64_t from, int64_t to) {
    T& dx = call.dx[0][from];
    dx = static_cast<T>(static_cast<double>(dx) + static_cast<double>(call.dy[to]) / divisor);
  });
}

template <bool kMean>
OpDef ReduceDef(const char* name) {
  return {.name = name,
          .attributes = {{"axes", ReduceMean().axes}, {"keepdims", int64_t{1}}},
          .infer = InferReduce,
          .reference = {ReduceForward<float, kMean>, ReduceBackward<float, kMean>},
          .reference_double = {ReduceForward<double, kMean>, ReduceBackward<double, kMean>}};
}

}  // namespace

const OpDef& ReduceMeanOp() {
  static const OpDef& op = *new OpDef(ReduceDef<true>(ReduceMean::kName));
  return op;
}

const OpDef& ReduceSumOp() {
  static const OpDef& op = *new OpDef(ReduceDef<false>(ReduceSum::kName));
  return op;
}

}  // namespace capstan::training
