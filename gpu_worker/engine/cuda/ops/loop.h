// Walks over several tensors by strides, for kernels that move or sum numbers. A place of the walk
// is computed from its number alone, so any thread can take any place. loop_plan.h makes them.
//
// Plain code for host and cards. Indices are int32, because program.h refuses larger tensors.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_LOOP_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_LOOP_H_

#include <cstdint>

#include "gpu_worker/engine/cuda/half16.h"

namespace capstan::engine::cuda {

// The batch and training::kMaxAxes axes of a sample.
inline constexpr int kMostLoopAxes = 17;

// The index of the last axis runs fastest.
template <int kTensors>
struct Loop {
  int32_t axes = 0;
  int32_t elements = 1;
  int32_t size[kMostLoopAxes] = {};
  int32_t stride[kTensors][kMostLoopAxes] = {};
};

// Adds to at[t] how far element i lies from the first one in tensor t.
template <int kTensors>
CAPSTAN_HD void AddPlaces(const Loop<kTensors>& loop, int32_t i, int32_t (&at)[kTensors]) {
  for (int32_t axis = loop.axes - 1; axis >= 0; --axis) {
    const int32_t index = i % loop.size[axis];
    i /= loop.size[axis];
    for (int t = 0; t < kTensors; ++t) at[t] += index * loop.stride[t][axis];
  }
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_LOOP_H_
