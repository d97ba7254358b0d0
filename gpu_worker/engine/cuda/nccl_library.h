// NCCL, opened when the first group needs it. It takes 200 MB, which one GPU, or sums by peer
// copies, do not need.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_NCCL_LIBRARY_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_NCCL_LIBRARY_H_

#include <nccl.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan::engine::cuda {

struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclCommInitAll) comm_init_all = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;

  absl::Status ToStatus(const char* call, ncclResult_t result) const;
};

// Opens libnccl.so.2, which stays loaded. Unavailable, in one sentence: it is missing, or lacks a
// function. Thread-safe.
absl::StatusOr<const NcclLibrary*> LoadNccl(const char* file = "libnccl.so.2");

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_NCCL_LIBRARY_H_
