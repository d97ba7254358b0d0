// A lowered graph compiled for blocks of one size, and a thread's runner of it.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCK_PROGRAM_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCK_PROGRAM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gpu_worker/engine/cpu/arena.h"
#include "gpu_worker/engine/cpu/kernels.h"
#include "gpu_worker/engine/cpu/linear.h"
#include "gpu_worker/engine/cpu/lowering.h"

namespace capstan::engine {

// Offset in floats of the weight and the bias of a stage in the flat vector; -1 where it has none.
struct StageParameters {
  int64_t weight = -1;
  int64_t bias = -1;
};

enum class PassMode { kTrain, kEvaluate, kPredict };

// `count` samples of a lane: 1 to the size of the block. The rest of the block is padding: zeros
// in, and nothing of it comes out.
struct BlockInput {
  const float* images = nullptr;
  const int32_t* labels = nullptr;
  int64_t count = 0;
  double loss_scale = 1;  // kTrain
  float* gradient =
      nullptr;              // kTrain: flat, every parameter is overwritten, padding is not touched
  float* logits = nullptr;  // kPredict: [count, classes]
};

// The buffers and bound kernels of one thread. Calls must not overlap.
class BlockRunner {
 public:
  // After the kernels have their weights.
  absl::Status Run(PassMode mode, const BlockInput& input, LossSums& sums);

 private:
  friend class BlockProgram;
  struct TensorPlace {
    float* value = nullptr;
    float* gradient = nullptr;
  };
  BlockRunner() = default;
  absl::Status Forward(const Stage& stage, LinearCalls* calls);
  absl::Status Backward(int stage, float* gradient);

  const Lowered* lowered_ = nullptr;
  const std::vector<StageParameters>* parameters_ = nullptr;
  int64_t batch_ = 0;
  std::vector<TensorPlace> places_;
  std::vector<std::unique_ptr<LinearCalls>> calls_;  // by stage; null where it has no weights
};

// Immutable but for LoadWeights. Runners of one program may run at the same time.
class BlockProgram {
 public:
  // `lowered` and `parameters` (by stage) must outlive the program. `use_onednn` false: plain loops
  // only.
  static absl::StatusOr<std::unique_ptr<BlockProgram>> Create(
      const Lowered& lowered, const std::vector<StageParameters>& parameters, int64_t batch,
      bool use_onednn);

  int64_t batch() const { return batch_; }
  int64_t arena_bytes() const { return arena_bytes_; }
  int64_t weight_bytes() const;
  // "conv1 forward: jit:avx512_core".
  std::vector<std::string> Describe() const;

  // `weights` is the flat vector. No runner may run meanwhile.
  absl::Status LoadWeights(const float* weights);

  // A runner on arena_bytes() at `arena`, aligned to 64 and zeroed; the program must outlive it.
  absl::StatusOr<std::unique_ptr<BlockRunner>> Bind(char* arena);

 private:
  BlockProgram(const Lowered& lowered, const std::vector<StageParameters>& parameters,
               int64_t batch)
      : lowered_(lowered), parameters_(parameters), batch_(batch) {}
  void PlanArena();

  const Lowered& lowered_;
  const std::vector<StageParameters>& parameters_;
  const int64_t batch_;
  std::vector<std::unique_ptr<LinearKernel>> kernels_;  // by stage
  std::vector<ArenaBuffer> values_, gradients_;         // by tensor
  ArenaBuffer scratch_;
  int64_t arena_bytes_ = 0;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCK_PROGRAM_H_
