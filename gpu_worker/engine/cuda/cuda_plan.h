// A plan on a card: one piece of memory, three streams, and for each batch count the kernels and
// their captured graphs.
//
// In a call the batch goes through two pinned slots into the card's memory. The pass runs as one
// CUDA graph with two branches, because nothing in backward waits for gradients by parameters. The
// gradient is copied back in pieces on its own stream while backward still runs. The call returns
// when the caller has all of it. The first call of a (pass, count) launches its kernels one by one,
// which also loads them. The second call captures, and every further call replays without any
// allocation.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_PLAN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_PLAN_H_

#include <cuda_runtime.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/cuda_operations.h"
#include "gpu_worker/engine/cuda/group.h"
#include "gpu_worker/engine/cuda/operations.h"
#include "gpu_worker/engine/cuda/profile.h"
#include "gpu_worker/engine/cuda/program.h"
#include "gpu_worker/engine/cuda/rules.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine::cuda {

class CudaPlan {
 public:
  // ResourceExhausted, with the numbers; Unimplemented, by name; Internal: the card failed.
  static absl::StatusOr<std::unique_ptr<CudaPlan>> Create(const capstan_compile_request& request);
  ~CudaPlan();
  CudaPlan(const CudaPlan&) = delete;
  CudaPlan& operator=(const CudaPlan&) = delete;

  void Info(capstan_plan_info* info) const;
  absl::Status LoadWeights(const float* weights);
  // As Plan::KeepImages; may be called once per plan.
  absl::Status KeepImages(const float* images, int64_t first, int64_t count, int64_t whole);
  // kTrain uses `gradient` and `result`, kEvaluate `result`, kPredict `logits`.
  absl::Status Run(Pass pass, const capstan_batch& batch, double loss_scale, float* gradient,
                   float* logits, capstan_result* result);

  // ---- for a group (group.h) ----

  int device() const { return device_; }
  const CardProgram& program() const { return program_; }
  cudaStream_t stream() const { return context_.stream; }
  // The flat vectors on the card.
  float* weights() const { return reinterpret_cast<float*>(walk_->at(memory_.weights)); }
  float* gradient() const { return reinterpret_cast<float*>(walk_->at(memory_.gradient)); }
  // A training pass on stream(), which leaves the gradient on the card. It is one graph per bucket,
  // with hooks.on_bucket between them. Bucket b is final once stage bucket_stages[b] of backward is
  // done (the vector must be the same in every call). Returns after reading the batch, before the
  // work is done.
  absl::Status EnqueueLane(const capstan_batch& batch, double loss_scale,
                           const std::vector<int>& bucket_stages, const LaneHooks& hooks);
  // The sums of the last EnqueueLane. Its work must be done.
  capstan_result sums() const { return *host_sums_; }
  // weights() has changed: enqueues the work that depends on it.
  absl::Status UseWeights();
  // The card hangs. Nothing waits for it any more, so the plan must not be deleted.
  void Abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

 private:
  // A captured pass for one count.
  struct Captured {
    bool warm = false;  // ran once, kernel by kernel
    cudaGraphExec_t graph = nullptr;
    ~Captured() {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
  };
  struct CountKernels {
    std::unique_ptr<CudaOperations> ops;
    std::array<Captured, kGraphsPerCount> passes;
    // For EnqueueLane, by image type; one graph per piece of backward.
    struct {
      bool warm = false;
      std::vector<std::unique_ptr<Captured>> pieces;
    } lanes[kImageTypes];
  };

  CudaPlan(CardProgram program, const capstan_compile_request& request);
  absl::Status Build();
  absl::Status AllocateDevice();
  absl::Status AllocatePinned();
  std::vector<cudaEvent_t*> Events();  // all except piece_ready_
  absl::StatusOr<CountKernels*> KernelsOf(int64_t count);
  absl::Status CopyIn(const capstan_batch& batch, double loss_scale);
  // Copies a part of a batch through the slots.
  absl::Status CopyThroughSlots(const void* from, int64_t bytes, char* place);
  // Runs `launches` the first time, then as a captured graph.
  template <typename Launches>
  absl::Status Replay(Captured& captured, Launches launches);
  absl::Status EnqueueWeights(CudaOperations& ops);
  // `ops`, wrapped for timing if that was requested.
  Operations& Timed(CudaOperations& ops);
  absl::Status Launch(CountKernels& kernels, Pass pass, int64_t count, int image_type);
  absl::Status Enqueue(CudaOperations& ops, Pass pass, int64_t count, int image_type);
  absl::Status EnqueueLogits(int64_t count);
  // Enqueues the copy of a piece, which is final once the work now on `final_stream` is done.
  absl::Status EnqueueReadBack(size_t piece, cudaStream_t final_stream);
  // The pass of EnqueueLane. Calls `on_stage` at the end of each stage of backward.
  absl::Status WalkLane(CudaOperations& ops, int64_t count, int image_type,
                        const std::function<absl::Status(int)>& on_stage);
  absl::Status CaptureLane(CountKernels& kernels, int64_t count, int image_type,
                           const std::vector<int>& bucket_stages);
  // Whether images are copied directly to tensor 0.
  bool GoesStraight(int image_type) const {
    return image_type == CAPSTAN_IMAGE_FLOAT32 && !program_.input_nhwc &&
           (context_.element == Element::kFloat || program_.tensors[0].wide);
  }
  absl::Status CopyOut(Pass pass, int64_t count, float* gradient, float* logits,
                       capstan_result* result);
  absl::Status RunOnce(Pass pass, const capstan_batch& batch, double loss_scale, float* gradient,
                       float* logits, capstan_result* result);

  const CardProgram program_;
  const int device_;
  const int64_t max_batch_;
  MemoryPlan memory_;
  CudaContext context_;
  cudaStream_t copy_stream_ = nullptr;
  char* base_ = nullptr;  // memory_.total_bytes() on the card
  std::unique_ptr<Walk> walk_;

  // Pinned memory; the pointers below point into it.
  char* pinned_ = nullptr;
  char* slots_[2] = {nullptr, nullptr};
  char* header_ = nullptr;
  char* host_ids_ = nullptr;
  float* host_weights_ = nullptr;
  float* host_gradient_ = nullptr;
  float* host_logits_ = nullptr;
  capstan_result* host_sums_ = nullptr;

  cudaEvent_t slot_free_[2] = {nullptr, nullptr};
  cudaEvent_t weights_sent_ = nullptr;
  Captured weights_graph_, use_weights_graph_;
  char* kept_ = nullptr;  // from KeepImages, on the card
  int64_t kept_images_ = 0;
  std::vector<ReadBack> read_back_;
  std::vector<cudaEvent_t> piece_ready_;
  cudaEvent_t copies_done_ = nullptr;

  std::unique_ptr<CountCache<std::unique_ptr<CountKernels>>> counts_;
  std::string kernels_;               // for max_batch, for logs
  std::unique_ptr<Profile> profile_;  // CAPSTAN_CUDA_PROFILE: times every operation
  bool abandoned_ = false;
  absl::Status broken_;  // the card has failed, so the plan cannot be used any more
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_PLAN_H_
