// The 2x2 pooling of kernels.h in AVX-512: a vector holds channels of one pixel, the last one
// masked.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_POOL_AVX512_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_POOL_AVX512_H_

#include <cstdint>

#include "gpu_worker/engine/cpu/lowering.h"

namespace capstan::engine {

// Whether this processor and this build have it.
bool HasPoolAvx512();

// As PoolForward and PoolBackward, for geometry.two_by_two() only; the same bits as the portable
// kernel.
void PoolForwardAvx512(const PoolGeometry& geometry, int64_t n, const float* x, float* y);
void PoolBackwardAvx512(const PoolGeometry& geometry, int64_t n, const float* x, const float* dy,
                        float* dx);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_POOL_AVX512_H_
