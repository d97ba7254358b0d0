// Makes the walks of loop.h from shapes. Plain host code.
//
// Threads: stateless.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_LOOP_PLAN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_LOOP_PLAN_H_

#include <array>
#include <cstdint>
#include <vector>

#include "gpu_worker/engine/cuda/ops/loop.h"
#include "training/graph/graph.h"

namespace capstan::engine::cuda {

static_assert(kMostLoopAxes == training::kMaxAxes + 1);

// A tensor of a batch. It may be viewed along other axes than its own.
struct Strided {
  int64_t batch = 0;             // elements of a sample; 0: all samples have the same numbers
  std::vector<int64_t> strides;  // by axis of the sample
};

// A value whose image lies as NHWC if `channels_last`.
Strided StridedValue(const training::Shape& shape, bool channels_last);
// The same along the axes of `to`, to which the value is broadcast (training/ops/broadcast.h).
Strided BroadcastTo(const Strided& value, const training::Shape& shape, const training::Shape& to);

// A walk over n samples with `shape`. The places of tensor 0 rise where that is possible. Axes of
// one index are left out, and neighbouring axes become one if they are one run in all tensors.
// n 0: there is no batch.
template <int kTensors>
Loop<kTensors> MakeLoop(int64_t n, const training::Shape& shape,
                        const std::array<Strided, kTensors>& tensors);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_LOOP_PLAN_H_
