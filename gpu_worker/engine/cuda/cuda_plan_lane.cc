// CudaPlan::EnqueueLane: a lane whose gradient stays on the card, for groups.
//
// There is a graph per bucket instead of one for all, because the events between them are ordinary
// ones, for which other streams and other cards wait. (An event recorded inside a graph might work,
// too. What a wait for it sees before the graph has run was not tried on a card.)
#include <utility>

#include "gpu_worker/engine/cuda/cuda_plan.h"
#include "gpu_worker/engine/cuda/cuda_status.h"

namespace capstan::engine::cuda {

absl::Status CudaPlan::WalkLane(CudaOperations& ops, int64_t count, int image_type,
                                const std::function<absl::Status(int)>& on_stage) {
  walk_->Forward(ops, count, GoesStraight(image_type) ? -1 : image_type, /*training=*/true);
  walk_->Loss(ops, count, /*gradient=*/true);
  ops.set_on_stage_done(on_stage);
  walk_->Backward(ops, count);
  ops.set_on_stage_done(nullptr);
  return ops.TakeStatus();
}

absl::Status CudaPlan::EnqueueLane(const capstan_batch& batch, double loss_scale,
                                   const std::vector<int>& bucket_stages, const LaneHooks& hooks) {
  if (!broken_.ok()) return broken_;
  CAPSTAN_CUDA_RETURN(UseDevice(device_));
  const absl::StatusOr<CountKernels*> kernels = KernelsOf(batch.count);
  if (!kernels.ok()) return kernels.status();
  absl::Status status = (*kernels)->ops->PrepareBackward();
  if (status.ok()) status = CopyIn(batch, loss_scale);
  if (status.ok()) status = hooks.before_compute();
  if (!status.ok()) return status;
  const int buckets = static_cast<int>(bucket_stages.size());
  int next = 0;  // bucket
  auto& lane = (*kernels)->lanes[batch.image_type];
  if (!lane.warm) {
    // Runs kernel by kernel, which also loads the kernels.
    lane.warm = true;
    status = WalkLane(*(*kernels)->ops, batch.count, batch.image_type, [&](int stage) {
      absl::Status said;
      // Streams that wait for a bucket wait for this stream.
      if (next < buckets && bucket_stages[next] == stage) said = (*kernels)->ops->Join();
      while (said.ok() && next < buckets && bucket_stages[next] == stage) {
        said = hooks.on_bucket(next++);
      }
      return said;
    });
  } else {
    if (lane.pieces.empty()) {
      status = CaptureLane(**kernels, batch.count, batch.image_type, bucket_stages);
      if (!status.ok()) return status;
    }
    for (const std::unique_ptr<Captured>& piece : lane.pieces) {
      CAPSTAN_CUDA_RETURN(cudaGraphLaunch(piece->graph, context_.stream));
      if (&piece == &lane.pieces.back()) break;
      const int stage = bucket_stages[next];
      while (status.ok() && bucket_stages[next] == stage) status = hooks.on_bucket(next++);
      if (!status.ok()) return status;
    }
  }
  while (status.ok() && next < buckets) status = hooks.on_bucket(next++);
  return status;
}

absl::Status CudaPlan::CaptureLane(CountKernels& kernels, int64_t count, int image_type,
                                   const std::vector<int>& bucket_stages) {
  std::vector<std::unique_ptr<Captured>> pieces;
  const auto begin = [this]() -> absl::Status {
    CAPSTAN_CUDA_RETURN(cudaStreamBeginCapture(context_.stream, cudaStreamCaptureModeThreadLocal));
    return absl::OkStatus();
  };
  const auto end = [this, &pieces]() -> absl::Status {
    cudaGraph_t graph = nullptr;
    CAPSTAN_CUDA_RETURN(cudaStreamEndCapture(context_.stream, &graph));
    auto piece = std::make_unique<Captured>();
    const cudaError_t made = cudaGraphInstantiate(&piece->graph, graph, 0);
    cudaGraphDestroy(graph);
    CAPSTAN_CUDA_RETURN(made);
    pieces.push_back(std::move(piece));
    return absl::OkStatus();
  };
  absl::Status status = begin();
  if (!status.ok()) return status;
  bool capturing = true;
  size_t next = 0;
  status = WalkLane(*kernels.ops, count, image_type, [&](int stage) -> absl::Status {
    // The last piece continues to the end of the pass.
    if (bucket_stages[next] != stage || stage == bucket_stages.back()) return absl::OkStatus();
    while (bucket_stages[next] == stage) ++next;
    absl::Status said = kernels.ops->Join();
    if (!said.ok()) return said;
    capturing = false;
    said = end();
    if (said.ok()) said = begin();
    capturing = said.ok();
    return said;
  });
  if (status.ok()) {
    status = end();
  } else if (capturing) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(context_.stream, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();  // clears the error about an unjoined branch, a result of this one
  }
  if (status.ok()) kernels.lanes[image_type].pieces = std::move(pieces);
  return status;
}

}  // namespace capstan::engine::cuda
