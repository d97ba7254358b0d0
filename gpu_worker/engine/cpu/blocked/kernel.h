// Kernels of the blocked CPU plan. Each turns a node of a graph into phases.
//
// A step is a list of phases, one after the other. The pieces of a phase may run at the same time
// on any threads. One piece writes each number, in one order of additions, so the bits depend
// neither on the number of threads nor on the cut into pieces (rule R5).
//
// Values, their gradients and saved tensors lie as math.h says. The places of missing samples hold
// zeros in images and in gradients, so that they add nothing to a sum. Other values are finite
// there: a kernel that may make infinities or NaNs of zeros, as Div, writes zeros instead.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_KERNEL_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_KERNEL_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/engine/cpu/aligned.h"
#include "gpu_worker/engine/cpu/blocked/math.h"
#include "gpu_worker/engine/plan/fuse.h"
#include "training/graph/graph.h"
#include "training/ops/table.h"

namespace capstan::engine {

// A lane of the batch: consecutive blocks; none if it has no samples.
struct LaneBlocks {
  int64_t first = 0, count = 0;
  int64_t samples = 0;
};

// The current batch: consecutive lanes. Each lane begins with its own block, so the last block of a
// lane may have fewer than 16 samples.
struct BatchRun {
  // labels and ids: [blocks][16]. With one lane, those of its samples are contiguous.
  training::SampleInfo samples;
  int64_t blocks = 0;  // of all lanes
  absl::Span<const LaneBlocks> lanes;
  const float* weights = nullptr;  // flat
  float* gradient = nullptr;       // flat; null: forward only
  double loss_scale = 1;
  float* shared = nullptr;  // shared by all threads; not kept between nodes

  // Number of samples of a block.
  int64_t InBlock(int64_t block) const {
    for (const LaneBlocks& lane : lanes) {
      if (block >= lane.first + lane.count) continue;
      return std::min(lane.samples - (block - lane.first) * kSideBySide, kSideBySide);
    }
    return 0;
  }
};

// Work that is cut into pieces by shapes alone, in the order of the blocks if a piece belongs to
// some blocks. The next phase begins after all pieces are done, unless it `joins`: then it reads
// nothing of this phase.
struct Phase {
  int64_t scratch_bytes = 0;  // for each thread; not kept between pieces
  std::function<int64_t(const BatchRun& run)> pieces;
  std::function<void(const BatchRun& run, int64_t piece, char* scratch)> run;
  bool joins = false;
};

// The places of the tensors of a node, or of a run of nodes, and the loops that compute it.
struct NodePlaces {
  const BlockedMath* math = nullptr;
  std::vector<const float*> x;
  float* y = nullptr;
  std::vector<float*> saved;
  bool backward = false;
  float* dy = nullptr;  // backward may overwrite it, because no later step reads it
  struct Gradient {
    float* data = nullptr;  // null: not wanted
    bool add = false;
  };
  std::vector<Gradient> dx;
  std::vector<int64_t> parameters;  // offsets in the flat vectors
  // By input: the offset of a Parameter that the kernel reads from the weights instead of x, or -1.
  // Empty: all are -1.
  std::vector<int64_t> of_inputs;
  int64_t of_input(size_t input) const { return of_inputs.empty() ? -1 : of_inputs[input]; }
  int64_t max_blocks = 0;  // of all lanes
  int64_t max_lanes = 1;
};

// The phases made from a kernel. It owns `memory`: weights in its own layout, and copies.
struct NodePhases {
  std::string kernel;       // "direct, 8 x 3 tiles", for logs
  std::vector<Phase> load;  // after new weights
  std::vector<Phase> forward;
  std::vector<Phase> backward;
  std::vector<std::shared_ptr<AlignedBytes>> memory;
  int64_t weight_bytes = 0;   // part of `memory`
  int64_t scratch_bytes = 0;  // part of `memory`, not kept between phases
  int64_t shared_bytes = 0;   // how much of BatchRun::shared it needs
  bool one_lane = false;      // it cannot compute a batch of several lanes
};

// Kernels by operator: MakeConvPhases(), ... MakeReferencePhases computes any operator by its
// reference, slowly. ResourceExhausted: no memory.
#define CAPSTAN_DECLARE_KERNEL(op, kernel)                                                \
  absl::StatusOr<NodePhases> Make##kernel##Phases(const training::Graph& graph, int node, \
                                                  const NodePlaces& places);
CAPSTAN_OPERATORS(CAPSTAN_DECLARE_KERNEL)
#undef CAPSTAN_DECLARE_KERNEL

// Convolution, Relu and pooling: the run of nodes that begins at node `first`. `pool`: MaxPool or
// AveragePool.
FusionPattern ConvPoolPattern(const char* pool);
absl::StatusOr<NodePhases> MakeConvPoolPhases(const training::Graph& graph, int first,
                                              const NodePlaces& places);
// Dense layer and Relu.
FusionPattern GemmReluPattern();
absl::StatusOr<NodePhases> MakeGemmReluPhases(const training::Graph& graph, int first,
                                              const NodePlaces& places);

