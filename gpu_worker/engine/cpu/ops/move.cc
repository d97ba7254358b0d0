// Transpose, Slice, Pad and Trilu: copies between places of a block. ConstantOfShape only fills them.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/terms.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/pad/pad.h"
#include "training/ops/slice/slice.h"
#include "training/ops/transpose/transpose.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::engine {
namespace {

// The places of x that y has, and the value of all other places of y.
struct Moved {
  training::Shape shape;  // of what is copied
  training::Strides x, y;
  int64_t first_x = 0, first_y = 0;
  float fill = 0;
};

Moved MovedBy(const training::OpInstance& op, const training::Transpose& transpose) {
  Moved moved;
  moved.shape = op.inferred.output.shape;
  moved.y = training::StridesOf(moved.shape);
  const training::Strides of_x = training::StridesOf(op.x[0].shape);
  for (const int64_t axis : transpose.perm) {
    moved.x.push_back(of_x[static_cast<size_t>(axis) - 1]);
  }
  return moved;
}

Moved MovedBy(const training::OpInstance& op, const training::SliceNode& slice) {
  Moved moved;
  moved.shape = op.inferred.output.shape;
  moved.x = training::StridesOf(op.x[0].shape);
  moved.y = training::StridesOf(moved.shape);
  for (size_t i = 0; i < slice.axes.size(); ++i) {
    int64_t& stride = moved.x[static_cast<size_t>(slice.axes[i]) - 1];
    moved.first_x += slice.starts[i] * stride;
    stride *= slice.steps[i];
  }
  return moved;
}

Moved MovedBy(const training::OpInstance& op, const training::Pad& pad) {
  Moved moved;
  moved.shape = op.x[0].shape;
  moved.x = training::StridesOf(op.x[0].shape);
  moved.y = training::StridesOf(op.inferred.output.shape);
  moved.fill = static_cast<float>(pad.value);
  const size_t axes = moved.shape.size();
  for (size_t i = 0; i < axes; ++i) {
    const int64_t before = pad.pads[i], after = pad.pads[axes + i];
    moved.shape[i] += std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    moved.first_x += std::max<int64_t>(-before, 0) * moved.x[i];
    moved.first_y += std::max<int64_t>(before, 0) * moved.y[i];
  }
  return moved;
}

Phase FillPhase(int64_t elements, float value, float* to) {
  const Runs runs(elements);
  return {0, runs.pieces(), [runs, value, to](const BatchRun& run, int64_t piece, char*) {
            runs.Visited(run, piece, [&](int64_t first, int64_t size) {
              std::fill_n(to + first, size, value);
            });
          }};
}

// Tensors of the walk: x and y. Copies one to the other, and fills what has no counterpart.
void AddCopy(const RowWalk& walk, const BlockedMath& math, const float* from, int64_t from_elements,
             const TermTarget& target, int64_t copied, float fill, std::vector<Phase>& phases) {
  const size_t source = 1 - target.tensor;
  if (copied < target.elements && !target.add) {
    phases.push_back(FillPhase(target.elements, fill, target.data));
  }
  phases.push_back(TermPhase(
      walk, math, target,
      [=, step = walk.step(source)](const BatchRun&, int64_t block, const RowWalk::Places& at) {
        TermCall call;
        call.dy = {from + block * from_elements * kSideBySide + at[source], step};
        return call;
      }));
}

template <typename Op>
NodePhases MakeMove(const training::Graph& graph, int node, const NodePlaces& places) {
  const training::OpInstance& op = graph.instance(node);
  const Moved moved = MovedBy(op, Op::Read(op.attributes));
  const int64_t of_x = training::Elements(op.x[0].shape);
  const int64_t of_y = graph.value_elements(graph.output_of(node));
  const int64_t copied = training::Elements(moved.shape);
  const RowWalk walk(moved.shape, {moved.x, moved.y, {}}, {kSideBySide, kSideBySide, 1},
                     {moved.first_x, moved.first_y, 0});
  NodePhases phases;
  phases.kernel = "places";
  AddCopy(walk, *places.math, places.x[0], of_x, {1, places.y, of_y}, copied, moved.fill,
          phases.forward);
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  AddCopy(walk, *places.math, places.dy, of_y, {0, places.dx[0].data, of_x, places.dx[0].add},
          copied, 0, phases.backward);
  return phases;
}

// Runs of whole rows of the matrices of all blocks, a piece at a time.
class TriangleRows {
 public:
  explicit TriangleRows(const training::OpInstance& op)
      : of_(training::Trilu::Read(op.attributes)),
        rows_(op.x[0].shape.end()[-2]),
        columns_(op.x[0].shape.back()),
        rows_of_block_(training::Elements(op.x[0].shape) / columns_),
        at_once_(std::max<int64_t>(1, kPieceFloats / (columns_ * kSideBySide))) {}

