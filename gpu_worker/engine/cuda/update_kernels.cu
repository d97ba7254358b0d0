// The optimizer on a card. Built with --fmad=false: a product and a sum are rounded one by one, as
// on the host.
#include <algorithm>
#include <cfloat>

#include "gpu_worker/engine/cuda/kernels.h"
#include "training/optim/sgd_rule.h"

namespace capstan::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 4096;

unsigned Blocks(int64_t elements) {
  return static_cast<unsigned>(
      std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}

__global__ void CheckFiniteKernel(int64_t elements, const float* values, int32_t* flag) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += stride) {
    // Also false of a NaN. Every thread that stores stores the same.
    if (!(fabsf(values[i]) <= FLT_MAX)) *flag = 1;
  }
}

template <bool kDecay, bool kMomentum, bool kNesterov>
__global__ void SgdKernel(int64_t elements, const float* gradient, float scale,
                          training::SgdConstants constants, float* weights, float* momentum) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += stride) {
    float v = kMomentum ? momentum[i] : 0.0f;
    // A factor of 1 changes no bit of a finite number.
    weights[i] = training::SgdUpdate<kDecay, kMomentum, kNesterov>(weights[i], gradient[i] * scale,
                                                                   v, constants);
    if (kMomentum) momentum[i] = v;
  }
}

}  // namespace

cudaError_t LaunchCheckFinite(cudaStream_t stream, int64_t elements, const float* values,
                              int32_t* flag) {
  CheckFiniteKernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, values, flag);
  return cudaGetLastError();
}

cudaError_t LaunchSgd(cudaStream_t stream, const capstan_sgd& sgd, int64_t elements,
                      const float* gradient, float* weights, float* momentum) {
  const training::SgdConstants constants = {static_cast<float>(sgd.momentum),
                                            static_cast<float>(sgd.weight_decay),
                                            static_cast<float>(sgd.learning_rate)};
  const auto scale = static_cast<float>(sgd.gradient_scale);
  const bool decay = sgd.weight_decay > 0;
  auto* kernel = decay ? SgdKernel<true, false, false> : SgdKernel<false, false, false>;
  if (sgd.momentum > 0 && sgd.nesterov != 0) {
    kernel = decay ? SgdKernel<true, true, true> : SgdKernel<false, true, true>;
  } else if (sgd.momentum > 0) {
    kernel = decay ? SgdKernel<true, true, false> : SgdKernel<false, true, false>;
  }
  kernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, gradient, scale, constants, weights,
                                                    momentum);
  return cudaGetLastError();
}

}  // namespace capstan::engine::cuda
