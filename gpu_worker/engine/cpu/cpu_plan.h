// A plan of the CPU device: see cpu_device.h for how a lane is cut.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_PLAN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_PLAN_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gpu_worker/engine/cpu/aligned.h"
#include "gpu_worker/engine/cpu/block_program.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/cpu/thread_pool.h"
#include "gpu_worker/engine/device/device.h"
#include "services/sync/mutex.h"

namespace capstan::engine {

class CpuPlan : public Plan {
 public:
  // `offsets`: of every parameter of the graph in a flat vector of `total_floats`.
  static absl::StatusOr<std::unique_ptr<CpuPlan>> Create(const training::Graph& graph,
                                                         const std::vector<int64_t>& offsets,
                                                         int64_t total_floats,
                                                         const PlanOptions& options,
                                                         bool use_onednn);

  absl::Status LoadWeights(const float* weights) override;
  absl::StatusOr<LaneResult> ComputeLane(const SampleBatch& batch, double loss_scale,
                                         float* gradient) override;
  absl::StatusOr<LaneResult> Evaluate(const SampleBatch& batch) override;
  absl::Status Predict(const SampleBatch& batch, float* logits) override;
  const PlanInfo& info() const override { return info_; }

 private:
  // A block's gradient: filled by one worker, added by any.
  struct GradientBuffer {
    float* data = nullptr;
    int64_t block = -1;  // that it was last filled for
  };
  struct Worker {
    AlignedBytes arena;
    AlignedBytes gradient_memory;
    // Two, so that a worker need not wait for an earlier block of another one.
    std::array<GradientBuffer, 2> gradients;
    int next_gradient = 0;
    std::vector<std::unique_ptr<BlockRunner>> runners;  // by kBlockSizes; null where not needed
  };
  // The lane that is being computed.
  struct Job {
    PassMode mode = PassMode::kTrain;
    SampleBatch batch;
    double loss_scale = 1;
    float* gradient = nullptr;
    float* logits = nullptr;
    int64_t blocks = 0;
  };

  CpuPlan(int64_t total_floats, int64_t max_batch)
      : total_floats_(total_floats), max_batch_(max_batch) {}
  absl::Status Build(const training::Graph& graph, const std::vector<int64_t>& offsets,
                     const PlanOptions& options, bool use_onednn);
  void FindReadyPrefixes(const std::vector<int64_t>& offsets, const training::Graph& graph);
  absl::Status CheckBatch(const SampleBatch& batch, bool labels) const;
  // Index into kBlockSizes for a block of `count` samples.
  static int SizeIndex(int64_t count);
  absl::Status PrepareWeights(int64_t count);
  absl::StatusOr<LaneResult> RunLane(const Job& job);
  void WorkOn(int worker);
  // Adds the blocks whose turn has come, unless somebody else is at it.
  void AddFinished() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t total_floats_;
  const int64_t max_batch_;
  PlanInfo info_;
  Lowered lowered_;
  std::vector<StageParameters> parameters_;  // by stage
  std::array<std::unique_ptr<BlockProgram>, kBlockSizes.size()> programs_;
  std::array<bool, kBlockSizes.size()> weights_current_ = {};
  AlignedBytes weights_;  // flat, canonical
  bool weights_loaded_ = false;
  std::vector<Worker> workers_;
  std::unique_ptr<ThreadPool> pool_;

  Job job_;  // written before the workers start
  Mutex mu_;
  CondVar progress_;
  int64_t next_block_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_add_ ABSL_GUARDED_BY(mu_) = 0;  // all blocks before it are in the gradient
  bool adding_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mu_);
  std::vector<const float*> finished_ ABSL_GUARDED_BY(mu_);  // by block; null until it is done
  std::vector<LossSums> sums_ ABSL_GUARDED_BY(mu_);          // by block
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_PLAN_H_