  // Copies or adds the triangle, and makes the rest of `to` 0 unless it adds.
  Phase Copied(const BlockedMath& math, const float* from, float* to, bool add) const {
    return {0,
            [self = *this](const BatchRun& run) {
              return CeilDivide(run.blocks * self.rows_of_block_, self.at_once_);
            },
            [=, self = *this, copy = math.copy](const BatchRun& run, int64_t piece, char*) {
              const int64_t end =
                  std::min((piece + 1) * self.at_once_, run.blocks * self.rows_of_block_);
              for (int64_t row = piece * self.at_once_; row < end; ++row) {
                const int64_t at = row * self.columns_ * kSideBySide;
                self.CopyRow(row % self.rows_, copy, from + at, to + at, add);
              }
            }};
  }

 private:
  void CopyRow(int64_t row, void (*copy)(int64_t, const float*, float*, bool), const float* from,
               float* to, bool add) const {
    const int64_t corner = std::clamp<int64_t>(row + of_.k + (of_.upper ? 0 : 1), 0, columns_);
    const int64_t first = (of_.upper ? corner : 0) * kSideBySide;
    const int64_t last = (of_.upper ? columns_ : corner) * kSideBySide;
    copy(last - first, from + first, to + first, add);
    if (add) return;
    std::fill(to, to + first, 0.0f);
    std::fill(to + last, to + columns_ * kSideBySide, 0.0f);
  }

  training::Trilu of_;
  int64_t rows_, columns_;
  int64_t rows_of_block_;
  int64_t at_once_;  // rows of a piece
};

}  // namespace

absl::StatusOr<NodePhases> MakeConstantOfShapePhases(const training::Graph& graph, int node,
                                                     const NodePlaces& places) {
  const auto value = training::ConstantOfShape::Read(graph.instance(node).attributes).value;
  NodePhases phases;
  phases.kernel = "places";
  phases.forward.push_back(
      FillPhase(graph.value_elements(graph.output_of(node)), static_cast<float>(value), places.y));
  return phases;
}

absl::StatusOr<NodePhases> MakeTriluPhases(const training::Graph& graph, int node,
                                           const NodePlaces& places) {
  const TriangleRows rows(graph.instance(node));
  NodePhases phases;
  phases.kernel = "places";
  phases.forward.push_back(rows.Copied(*places.math, places.x[0], places.y, /*add=*/false));
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  phases.backward.push_back(
      rows.Copied(*places.math, places.dy, places.dx[0].data, places.dx[0].add));
  return phases;
}

absl::StatusOr<NodePhases> MakeTransposePhases(const training::Graph& graph, int node,
                                               const NodePlaces& places) {
  return MakeMove<training::Transpose>(graph, node, places);
}

absl::StatusOr<NodePhases> MakeSlicePhases(const training::Graph& graph, int node,
                                           const NodePlaces& places) {
  return MakeMove<training::SliceNode>(graph, node, places);
}

absl::StatusOr<NodePhases> MakePadPhases(const training::Graph& graph, int node,
                                         const NodePlaces& places) {
  return MakeMove<training::Pad>(graph, node, places);
}

}  // namespace capstan::engine
