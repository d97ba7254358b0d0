// The streams of a group on cards: CUDA's own, peer copies, and NCCL if sums may come in any order.
// No card has run this yet.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_STREAMS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_STREAMS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/cuda_plan.h"
#include "gpu_worker/engine/cuda/group.h"

namespace capstan::engine::cuda {

// Borrows the plans. `summary` tells people how it sums. Unavailable: NCCL is missing.
absl::StatusOr<std::unique_ptr<GroupStreams>> MakeCudaStreams(std::vector<CudaPlan*> plans,
                                                              std::vector<int64_t> bucket_ends,
                                                              bool deterministic,
                                                              std::string* summary);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_STREAMS_H_
