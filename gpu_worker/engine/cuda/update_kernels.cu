// The optimizer on a card. Built with --fmad=false, so that products and sums are rounded
// separately, as on the host.
#include <cfloat>
#include <cmath>

#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/launch.h"
#include "training/optim/sgd_rule.h"

namespace capstan::engine::cuda {
namespace {

__global__ void CheckFiniteKernel(int64_t elements, const float* values, int32_t* flag) {
  ForElements(elements, [&](int64_t i) {
    // The comparison is also false for a NaN. All threads that store a value store the same one.
    if (!(fabsf(values[i]) <= FLT_MAX)) *flag = 1;
  });
}

template <bool kDecay, bool kMomentum, bool kNesterov>
__global__ void SgdKernel(int64_t elements, const float* gradient, float scale,
                          training::SgdConstants constants, float* weights, float* momentum) {
  ForElements(elements, [&](int64_t i) {
    float v = kMomentum ? momentum[i] : 0.0f;
    // A factor of 1 changes no bit of a finite number, so `scale` is always applied.
    weights[i] = training::SgdUpdate<kDecay, kMomentum, kNesterov>(weights[i], gradient[i] * scale,
                                                                   v, constants);
    if (kMomentum) momentum[i] = v;
  });
}

}  // namespace

cudaError_t LaunchCheckFinite(cudaStream_t stream, int64_t elements, const float* values,
                              int32_t* flag) {
  Launch(CheckFiniteKernel, Blocks(elements), stream, elements, values, flag);
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
  Launch(kernel, Blocks(elements), stream, elements, gradient, scale, constants, weights, momentum);
  return cudaGetLastError();
}

}  // namespace capstan::engine::cuda
