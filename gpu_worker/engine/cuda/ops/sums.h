// Describes sums over axes for LaunchSum.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_SUMS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_SUMS_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/engine/cuda/ops/loop_plan.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"

namespace capstan::engine::cuda {

// The tensors of a sum, each viewed along the same axes.
struct SumTensors {
  Strided to, p, q, r;
};

// A tensor that is not there.
inline Strided NoTensor(const training::Shape& shape) {
  return {0, std::vector<int64_t>(shape.size(), 0)};
}

// Sums over the axes of `shape` that are `summed`, and over the n samples if `batch`.
inline SumWork MakeSum(int64_t n, const training::Shape& shape, const std::vector<bool>& summed,
                       const SumTensors& of, bool batch = false) {
  training::Shape outer = shape, inner = shape;
  for (size_t i = 0; i < shape.size(); ++i) (summed[i] ? outer : inner)[i] = 1;
  SumWork work;
  work.outer = MakeLoop<4>(batch ? 0 : n, outer, {of.to, of.p, of.q, of.r});
  work.inner = MakeLoop<3>(batch ? n : 0, inner, {of.p, of.q, of.r});
  return work;
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_SUMS_H_
