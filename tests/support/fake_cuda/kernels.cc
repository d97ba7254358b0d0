// The plug-in's kernels as functions of the CPU.
#include <utility>

#include "gpu_worker/engine/cuda/launch.h"
#include "tests/support/fake_cuda/fake_cuda.h"

// They are sources for nvcc, but without it they are valid C++.
#include "gpu_worker/engine/cuda/kernels.cu"            // NOLINT(bugprone-suspicious-include)
#include "gpu_worker/engine/cuda/ops/index_kernels.cu"  // NOLINT(bugprone-suspicious-include)
#include "gpu_worker/engine/cuda/ops/norm_kernels.cu"   // NOLINT(bugprone-suspicious-include)
#include "gpu_worker/engine/cuda/ops/walk_kernels.cu"   // NOLINT(bugprone-suspicious-include)
#include "gpu_worker/engine/cuda/update_kernels.cu"     // NOLINT(bugprone-suspicious-include)

namespace capstan::engine::cuda {

void LaunchOnHost(cudaStream_t stream, unsigned blocks,
                  std::initializer_list<const volatile void*> pointers,
                  std::function<void(unsigned block)> run_block) {
  const int device = fake_cuda::DeviceOf(stream);
  int current = -1;
  cudaGetDevice(&current);
  cudaError_t error = cudaSuccess;
  if (blocks == 0) error = cudaErrorInvalidConfiguration;
  if (device < 0 || device != current) error = cudaErrorInvalidResourceHandle;
  for (const volatile void* const pointer : pointers) {
    if (pointer == nullptr) continue;
    if (!fake_cuda::Reaches(device, const_cast<const void*>(pointer), 1,
                            "what a kernel is given")) {
      error = cudaErrorIllegalAddress;
    }
  }
  if (error != cudaSuccess) {
    fake_cuda::Fail(error,
                    "a kernel is launched with no block, on another device, or with memory "
                    "that is not there");
    return;
  }
  fake_cuda::Enqueue(stream, [blocks, run_block = std::move(run_block)] {
    for (unsigned block = 0; block < blocks; ++block) run_block(block);
  });
}

}  // namespace capstan::engine::cuda
