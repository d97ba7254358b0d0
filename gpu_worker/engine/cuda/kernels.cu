#include <cuda_runtime.h>

#include "gpu_worker/engine/cuda/kernels.h"

namespace capstan::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2048;  // the rest by a loop; every card of these years is full with them

int Blocks(int32_t elements) {
  const int blocks = (elements + kThreads - 1) / kThreads;
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

// i of every element, once over the whole grid. 64 bits: i + the grid may pass 2^31.
#define CAPSTAN_FOR_ELEMENTS(i, elements)                                        \
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < (elements); \
       i += gridDim.x * int64_t{kThreads})

template <typename Source, bool kNhwc>
__global__ void LoadImagesKernel(const Source* images, const float* scale, int32_t elements,
                                 int32_t channels, int32_t pixels, float* x) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const int32_t at = static_cast<int32_t>(i);
    const Source v = images[kNhwc ? CanonicalPlace(at, channels, pixels) : at];
    x[i] =
        sizeof(Source) == 1 ? static_cast<float>(v) * scale[0] + scale[1] : static_cast<float>(v);
  }
}

template <bool kToCanonical>
__global__ void PermuteKernel(int32_t elements, int32_t channels, int32_t pixels, const float* from,
                              float* to) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const int32_t canonical = CanonicalPlace(static_cast<int32_t>(i), channels, pixels);
    if (kToCanonical) {
      to[canonical] = from[i];
    } else {
      to[i] = from[canonical];
    }
  }
}

template <bool kMax, bool kRelu>
__global__ void PoolForwardKernel(WindowGeometry g, int32_t elements, const float* x, float* y) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    y[i] = PoolForwardAt(g, kMax, kRelu, x, static_cast<int32_t>(i));
  }
}

template <bool kMax, bool kRelu>
__global__ void PoolBackwardKernel(WindowGeometry g, int32_t elements, const float* x,
                                   const float* dy, float* dx) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    dx[i] = PoolBackwardAt(g, kMax, kRelu, x, dy, static_cast<int32_t>(i));
  }
}

__global__ void ReluKernel(int32_t elements, float* x) {
  CAPSTAN_FOR_ELEMENTS(i, elements) x[i] = Positive(x[i]);
}

__global__ void ReluMaskKernel(int32_t elements, const float* y, float* dy) {
  CAPSTAN_FOR_ELEMENTS(i, elements) dy[i] = MaskedBy(y[i], dy[i]);
}

__global__ void BiasReluKernel(int32_t elements, int32_t columns, const float* bias, bool relu,
                               float* y) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const float v = bias == nullptr ? y[i] : y[i] + bias[i % columns];
    y[i] = relu ? Positive(v) : v;
  }
}

// A block is a part. Its threads are lanes x columns where columns are few, so that neighbours read
// neighbours and long sums are cut once more; the lanes are added in their order.
__global__ void ColumnSumKernel(int32_t rows, int32_t columns, const float* dy, float* parts) {
  __shared__ float sums[kThreads];
  const int32_t lanes = columns < kThreads ? kThreads / columns : 1;
  const int32_t lane = threadIdx.x / columns;
  if (lanes == 1) {
    for (int32_t c = threadIdx.x; c < columns; c += kThreads) {
      parts[blockIdx.x * columns + c] =
          ColumnSumPart(dy, rows, columns, c, static_cast<int32_t>(blockIdx.x), kSumParts);
    }
    return;
  }
  const int32_t c = threadIdx.x % columns;
  sums[threadIdx.x] = lane < lanes ? ColumnSumPart(dy, rows, columns, c,
                                                   static_cast<int32_t>(blockIdx.x) * lanes + lane,
                                                   kSumParts * lanes)
                                   : 0.0f;
  __syncthreads();
  if (lane == 0) {
    float sum = 0;
    for (int32_t k = 0; k < lanes; ++k) sum += sums[k * columns + c];
    parts[blockIdx.x * columns + c] = sum;
  }
}

__global__ void AddPartsKernel(int32_t columns, const float* parts, float* db) {
  CAPSTAN_FOR_ELEMENTS(c, columns) {
    float sum = 0;
#pragma unroll 16
    for (int32_t part = 0; part < kSumParts; ++part) sum += parts[part * columns + c];
    db[c] = sum;
  }
}

__global__ void LossKernel(int32_t n, int32_t classes, const double* scale, const int32_t* labels,
                           const float* x, float* dx, double* row_loss, int32_t* row_correct) {
  CAPSTAN_FOR_ELEMENTS(i, n) {
    const LossOfRow row = SoftmaxLossRow(x + i * classes, classes, labels[i], *scale,
                                         dx == nullptr ? nullptr : dx + i * classes);
    row_loss[i] = row.loss;
    row_correct[i] = row.correct;
  }
}

