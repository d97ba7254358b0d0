// The CPU device's plan for any graph of operators, as phases over blocks of 16 samples.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_GRAPH_PLAN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_GRAPH_PLAN_H_

#include <atomic>
#include <memory>
#include <vector>

#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "gpu_worker/engine/cpu/thread_pool.h"
#include "gpu_worker/engine/device/device.h"
#include "gpu_worker/engine/plan/program.h"

namespace capstan::engine {

// The loss of one block.
struct LossSums {
  double loss = 0;
  int64_t correct = 0;
};

// The loss of the samples of a block at one position: a sequence has many, other samples one.
struct LossAtPosition {
  int64_t classes = 0;
  int64_t there = 0;                 // samples of the block
  bool last = false;                 // whose answer is compared with the label
  const float* logits = nullptr;     // [classes, 16]
  float* gradient = nullptr;         // the same; null: not wanted
  double targets[kSideBySide] = {};  // classes; -1: does not count
};

class GraphPlan : public Plan {
 public:
  // `offsets`: of every parameter of the graph in a flat vector of `total_floats`. `math` must
  // outlive the plan.
  static absl::StatusOr<std::unique_ptr<GraphPlan>> Create(const training::Graph& graph,
                                                           const std::vector<int64_t>& offsets,
                                                           int64_t total_floats,
                                                           const PlanOptions& options,
                                                           const BlockedMath& math);

  absl::Status LoadWeights(const float* weights) override;
  absl::StatusOr<LaneResult> ComputeLane(const SampleBatch& batch, double loss_scale,
                                         float* gradient) override;
  absl::Status ComputeLanes(absl::Span<const SampleBatch> lanes, double loss_scale, float* gradient,
                            absl::Span<LaneResult> results) override;
  absl::StatusOr<LaneResult> Evaluate(const SampleBatch& batch) override;
  absl::Status Predict(const SampleBatch& batch, float* logits) override;
  bool takes_bytes() const override { return true; }
  const PlanInfo& info() const override { return info_; }
  absl::Span<const KernelTime> kernel_times() const override { return times_; }

 private:
  GraphPlan(const training::Graph& graph, int64_t total_floats, const PlanOptions& options,
            const BlockedMath& math);
  absl::Status Build(const std::vector<int64_t>& offsets, const PlanOptions& options);
  // Whether some kernel computes one lane at a time.
  bool one_lane() const;
  absl::Status PlaceAll();
  NodePlaces PlacesOf(const ProgramStep& step, const std::vector<int64_t>& offsets) const;
  std::string NameOf(const ProgramStep& step) const;
  void FindReadyPrefixes(const std::vector<int64_t>& offsets);
  void SetTimes();
  absl::Status CheckBatch(const SampleBatch& batch, bool labels, int64_t most) const;
  // Places the lanes one after the other in the blocks.
  void SetBatch(absl::Span<const SampleBatch> lanes, bool training);
  // Forward over a batch for evaluation, in parts as large as memory allows. `visit` gets each
  // computed part and its first sample.
  template <typename Visit>
  void ForwardInParts(const SampleBatch& batch, Visit visit);
  void Forward();
  static void SkipElements(int64_t elements, SampleBatch& batch);
  // Writes the images of a block side by side, from floats or from bytes.
  void SetImages(int64_t block);
  void SetByteImages(int64_t block);
  void RunPhases(absl::Span<const Phase> phases);
  // Runs the phases between two barriers.
  void RunJoined(absl::Span<const Phase> phases);
  void RunShares(int worker);
  // Computes one block of the loss: its sums, and in training the gradient by the logits.
  void RunLoss(int64_t block);
  void RunSquaredError(int64_t block);
  // The place of a block's first logit, or of its gradient. Null: it is not wanted.
  const float* LogitsOf(int64_t block) const;
  float* GradientOf(int64_t block) const;
  // Where kernels are timed: sets `part` of a kernel to the time since the last lap.
  void Lap(size_t kernel, double KernelTime::*part);
  void SetTargets(int64_t block, int64_t position, LossAtPosition& at) const;
  // Adds to the loss of each sample and to the correct answers, and writes the gradient.
  void RunLossAt(const LossAtPosition& at, double* losses, LossSums& sums) const;
  void ClearTokenGradient(int64_t block);
  // Adds the sums of the lane's blocks in order.
  void AddSums(const LaneBlocks& lane, LaneResult& result) const;

  const training::Graph graph_;
  const int64_t total_floats_;
  const int64_t max_batch_;
  const int64_t max_lane_;
  const int64_t max_lanes_;
  const int64_t max_blocks_;   // that there is memory for
  const int64_t positions_;    // of the logits
  const int64_t target_size_;  // Graph::target_size
  const double label_smoothing_;
  bool random_ = false;  // some operator draws random numbers
  const BlockedMath& math_;
  PlanInfo info_;
  Program program_;
  AlignedBytes arena_;
  AlignedBytes weights_;  // flat, canonical
  AlignedBytes shared_;   // BatchRun::shared
  std::vector<float*> buffers_;
  std::vector<NodePhases> steps_;  // the loss has no entry
  Phase images_, loss_;
  std::vector<AlignedBytes> scratch_;  // by thread
  std::unique_ptr<ThreadPool> pool_;
  bool weights_loaded_ = false;
  // The images, steps_ and the loss. Empty: kernels are not timed.
  std::vector<KernelTime> times_;
  double lap_ = 0;  // the end of the last lap, in seconds

  // The current batch.
  BatchRun run_;
  std::vector<LaneBlocks> lanes_;
  std::vector<SampleBatch> images_of_;  // by block; images and targets from its first sample on
  std::vector<int32_t> labels_;         // by block and sample, like ids_
  std::vector<int64_t> ids_;
  std::vector<LossSums> sums_;  // by block
  // Every thread begins with its own share, the same in all phases with equally many pieces,
  // because the blocks that it wrote are still in its cache. Then it takes pieces that other
  // threads have not begun.
  struct alignas(64) Share {
    std::atomic<int64_t> next = 0;
    int64_t end = 0;
  };
  absl::Span<const Phase> joined_;
  int64_t sharing_ = 0;        // threads that share them
  std::vector<Share> shares_;  // by joined phase and thread
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_GRAPH_PLAN_H_
