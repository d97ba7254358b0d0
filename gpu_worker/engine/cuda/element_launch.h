// Chooses the type of elements for a launch. Only for .cu files.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_ELEMENT_LAUNCH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_ELEMENT_LAUNCH_H_

#include <type_traits>

#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/launch.h"

namespace capstan::engine::cuda {

// Calls `launch` with a null pointer whose type is that of the elements.
template <typename Launch>
cudaError_t ForElement(Element e, Launch launch) {
  switch (e) {
    case Element::kFloat:
      launch(static_cast<float*>(nullptr));
      break;
    case Element::kBf16:
      launch(static_cast<Bf16*>(nullptr));
      break;
    case Element::kFp16:
      launch(static_cast<Fp16*>(nullptr));
      break;
  }
  return cudaGetLastError();
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_ELEMENT_LAUNCH_H_
