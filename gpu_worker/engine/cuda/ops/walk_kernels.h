// Kernels that fill, copy, combine and sum tensors by strides (loop.h), as functions that launch
// them on a stream. Every function returns the result of its launch.
//
// Elements have the type `e`. `add`: the result is added to what is there, else it is stored.
// Sums are float32 in a fixed order.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_WALK_KERNELS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_WALK_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/ops/loop.h"
#include "gpu_worker/engine/cuda/ops/walk_math.h"

namespace capstan::engine::cuda {

cudaError_t LaunchFill(cudaStream_t stream, Element e, int64_t elements, float value, void* x);

// to (+)= factor * from. Tensors of the loop: to, from. The first elements are `to_first` and
// `from_first` elements further. `float_source`: from is float32 in every precision.
struct CopyWork {
  Loop<2> loop;
  int64_t to_first = 0, from_first = 0;
  float factor = 1;
  bool add = false;
  bool float_source = false;
};
cudaError_t LaunchCopy(cudaStream_t stream, Element e, const CopyWork& work, const void* from,
                       void* to);

// y = f(a, b). Tensors of the loop: y, a, b.
cudaError_t LaunchBinary(cudaStream_t stream, Element e, Binary f, const Loop<3>& loop,
                         const void* a, const void* b, void* y);

// For each place of `outer` (tensors: to, p, q, r): to (+)= factor * the sum over `inner` (p, q, r)
// of the terms. q and r may be null if the term does not read them. `float_target`: to is float32
// in every precision.
struct SumWork {
  Loop<4> outer;
  Loop<3> inner;
  SumTerm term = SumTerm::kP;
  float factor = 1;
  bool add = false;
  bool float_target = false;
};
cudaError_t LaunchSum(cudaStream_t stream, Element e, const SumWork& work, const void* p,
                      const void* q, const void* r, void* to);

cudaError_t LaunchUnary(cudaStream_t stream, Element e, const UnaryFunction& f, int32_t elements,
                        const void* x, void* y);
// dx (+)= slope * dy, with the slope from x or y (SlopeReadsY).
cudaError_t LaunchUnaryBackward(cudaStream_t stream, Element e, const UnaryFunction& f, bool add,
                                int32_t elements, const void* from, const void* dy, void* dx);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_WALK_KERNELS_H_
