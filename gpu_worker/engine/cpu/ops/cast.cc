// Cast: a copy, or each number without what follows its point.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/ops/cast.cc"
#include "training/ops/cast/cast.h"

#include <cstdint>

#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/blocked/runs.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {
#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"
}  // namespace

void RunTruncate(int64_t size, const float* x, float* y) {
  // The sum makes +0 of -0, which whole numbers do not have. What Trunc makes of -0.5 depends on the
  // instruction set and the compiler.
  const V zero = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kLanes) {
    hn::Store(hn::Add(hn::Trunc(hn::Load(d, x + i)), zero), d, y + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {

absl::StatusOr<NodePhases> MakeCastPhases(const training::Graph& graph, int node,
                                          const NodePlaces& places) {
  const bool whole = training::Cast::Read(graph.instance(node).attributes).to != "float";
  const Runs runs = RunsOf(graph, node);
  void (*const truncate)(int64_t, const float*, float*) =
      CAPSTAN_FORM_OF(RunTruncate, *places.math);
  NodePhases phases;
  phases.kernel = "pointwise";
  phases.forward.push_back(
      {0, runs.pieces(),
       [runs, places, whole, truncate](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           const float* const x = places.x[0] + first;
           if (whole) return truncate(size, x, places.y + first);
           places.math->copy(size, x, places.y + first, /*add=*/false);
         });
       }});
  if (!places.backward || places.dx[0].data == nullptr) return phases;
  phases.backward.push_back(
      {0, runs.pieces(), [runs, places, whole](const BatchRun& run, int64_t piece, char*) {
         runs.Visited(run, piece, [&](int64_t first, int64_t size) {
           const NodePlaces::Gradient& dx = places.dx[0];
           if (whole) return AddNothing(dx.data + first, size, dx.add);
           places.math->copy(size, places.dy + first, dx.data + first, dx.add);
         });
       }});
  return phases;
}

}  // namespace capstan::engine
#endif  // HWY_ONCE
