// Pieces of work for element-by-element operators.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_RUNS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_RUNS_H_

#include <algorithm>
#include <cstdint>
#include <functional>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/graph/graph.h"

namespace capstan::engine {

inline constexpr int64_t kPieceFloats = int64_t{1} << 15;

// Cuts [blocks][elements][16] into runs of kPieceFloats.
class Runs {
 public:
  explicit Runs(int64_t elements) : block_(elements * kSideBySide) {}
  std::function<int64_t(const BatchRun&)> pieces() const {
    return [block = block_](const BatchRun& run) {
      return CeilDivide(run.blocks * block, kPieceFloats);
    };
  }
  // Calls visit(first, size) for the floats of a piece.
  template <typename Visit>
  void Visited(const BatchRun& run, int64_t piece, Visit visit) const {
    const int64_t first = piece * kPieceFloats;
    visit(first, std::min(kPieceFloats, run.blocks * block_ - first));
  }

 private:
  int64_t block_;
};

inline Runs RunsOf(const training::Graph& graph, int node) {
  return Runs(graph.value_elements(graph.output_of(node)));
}

// A gradient of zeros for `count` floats: stores them, or adds them to the old values as the
// references do, which makes 0 of -0.
inline void AddNothing(float* to, int64_t count, bool add) {
  for (int64_t i = 0; i < count; ++i) to[i] = add ? to[i] + 0.0f : 0.0f;
}

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_RUNS_H_
