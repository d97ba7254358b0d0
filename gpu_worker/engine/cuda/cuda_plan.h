// A plan on a card: one piece of memory, three streams, the kernels of each batch count and their
// captured graphs.
//
// A call: the batch goes through two pinned slots into the card's memory, the pass runs as one CUDA
// graph with two branches, for nothing in backward waits for gradients by parameters; the gradient
// comes back in pieces on a stream of its own while backward still runs, and the call returns when
// all of it is with the caller. The first call of a (pass, count) launches its kernels one by one,
// which also loads them; the second captures, every further one replays. Nothing is allocated then.
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
  // As Plan::KeepImages; once per plan.
  absl::Status KeepImages(const float* images, int64_t first, int64_t count, int64_t whole);
  // kTrain: `gradient` and `result`; kEvaluate: `result`; kPredict: `logits`.
  absl::Status Run(Pass pass, const capstan_batch& batch, double loss_scale, float* gradient,
                   float* logits, capstan_result* result);

  // ---- for a group (group.h) ----

  int device() const { return device_; }
  const Program& program() const { return program_; }
  cudaStream_t stream() const { return context_.stream; }
  // The flat vectors on the card.
  float* weights() const { return reinterpret_cast<float*>(walk_->at(memory_.weights)); }
  float* gradient() const { return reinterpret_cast<float*>(walk_->at(memory_.gradient)); }
  // A training pass on stream(), which leaves the gradient on the card, as one graph per bucket:
  // hooks.on_bucket stands between them, and bucket b is final where stage bucket_stages[b] of
  // backward is done (the same vector in every call). Returns before the work is done; the batch
  // has been read.
  absl::Status EnqueueLane(const capstan_batch& batch, double loss_scale,
                           const std::vector<int>& bucket_stages, const LaneHooks& hooks);
  // Of the last EnqueueLane, once its work is done.
  capstan_result sums() const { return *host_sums_; }
  // weights() has changed: enqueues what follows from it.
  absl::Status UseWeights();
  // The card hangs: nothing is waited for any more, so the plan may not be deleted.
  void Abandon() { abandoned_ = true; }
  bool abandoned() const { return abandoned_; }

 private:
  // A pass of a count that was captured.
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
    // Of EnqueueLane, by image type; one per piece of backward.
    struct {
      bool warm = false;
      std::vector<std::unique_ptr<Captured>> pieces;
    } lanes[kImageTypes];
  };

  CudaPlan(Program program, const capstan_compile_request& request);
  absl::Status Build();
  absl::Status AllocateDevice();
  absl::Status AllocatePinned();
  std::vector<cudaEvent_t*> Events();  // all but piece_ready_
  absl::StatusOr<CountKernels*> KernelsOf(int64_t count);
  absl::Status CopyIn(const capstan_batch& batch, double loss_scale);
  // Runs `launches` the first time, then as a captured graph.
  template <typename Launches>
  absl::Status Replay(Captured& captured, Launches launches);
  absl::Status EnqueueWeights(CudaOperations& ops);
  // `ops`, timed where that is asked for.
  Operations& Timed(CudaOperations& ops);
  absl::Status Launch(CountKernels& kernels, Pass pass, int64_t count, int image_type);
  absl::Status Enqueue(CudaOperations& ops, Pass pass, int64_t count, int image_type);
  // The piece is final behind what is on `final_stream`.
  absl::Status EnqueueReadBack(size_t piece, cudaStream_t final_stream);
  // The pass of EnqueueLane; `on_stage` at the end of each stage of backward.
  absl::Status WalkLane(CudaOperations& ops, int64_t count, int image_type,
                        const std::function<absl::Status(int)>& on_stage);
  absl::Status CaptureLane(CountKernels& kernels, int64_t count, int image_type,
                           const std::vector<int>& bucket_stages);
  // Whether images are copied to tensor 0 as they come.
  bool GoesStraight(int image_type) const {
    return image_type == CAPSTAN_IMAGE_FLOAT32 && !program_.input_nhwc &&
           context_.element == Element::kFloat;
  }
  absl::Status CopyOut(Pass pass, int64_t count, float* gradient, float* logits,
                       capstan_result* result);
  absl::Status RunOnce(Pass pass, const capstan_batch& batch, double loss_scale, float* gradient,
                       float* logits, capstan_result* result);

  const Program program_;
  const int device_;
  const int64_t max_batch_;
  MemoryPlan memory_;
  CudaContext context_;
  cudaStream_t copy_stream_ = nullptr;
  char* base_ = nullptr;  // memory_.total_bytes() on the card
  std::unique_ptr<Walk> walk_;

  // Pinned; parts of one piece.
  char* pinned_ = nullptr;
  char* slots_[2] = {nullptr, nullptr};
  char* header_ = nullptr;
  float* host_weights_ = nullptr;
  float* host_gradient_ = nullptr;
  float* host_logits_ = nullptr;
  capstan_result* host_sums_ = nullptr;

  cudaEvent_t slot_free_[2] = {nullptr, nullptr};
  cudaEvent_t weights_sent_ = nullptr;
  Captured weights_graph_, use_weights_graph_;
  char* kept_ = nullptr;  // of KeepImages, on the card
  int64_t kept_images_ = 0;
  std::vector<ReadBack> read_back_;
  std::vector<cudaEvent_t> piece_ready_;
  cudaEvent_t copies_done_ = nullptr;

  std::unique_ptr<CountCache<std::unique_ptr<CountKernels>>> counts_;
  std::string kernels_;               // of max_batch, for logs
  std::unique_ptr<Profile> profile_;  // CAPSTAN_CUDA_PROFILE: every operation is timed
  bool abandoned_ = false;
  absl::Status broken_;  // the card has failed: the plan is of no further use
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_PLAN_H_
