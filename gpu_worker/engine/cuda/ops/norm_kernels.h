// Kernels of normalisations and of softmax, as functions that launch them on a stream. Every
// function returns the result of its launches.
//
// Elements have the type `e`; parameters, statistics and sums are float32. Sums over rows are cut
// into kSumParts parts and added in a fixed order. `parts` is scratch for 2 * kSumParts floats per
// column.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_NORM_KERNELS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_NORM_KERNELS_H_

#include <cuda_runtime.h>

#include <cstdint>

#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/ops/norm_math.h"

namespace capstan::engine::cuda {

// Mean, 1 / sqrt(variance + epsilon), and the variance as a sum over n - 1, each [channels]; the
// last may be null.
struct Moments {
  float *mean = nullptr, *scale = nullptr, *variance = nullptr;
};

// Of the batch.
cudaError_t LaunchBatchMoments(cudaStream_t stream, Element e, const ChannelRows& g, float epsilon,
                               const void* x, float* parts, const Moments& to);
// From running statistics.
cudaError_t LaunchRunningMoments(cudaStream_t stream, int32_t channels, float epsilon,
                                 const float* mean, const float* variance, const Moments& to);
// y = weight * ((x - mean) * scale) + bias (+ z, then Relu). z may be null.
cudaError_t LaunchBatchNorm(cudaStream_t stream, Element e, const ChannelRows& g,
                            const Moments& moments, const float* weight, const float* bias,
                            const void* x, const void* z, bool relu, void* y);
// dweight and dbias. dmean and dvariance become the statistics of the batch times loss_scale and
// the number of samples (rule R3). dx may be null.
struct BatchNormGradients {
  float *weight = nullptr, *bias = nullptr, *mean = nullptr, *variance = nullptr;
  void* x = nullptr;
  bool add = false;  // to dx
};
cudaError_t LaunchBatchNormBackward(cudaStream_t stream, Element e, const ChannelRows& g,
                                    const Moments& moments, const float* weight,
                                    const double* loss_scale, int32_t samples, const void* x,
                                    const void* dy, float* parts, const BatchNormGradients& to);

// Rows of `size` numbers. Writes mean and scale [rows].
cudaError_t LaunchLayerNorm(cudaStream_t stream, Element e, int32_t rows, int32_t size,
                            float epsilon, const float* weight, const float* bias, const void* x,
                            void* y, const Moments& to);
// dx may be null.
cudaError_t LaunchLayerNormBackward(cudaStream_t stream, Element e, int32_t rows, int32_t size,
                                    const Moments& moments, const float* weight, const void* x,
                                    const void* dy, float* parts, float* dweight, float* dbias,
                                    bool add, void* dx);

// Lines of `size` numbers, `step` elements apart; log: LogSoftmax.
cudaError_t LaunchSoftmax(cudaStream_t stream, Element e, bool log, int32_t lines, int32_t size,
                          int32_t step, const void* x, void* y);
cudaError_t LaunchSoftmaxBackward(cudaStream_t stream, Element e, bool log, bool add, int32_t lines,
                                  int32_t size, int32_t step, const void* y, const void* dy,
                                  void* dx);

// Over channels of `samples` samples; `g` as norm_math.h, the pixels of a channel are `pixels`.
cudaError_t LaunchLrn(cudaStream_t stream, Element e, const LrnRule& g, const ChannelRows& rows,
                      const void* x, void* y);
cudaError_t LaunchLrnBackward(cudaStream_t stream, Element e, const LrnRule& g,
                              const ChannelRows& rows, bool add, const void* x, const void* dy,
                              void* dx);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_NORM_KERNELS_H_
