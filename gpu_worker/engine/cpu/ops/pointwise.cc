// Operators that only copy, add or compare element by element, and views.
#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"

namespace capstan::engine {

absl::StatusOr<NodePhases> MakeReluPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           places.math->relu(size, places.x[0] + first, places.y + first);
         });
       }});
  if (places.backward && places.dx[0].data != nullptr) {
    phases.backward.push_back(
        {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
           runs.Visited(run, piece, [&](int64_t first, int64_t size) {
             places.math->relu_backward(size, places.y + first, places.dy + first,
                                        places.dx[0].data + first, places.dx[0].add);
           });
         }});
  }
  return phases;
}

absl::StatusOr<NodePhases> MakeSumPhases(const training::Graph& graph, int node,
                                         const NodePlaces& places) {
  const Runs runs = RunsOf(graph, node);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           float* const y = places.y + first;
           if (places.x[0] != places.y)
             places.math->copy(size, places.x[0] + first, y, /*add=*/false);
           for (size_t i = 1; i < places.x.size(); ++i) {
             places.math->copy(size, places.x[i] + first, y, /*add=*/true);
           }
         });
       }});
  if (!places.backward) return phases;
  phases.backward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           for (const NodePlaces::Gradient& dx : places.dx) {
             if (dx.data == nullptr || dx.data == places.dy) continue;
             places.math->copy(size, places.dy + first, dx.data + first, dx.add);
           }
         });
       }});
  return phases;
}

absl::StatusOr<NodePhases> MakeViewPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  NodePhases phases;
  phases.kernel = "view";
  if (!places.backward || places.dx[0].data == nullptr || places.dx[0].data == places.dy) {
    return phases;
  }
  const Runs runs = RunsOf(graph, node);
  phases.backward.push_back(
      {0, runs.pieces(), [runs, places](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           places.math->copy(size, places.dy + first, places.dx[0].data + first, places.dx[0].add);
         });
       }});
  return phases;
}

}  // namespace capstan::engine