// One block.
__global__ void SumRowsKernel(int32_t n, const double* row_loss, const int32_t* row_correct,
                              double* loss_sum, int64_t* correct) {
  __shared__ double losses[kThreads];
  __shared__ int64_t counts[kThreads];
  double loss = 0;
  int64_t count = 0;
  for (int32_t i = threadIdx.x; i < n; i += kThreads) {
    loss += row_loss[i];
    count += row_correct[i];
  }
  losses[threadIdx.x] = loss;
  counts[threadIdx.x] = count;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) {
      losses[threadIdx.x] += losses[threadIdx.x + width];
      counts[threadIdx.x] += counts[threadIdx.x + width];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    *loss_sum = losses[0];
    *correct = counts[0];
  }
}

__global__ void ConvForwardKernel(WindowGeometry g, int32_t elements, const float* x,
                                  const float* weight, const float* bias, bool relu, float* y) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    y[i] = ConvForwardAt(g, x, weight, bias, relu, static_cast<int32_t>(i));
  }
}

__global__ void ConvDataGradientKernel(WindowGeometry g, int32_t elements, const float* dy,
                                       const float* weight, float* dx) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    dx[i] = ConvDataGradientAt(g, dy, weight, static_cast<int32_t>(i));
  }
}

// A block per weight.
__global__ void ConvWeightGradientKernel(WindowGeometry g, int32_t n, int32_t weights,
                                         const float* x, const float* dy, float* dw) {
  __shared__ float sums[kThreads];
  for (int32_t i = blockIdx.x; i < weights; i += gridDim.x) {
    sums[threadIdx.x] =
        ConvWeightGradientPart(g, n, x, dy, i, static_cast<int32_t>(threadIdx.x), kThreads);
    __syncthreads();
    for (int width = kThreads / 2; width > 0; width /= 2) {
      if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
      __syncthreads();
    }
    if (threadIdx.x == 0) dw[i] = sums[0];
    __syncthreads();
  }
}

}  // namespace

cudaError_t LaunchLoadImages(cudaStream_t stream, const void* images, bool bytes,
                             const float* scale, bool nhwc, int32_t n, int32_t channels,
                             int32_t pixels, float* x) {
  const int32_t elements = n * channels * pixels;
  const int blocks = Blocks(elements);
  const auto* const u8 = static_cast<const uint8_t*>(images);
  const auto* const f32 = static_cast<const float*>(images);
  if (bytes && nhwc) {
    LoadImagesKernel<uint8_t, true>
        <<<blocks, kThreads, 0, stream>>>(u8, scale, elements, channels, pixels, x);
  } else if (bytes) {
    LoadImagesKernel<uint8_t, false>
        <<<blocks, kThreads, 0, stream>>>(u8, scale, elements, channels, pixels, x);
  } else if (nhwc) {
    LoadImagesKernel<float, true>
        <<<blocks, kThreads, 0, stream>>>(f32, scale, elements, channels, pixels, x);
  } else {
    LoadImagesKernel<float, false>
        <<<blocks, kThreads, 0, stream>>>(f32, scale, elements, channels, pixels, x);
  }
  return cudaGetLastError();
}

cudaError_t LaunchToChannelsLast(cudaStream_t stream, int32_t rows, int32_t channels,
                                 int32_t pixels, const float* from, float* to) {
  const int32_t elements = rows * channels * pixels;
  PermuteKernel<false>
      <<<Blocks(elements), kThreads, 0, stream>>>(elements, channels, pixels, from, to);
  return cudaGetLastError();
}

cudaError_t LaunchToCanonical(cudaStream_t stream, int32_t rows, int32_t channels, int32_t pixels,
                              const float* from, float* to) {
  const int32_t elements = rows * channels * pixels;
  PermuteKernel<true>
      <<<Blocks(elements), kThreads, 0, stream>>>(elements, channels, pixels, from, to);
  return cudaGetLastError();
}

