// Transpose, Slice and Pad: copies between places of a block.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "gpu_worker/engine/cpu/blocked/terms.h"
#include "training/ops/pad/pad.h"
#include "training/ops/slice/slice.h"
#include "training/ops/transpose/transpose.h"

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

}  // namespace

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
