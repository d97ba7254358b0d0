// Sums of a parameter's gradient: first those of each block, then over the blocks of a lane in
// double, then over the lanes in the order of rule R1.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_BLOCK_SUMS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_BLOCK_SUMS_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {

// The phase that writes the gradient by `elements` parameters, from `offset` on. add_block(block,
// first, size, totals) adds what a block has of the numbers [first, first + size).
template <typename AddBlock>
Phase SumsOfLanes(const NodePlaces& places, int64_t elements, int64_t offset, AddBlock add_block) {
  constexpr int64_t kTile = 1024;
  const int64_t tiles = 3 + LaneTiles(places.max_lanes);  // one of floats, and one of doubles
  return {tiles * kTile * 4, FixedPieces(CeilDivide(elements, kTile)),
          [=, math = places.math](const BatchRun& run, int64_t piece, char* scratch) {
            const int64_t first = piece * kTile, size = std::min(kTile, elements - first);
            auto* const totals = reinterpret_cast<double*>(scratch);
            auto* const to = reinterpret_cast<float*>(scratch) + 2 * kTile;
            SumOverLanes(run, *math, kTile, to, to + kTile,
                         [&](const LaneBlocks& lane, float* of_lane) {
                           std::fill_n(totals, size, 0.0);
                           for (int64_t i = 0; i < lane.count; ++i) {
                             add_block(lane.first + i, first, size, totals);
                           }
                           std::copy_n(totals, size, of_lane);
                           std::fill(of_lane + size, of_lane + kTile, 0.0f);
                         });
            std::copy_n(to, size, run.gradient + offset + first);
          }};
}

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
    return SumsOfLanes(
        places, count, offset,
        [sums = *this, first](int64_t block, int64_t begin, int64_t size, double* totals) {
          const float* const from = sums.of(block) + first + begin;
          for (int64_t i = 0; i < size; ++i) {
            totals[i] += static_cast<double>(from[i]);
          }
        });
  }

 private:
  float* memory_ = nullptr;  // [blocks][elements]
  int64_t elements_ = 0;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_BLOCK_SUMS_H_
