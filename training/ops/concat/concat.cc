#include "training/ops/concat/concat.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferConcat(absl::Span<const ValueType> x, Attributes& attributes) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const absl::StatusOr<int64_t> resolved = ResolveAxis("axis", attributes.Int("axis"), x[0].shape);
  if (!resolved.ok()) return resolved.status();
  const int64_t axis = *resolved;
  attributes.Set("axis", axis);

  Inference inferred;
  inferred.output = x[0];
  int64_t& sum = inferred.output.shape[static_cast<size_t>(axis) - 1];
  for (size_t i = 1; i < x.size(); ++i) {
    Shape want = x[0].shape;
    if (x[i].shape.size() == want.size()) want[axis - 1] = x[i].shape[axis - 1];
    if (x[i].shape != want) {
      return absl::InvalidArgumentError(absl::StrCat("input ", i, ": ", ShapeToString(x[i].shape),
                                                     ", want ", ShapeToString(x[0].shape),
                                                     " in all dimensions except axis ", axis));
    }
    sum += x[i].shape[axis - 1];  // at most kManyInputs * kMaxTensorElements: cannot overflow
  }
  return inferred;
}

// Calls visit(input, from, to, size) for each run of elements that is contiguous in both an input
// and the output, over the batch.
template <typename Visit>
void ForRuns(const OpInstance& op, int64_t count, Visit visit) {
  const size_t axis = static_cast<size_t>(Concat::Read(op.attributes).axis) - 1;
  const int64_t runs = count * ElementsBetween(op.x[0].shape, 0, axis);
  int64_t to = 0;
  for (int64_t run = 0; run < runs; ++run) {
    for (size_t input = 0; input < op.x.size(); ++input) {
      const Shape& shape = op.x[input].shape;
      const int64_t size = ElementsBetween(shape, axis, shape.size());
      visit(input, run * size, to, size);
      to += size;
    }
  }
}

template <typename T>
void ConcatForward(const ForwardCall<T>& call) {
  ForRuns(call.op, call.samples.count, [&](size_t input, int64_t from, int64_t to, int64_t size) {
    std::copy_n(call.x[input] + from, size, call.y + to);
  });
}

template <typename T>
void ConcatBackward(const BackwardCall<T>& call) {
  ForRuns(call.op, call.samples.count, [&](size_t input, int64_t from, int64_t to, int64_t size) {
    if (call.dx[input] == nullptr) return;
    for (int64_t i = 0; i < size; ++i) call.dx[input][from + i] += call.dy[to + i];
  });
}

}  // namespace

const OpDef& ConcatOp() {
  static const OpDef& op =
      *new OpDef{.name = Concat::kName,
                 .attributes = {{"axis", int64_t{0}, /*required=*/true}},
                 .max_inputs = kManyInputs,
                 .infer = InferConcat,
                 .reference = {ConcatForward<float>, ConcatBackward<float>},
                 .reference_double = {ConcatForward<double>, ConcatBackward<double>}};
  return op;
}

}  // namespace capstan::training
