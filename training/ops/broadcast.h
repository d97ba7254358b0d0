// Broadcasting as in NumPy, within a sample: axes are compared from the last one, and an axis of 1
// or a missing one repeats along the other input's axis. The batch is never broadcast.
//
// With the references of operators of two inputs that compute element by element.
#ifndef CAPSTAN_TRAINING_OPS_BROADCAST_H_
#define CAPSTAN_TRAINING_OPS_BROADCAST_H_

#include <array>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "training/ops/op.h"
#include "training/ops/places.h"
#include "training/ops/reference.h"

namespace capstan::training {

// The shape of both together. Nullopt: an axis has two sizes, neither of them 1.
std::optional<Shape> BroadcastShape(const Shape& a, const Shape& b);

// The strides of a tensor of shape `x` along the axes of `y`, to which it is broadcast.
Strides BroadcastStrides(const Shape& x, const Shape& y);

// Of two inputs. InvalidArgument: their shapes do not broadcast, or an input does not consist of
// floats.
absl::StatusOr<Inference> InferBroadcast(absl::Span<const ValueType> x, Attributes& attributes);

// Calls visit({place in x[0], place in x[1], place in y}) for each output of a batch.
template <typename Visit>
void ForBroadcast(const OpInstance& op, int64_t count, Visit visit) {
  const Shape &a = op.x[0].shape, &b = op.x[1].shape, &y = op.inferred.output.shape;
  const int64_t size = Elements(y);
  if (a == b) {
    for (int64_t i = 0; i < count * size; ++i) visit(std::array<int64_t, 3>{i, i, i});
    return;
  }
  const std::array<Strides, 3> strides = {BroadcastStrides(a, y), BroadcastStrides(b, y),
                                          StridesOf(y)};
  for (int64_t n = 0; n < count; ++n) {
    ForPlaces<3>(y, strides, {n * Elements(a), n * Elements(b), n * size}, visit);
  }
}

// y = value(a, b)
template <typename T, typename Value>
void BroadcastForward(const ForwardCall<T>& call, Value value) {
  ForBroadcast(call.op, call.samples.count, [&](const std::array<int64_t, 3>& at) {
    call.y[at[2]] = static_cast<T>(
        value(static_cast<double>(call.x[0][at[0]]), static_cast<double>(call.x[1][at[1]])));
  });
}

// da = the sum of first(a, b, dy) over the places of a; db likewise of second(a, b, dy). If the
// operator does not read x in backward, a and b are 0.
template <typename T, typename First, typename Second>
void BroadcastBackward(const BackwardCall<T>& call, bool reads_x, First first, Second second) {
  SumOver<T> da(call.dx[0], call.samples.count * Elements(call.op.x[0].shape));
  SumOver<T> db(call.dx[1], call.samples.count * Elements(call.op.x[1].shape));
  ForBroadcast(call.op, call.samples.count, [&](const std::array<int64_t, 3>& at) {
    const double a = reads_x ? static_cast<double>(call.x[0][at[0]]) : 0;
    const double b = reads_x ? static_cast<double>(call.x[1][at[1]]) : 0;
    const double dy = static_cast<double>(call.dy[at[2]]);
    da.Add(at[0], first(a, b, dy));
    db.Add(at[1], second(a, b, dy));
  });
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_BROADCAST_H_
