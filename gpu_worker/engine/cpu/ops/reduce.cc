// ReduceMean and ReduceSum: sums over axes of a sample, and their gradient, which is repeated along
// these axes.
#include "training/ops/reduce/reduce.h"

#include <algorithm>
#include <memory>

#include "gpu_worker/engine/cpu/blocked/terms.h"

namespace capstan::engine {
namespace {

// Tensors of the walk: x and y.
RowWalk WalkOf(const training::OpInstance& op) {
  const training::Shape& x = op.x[0].shape;
  const std::vector<int64_t>& axes = op.attributes.Ints("axes");
  training::Shape kept = x;
  for (const int64_t axis : axes) kept[static_cast<size_t>(axis) - 1] = 1;
  training::Strides strides = training::StridesOf(kept);
  for (const int64_t axis : axes) strides[static_cast<size_t>(axis) - 1] = 0;
  return {x, {training::StridesOf(x), strides, {}}, {kSideBySide, kSideBySide, 1}};
}

}  // namespace

absl::StatusOr<NodePhases> MakeReducePhases(const training::Graph& graph, int node,
                                            const NodePlaces& places) {
  const training::OpInstance& op = graph.instance(node);
  const int64_t of_x = training::Elements(op.x[0].shape);
  const int64_t of_y = graph.value_elements(graph.output_of(node));
  const bool mean = graph.def(node).name == training::ReduceMean::kName;
  const RowWalk walk = WalkOf(op);
  NodePhases phases;
  phases.kernel = "places";
  const int64_t summed = of_x / of_y;  // numbers of x in each of y
  const auto divisor = std::make_shared<float>(static_cast<float>(summed));
  TermTarget target;
  target.tensor = 1;
  target.data = places.y;
  target.elements = of_y;
  target.repeats = of_x != of_y;
  phases.forward.push_back(
      TermPhase(walk, *places.math, target,
                [x = places.x[0], of_x, step = walk.step(0)](const BatchRun&, int64_t block,
                                                             const RowWalk::Places& at) {
                  TermCall call;
                  call.dy = {x + block * of_x * kSideBySide + at[0], step};
                  return call;
                }));
  if (mean) {
    const Runs runs = RunsOf(graph, node);
    phases.forward.push_back({0, runs.pieces(),
                              [runs, divisor, y = places.y, loops = &StridedLoopsOf(*places.math)](
                                  const BatchRun& run, int64_t piece, char*) {
                                runs.Visited(run, piece, [&](int64_t first, int64_t size) {
                                  loops->binary({BinaryOp::kDiv,
                                                 size / kSideBySide,
                                                 {y + first, kSideBySide},
                                                 {divisor.get(), 0, true},
                                                 y + first});
                                });
                              }});
  }
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  target.tensor = 0;
  target.data = places.dx[0].data;
  target.elements = of_x;
  target.add = places.dx[0].add;
  target.repeats = false;
  phases.backward.push_back(
      TermPhase(walk, *places.math, target,
                [dy = places.dy, of_y, mean, divisor, step = walk.step(1)](
                    const BatchRun&, int64_t block, const RowWalk::Places& at) {
                  TermCall call;
                  call.term = mean ? Term::kOver : Term::kSame;
                  call.dy = {dy + block * of_y * kSideBySide + at[1], step};
                  call.a = {divisor.get(), 0, true};
                  return call;
                }));
  return phases;
}

}  // namespace capstan::engine
