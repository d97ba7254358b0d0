#include "training/ops/gather/gather.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/ops/infer.h"
#include "training/ops/places.h"
#include "training/ops/reference.h"

namespace capstan::training {
namespace {

absl::StatusOr<Inference> InferGather(absl::Span<const ValueType> x, Attributes&) {
  const absl::Status floats = CheckFloats(x);
  if (!floats.ok()) return floats;
  const Shape &table = x[0].shape, &indices = x[1].shape;
  constexpr int64_t kMost = int64_t{1} << 24;
  if (table.empty() || table[0] > kMost) {
    return absl::InvalidArgumentError(absl::StrCat("input 0: ", ShapeToString(table),
                                                   ", want [V, ...] with V at most ", kMost,
                                                   ", the whole numbers of a float32"));
  }
  Inference inferred;
  inferred.output.shape = indices;
  inferred.output.shape.insert(inferred.output.shape.end(), table.begin() + 1, table.end());
  return inferred;
}

// Calls visit(row of the table in the batch, row of y) for each index that names a row, and
// missing(row of y) for each other one.
template <typename T, typename Visit, typename Missing>
void ForGathered(const OpInstance& op, int64_t count, const T* indices, Visit visit,
                 Missing missing) {
  const int64_t rows = op.x[0].shape[0], of_sample = Elements(op.x[1].shape);
  for (int64_t i = 0; i < count * of_sample; ++i) {
    const int64_t row = RowOfIndex(static_cast<double>(indices[i]), rows);
    if (row < 0) {
      missing(i);
    } else {
      visit(i / of_sample * rows + row, i);
    }
  }
}

int64_t RowSize(const OpInstance& op) {
  return ElementsBetween(op.x[0].shape, 1, op.x[0].shape.size());
}

template <typename T>
void GatherForward(const ForwardCall<T>& call) {
  const int64_t size = RowSize(call.op);
  ForGathered(
      call.op, call.samples.count, call.x[1],
      [&](int64_t from, int64_t to) {
        std::copy_n(call.x[0] + from * size, size, call.y + to * size);
      },
      [&](int64_t to) { std::fill_n(call.y + to * size, size, T{0}); });
}

template <typename T>
void GatherBackward(const BackwardCall<T>& call) {
  const int64_t size = RowSize(call.op);
  SumOver<T> dtable(call.dx[0], call.samples.count * Elements(call.op.x[0].shape));
  ForGathered(
      call.op, call.samples.count, call.x[1],
      [&](int64_t to, int64_t from) {
        for (int64_t i = 0; i < size; ++i) {
          dtable.Add(to * size + i, static_cast<double>(call.dy[from * size + i]));
        }
      },
      [](int64_t) {});
}

}  // namespace

const OpDef& GatherOp() {
  static const OpDef& op =
      *new OpDef{.name = Gather::kName,
                 .min_inputs = 2,
                 .max_inputs = 2,
                 .infer = InferGather,
                 .reads = {.x = true},
                 .reference = {GatherForward<float>, GatherBackward<float>},
                 .reference_double = {GatherForward<double>, GatherBackward<double>}};
  return op;
}

}  // namespace capstan::training