cudaError_t LaunchPoolForward(cudaStream_t stream, const WindowGeometry& g, bool max, bool relu,
                              int32_t n, const float* x, float* y) {
  const int32_t elements = n * g.out_c * g.out_h * g.out_w;
  const int blocks = Blocks(elements);
  if (max && relu) {
    PoolForwardKernel<true, true><<<blocks, kThreads, 0, stream>>>(g, elements, x, y);
  } else if (max) {
    PoolForwardKernel<true, false><<<blocks, kThreads, 0, stream>>>(g, elements, x, y);
  } else if (relu) {
    PoolForwardKernel<false, true><<<blocks, kThreads, 0, stream>>>(g, elements, x, y);
  } else {
    PoolForwardKernel<false, false><<<blocks, kThreads, 0, stream>>>(g, elements, x, y);
  }
  return cudaGetLastError();
}

cudaError_t LaunchPoolBackward(cudaStream_t stream, const WindowGeometry& g, bool max, bool relu,
                               int32_t n, const float* x, const float* dy, float* dx) {
  const int32_t elements = n * g.in_c * g.in_h * g.in_w;
  const int blocks = Blocks(elements);
  if (max && relu) {
    PoolBackwardKernel<true, true><<<blocks, kThreads, 0, stream>>>(g, elements, x, dy, dx);
  } else if (max) {
    PoolBackwardKernel<true, false><<<blocks, kThreads, 0, stream>>>(g, elements, x, dy, dx);
  } else if (relu) {
    PoolBackwardKernel<false, true><<<blocks, kThreads, 0, stream>>>(g, elements, x, dy, dx);
  } else {
    PoolBackwardKernel<false, false><<<blocks, kThreads, 0, stream>>>(g, elements, x, dy, dx);
  }
  return cudaGetLastError();
}

cudaError_t LaunchRelu(cudaStream_t stream, int32_t elements, float* x) {
  ReluKernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, x);
  return cudaGetLastError();
}

cudaError_t LaunchReluMask(cudaStream_t stream, int32_t elements, const float* y, float* dy) {
  ReluMaskKernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, y, dy);
  return cudaGetLastError();
}

cudaError_t LaunchBiasRelu(cudaStream_t stream, int32_t rows, int32_t columns, const float* bias,
                           bool relu, float* y) {
  const int32_t elements = rows * columns;
  BiasReluKernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, columns, bias, relu, y);
  return cudaGetLastError();
}

cudaError_t LaunchColumnSums(cudaStream_t stream, int32_t rows, int32_t columns, const float* dy,
                             float* parts, float* db) {
  ColumnSumKernel<<<kSumParts, kThreads, 0, stream>>>(rows, columns, dy, parts);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  AddPartsKernel<<<Blocks(columns), kThreads, 0, stream>>>(columns, parts, db);
  return cudaGetLastError();
}

cudaError_t LaunchLoss(cudaStream_t stream, int32_t n, int32_t classes, const double* scale,
                       const int32_t* labels, const float* x, float* dx, double* row_loss,
                       int32_t* row_correct) {
  LossKernel<<<Blocks(n), kThreads, 0, stream>>>(n, classes, scale, labels, x, dx, row_loss,
                                                 row_correct);
  return cudaGetLastError();
}

cudaError_t LaunchSumRows(cudaStream_t stream, int32_t n, const double* row_loss,
                          const int32_t* row_correct, double* loss_sum, int64_t* correct) {
  SumRowsKernel<<<1, kThreads, 0, stream>>>(n, row_loss, row_correct, loss_sum, correct);
  return cudaGetLastError();
}

cudaError_t LaunchConvForward(cudaStream_t stream, const WindowGeometry& g, int32_t n,
                              const float* x, const float* weight, const float* bias, bool relu,
                              float* y) {
  const int32_t elements = n * g.out_c * g.out_h * g.out_w;
  ConvForwardKernel<<<Blocks(elements), kThreads, 0, stream>>>(g, elements, x, weight, bias, relu,
                                                               y);
  return cudaGetLastError();
}

cudaError_t LaunchConvDataGradient(cudaStream_t stream, const WindowGeometry& g, int32_t n,
                                   const float* dy, const float* weight, float* dx) {
  const int32_t elements = n * g.in_c * g.in_h * g.in_w;
  ConvDataGradientKernel<<<Blocks(elements), kThreads, 0, stream>>>(g, elements, dy, weight, dx);
  return cudaGetLastError();
}

cudaError_t LaunchConvWeightGradient(cudaStream_t stream, const WindowGeometry& g, int32_t n,
                                     const float* x, const float* dy, float* dw) {
  const int32_t weights = g.out_c * g.in_c * g.kernel_h * g.kernel_w;
  const int blocks = weights < 65535 ? weights : 65535;
  ConvWeightGradientKernel<<<blocks, kThreads, 0, stream>>>(g, n, weights, x, dy, dw);
  return cudaGetLastError();
}

}  // namespace capstan::engine::cuda
