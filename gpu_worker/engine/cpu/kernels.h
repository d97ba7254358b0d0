// Own kernels of the CPU device: pooling, Relu, permutation, loss. On tensors of one block,
// float32.
//
// The same source is compiled for several instruction sets and one is chosen at start; without
// contraction all of them give the same bits. NaN in, NaN out: no kernel drops a NaN of a forward
// value. Threads: stateless.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_KERNELS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_KERNELS_H_

#include <cstdint>

#include "gpu_worker/engine/cpu/lowering.h"

namespace capstan::engine {

// x [n, in_h, in_w, channels] to y [n, out_h, out_w, channels].
void PoolForward(const PoolGeometry& geometry, int64_t n, const float* x, float* y);

// dx from dy and the input of the forward pass. The gradient of a maximum goes to the first of
// equal ones. For geometry.two_by_two(), dx may be x.
void PoolBackward(const PoolGeometry& geometry, int64_t n, const float* x, const float* dy,
                  float* dx);

// The same without AVX-512: the same bits, but for those of a NaN.
void PoolForwardPortable(const PoolGeometry& geometry, int64_t n, const float* x, float* y);
void PoolBackwardPortable(const PoolGeometry& geometry, int64_t n, const float* x, const float* dy,
                          float* dx);

// x = max(x, 0).
void ReluForward(int64_t size, float* x);
// dy = y > 0 ? dy : 0.
void ReluBackward(int64_t size, const float* y, float* dy);

// [n, pixels, channels] to [n, channels, pixels], and back.
void NhwcToNchw(const PermuteGeometry& geometry, int64_t n, const float* x, float* y);
void NchwToNhwc(const PermuteGeometry& geometry, int64_t n, const float* x, float* y);

// `n` images of a batch to [n, height, width, channels].
void LoadImages(const InputGeometry& geometry, int64_t n, const float* images, float* x);

struct LossSums {
  double loss = 0;
  int64_t correct = 0;
  double forward_seconds = 0;  // what the passes of the block took
  double backward_seconds = 0;
};

// Softmax cross-entropy of `n` rows of `logits`, labels in [0, classes). Where `gradient` is not
// null it becomes (softmax - one hot) * scale; it may be `logits`.
LossSums SoftmaxCrossEntropy(int64_t n, int64_t classes, const float* logits, const int32_t* labels,
                             double scale, float* gradient);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_KERNELS_H_