// Batch normalization, a sum with another value, and Relu. The run's first input is that of the
// normalization.
FusionPattern NormAddReluPattern();
absl::StatusOr<NodePhases> MakeNormAddReluPhases(const training::Graph& graph, int first,
                                                 const NodePlaces& places);
FusionPattern NormReluPattern();
absl::StatusOr<NodePhases> MakeNormReluPhases(const training::Graph& graph, int first,
                                              const NodePlaces& places);

// Whether the kernel of `node` reads a Parameter from the weights: the second factor of MatMul if
// it is one matrix, the table of Gather, and one input of Add, Sub, Mul and Div.
bool ReadsParameterFromWeights(const training::Graph& graph, int node, int input);

// The runs of nodes that one kernel computes.
const std::vector<FusionPattern>& FusedPatterns();
// The kernel of a step other than the loss. `pattern` is an index into FusedPatterns, or -1.
absl::StatusOr<NodePhases> MakeStepPhases(const training::Graph& graph, int first, int pattern,
                                          const NodePlaces& places);

// Memory of a kernel, added to `bytes`.
absl::StatusOr<float*> KernelMemory(NodePhases& phases, int64_t floats, int64_t& bytes);

// Sums over the lanes [first, first + count). `count` must be a power of two.
template <typename Compute>
bool SumOverNode(const BatchRun& run, const BlockedMath& math, int64_t floats, int64_t first,
                 int64_t count, float* to, float* scratch, const Compute& compute) {
  if (first >= static_cast<int64_t>(run.lanes.size())) return false;
  if (count == 1) {
    if (run.lanes[first].samples > 0) compute(run.lanes[first], to);
    return run.lanes[first].samples > 0;
  }
  const int64_t half = count / 2;
  if (!SumOverNode(run, math, floats, first, half, to, scratch, compute)) {
    return SumOverNode(run, math, floats, first + half, half, to, scratch, compute);
  }
  if (SumOverNode(run, math, floats, first + half, half, scratch, scratch + floats, compute)) {
    math.copy(floats, scratch, to, /*add=*/true);
  }
  return true;
}

// How many tiles of scratch SumOverLanes needs.
inline int64_t LaneTiles(int64_t max_lanes) {
  return std::bit_width(static_cast<uint64_t>(max_lanes - 1));
}

// Adds, in `to`, what `compute(lane, to)` writes for each lane that has samples, in the order of
// rule R1. A tile has `floats`, a multiple of 16. `scratch` has LaneTiles tiles. False: no lane has
// samples, and `to` is unchanged.
template <typename Compute>
bool SumOverLanes(const BatchRun& run, const BlockedMath& math, int64_t floats, float* to,
                  float* scratch, const Compute& compute) {
  return SumOverNode(run, math, floats, 0, std::bit_ceil(static_cast<uint64_t>(run.lanes.size())),
                     to, scratch, compute);
}

// Sums tiles over lanes, in the order of rule R1. With several lanes the sum is cut in two: a piece
// is a tile of the first or of the second half of the tree. So the thread that computed the blocks
// of a half also sums them.
class LaneHalves {
 public:
  static absl::StatusOr<std::shared_ptr<LaneHalves>> Make(NodePhases& phases, int64_t tiles,
                                                          int64_t tile_floats);

  static int64_t Count(const BatchRun& run) { return run.lanes.size() > 1 ? 2 : 1; }

  // Like SumOverLanes for one half. `to`: [tile_floats], gets the sum if there is only one half.
  // Returns the place of the sum over all lanes, or null if the caller that sums the other half
  // gets it.
  template <typename Compute>
  const float* Sum(const BatchRun& run, const BlockedMath& math, int64_t half, int64_t tile,
                   float* to, float* scratch, const Compute& compute) {
    if (Count(run) == 1) {
      SumOverLanes(run, math, tile_floats_, to, scratch, compute);
      return to;
    }
    const auto count = static_cast<int64_t>(std::bit_ceil(run.lanes.size()) / 2);
    Tile& of = tiles_[tile];
    float* const sums = memory_ + 2 * tile * tile_floats_;
    of.summed[half] = SumOverNode(run, math, tile_floats_, half * count, count,
                                  sums + half * tile_floats_, scratch, compute);
    if (of.done.fetch_add(1, std::memory_order_acq_rel) == 0) return nullptr;
    of.done.store(0, std::memory_order_relaxed);
    if (!of.summed[0]) return sums + tile_floats_;
    if (of.summed[1]) math.copy(tile_floats_, sums + tile_floats_, sums, /*add=*/true);
    return sums;
  }

 private:
  struct Tile {
    std::atomic<int> done = 0;  // finished halves
    bool summed[2] = {};        // whether the half has lanes with samples
  };
  LaneHalves(int64_t tiles, int64_t tile_floats, float* memory)
      : tile_floats_(tile_floats), memory_(memory), tiles_(static_cast<size_t>(tiles)) {}

  const int64_t tile_floats_;
  float* const memory_;  // [tiles][2][tile_floats]
  std::vector<Tile> tiles_;
};

inline std::function<int64_t(const BatchRun&)> FixedPieces(int64_t pieces) {
  return [pieces](const BatchRun&) { return pieces; };
}
inline int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_KERNEL_H_
