// Sums of a parameter's gradient: first those of each block, then over the blocks of a lane in
// double, then over the lanes in the order of rule R1.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_BLOCK_SUMS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_BLOCK_SUMS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {

class BlockSums {
 public:
  // Takes memory for the sums of `elements` numbers of every block. ResourceExhausted: no memory.
  static absl::StatusOr<BlockSums> Make(NodePhases& phases, const NodePlaces& places,
                                        int64_t elements) {
    BlockSums sums;
    absl::StatusOr<float*> memory =
        KernelMemory(phases, places.max_blocks * elements, phases.scratch_bytes);
    if (!memory.ok()) return memory.status();
    sums.memory_ = *memory;
    sums.elements_ = elements;
    return sums;
  }

  // [elements], to be written by an earlier phase.
  float* of(int64_t block) const { return memory_ + block * elements_; }

  // Writes the sums of numbers [first, first + count) to the gradient, from `offset` on.
  Phase Gradient(const NodePlaces& places, int64_t first, int64_t count, int64_t offset) const {
    const int64_t tiles = 3 + LaneTiles(places.max_lanes);  // one of floats, and one of doubles
    return {tiles * kTile * 4, FixedPieces(CeilDivide(count, kTile)),
            [sums = *this, math = places.math, first, count, offset](const BatchRun& run,
                                                                     int64_t piece, char* scratch) {
              const int64_t begin = piece * kTile, size = std::min(kTile, count - begin);
              auto* const totals = reinterpret_cast<double*>(scratch);
              auto* const to = reinterpret_cast<float*>(scratch) + 2 * kTile;
              SumOverLanes(run, *math, kTile, to, to + kTile,
                           [&](const LaneBlocks& lane, float* of_lane) {
                             sums.SumLane(lane, first + begin, size, totals, of_lane);
                           });
              std::copy_n(to, size, run.gradient + offset + begin);
            }};
  }

 private:
  static constexpr int64_t kTile = 1024;

  void SumLane(const LaneBlocks& lane, int64_t first, int64_t size, double* totals,
               float* to) const {
    std::fill_n(totals, size, 0.0);
    for (int64_t block = lane.first; block < lane.first + lane.count; ++block) {
      const float* const from = of(block) + first;
      for (int64_t i = 0; i < size; ++i) totals[i] += static_cast<double>(from[i]);
    }
    for (int64_t i = 0; i < size; ++i) to[i] = static_cast<float>(totals[i]);
    std::fill(to + size, to + kTile, 0.0f);
  }

  float* memory_ = nullptr;  // [blocks][elements]
  int64_t elements_ = 0;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_BLOCK_SUMS_H_
