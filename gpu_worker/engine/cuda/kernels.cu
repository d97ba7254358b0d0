#include <cuda_runtime.h>

#include <type_traits>

#include "gpu_worker/engine/cuda/kernels.h"

#include <algorithm>

namespace capstan::engine::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 2048;  // the rest by a loop; every card of these years is full with them

int Blocks(int32_t elements) {
  const int blocks = (elements + kThreads - 1) / kThreads;
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

// Calls `launch` with a pointer of the type of the elements, which is null and only says the type.
template <typename Launch>
cudaError_t ForElement(Element e, Launch launch) {
  switch (e) {
    case Element::kFloat:
      launch(static_cast<float*>(nullptr));
      break;
    case Element::kBf16:
      launch(static_cast<Bf16*>(nullptr));
      break;
    case Element::kFp16:
      launch(static_cast<Fp16*>(nullptr));
      break;
  }
  return cudaGetLastError();
}

// i of every element, once over the whole grid. 64 bits: i + the grid may pass 2^31.
#define CAPSTAN_FOR_ELEMENTS(i, elements)                                        \
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < (elements); \
       i += gridDim.x * int64_t{kThreads})

template <typename Source, bool kNhwc, typename T>
__global__ void LoadImagesKernel(const Source* images, const float* scale, int32_t elements,
                                 int32_t channels, int32_t pixels, T* x) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const int32_t at = static_cast<int32_t>(i);
    const Source v = images[kNhwc ? CanonicalPlace(at, channels, pixels) : at];
    x[i] = T(sizeof(Source) == 1 ? static_cast<float>(v) * scale[0] + scale[1]
                                 : static_cast<float>(v));
  }
}

template <typename T>
__global__ void LoadKeptKernel(const float* kept, const int32_t* places, bool nhwc,
                               int32_t elements, int32_t channels, int32_t pixels, T* x) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const int32_t at = static_cast<int32_t>(i), size = channels * pixels;
    const int32_t within = at % size;
    const int32_t from = nhwc ? CanonicalPlace(within, channels, pixels) : within;
    x[i] = T(kept[int64_t{places[at / size]} * size + from]);
  }
}

template <bool kToCanonical, typename From, typename To>
__global__ void PermuteKernel(int32_t elements, int32_t channels, int32_t pixels, const From* from,
                              To* to) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const int32_t canonical = CanonicalPlace(static_cast<int32_t>(i), channels, pixels);
    if (kToCanonical) {
      to[canonical] = To(from[i]);
    } else {
      to[i] = To(from[canonical]);
    }
  }
}

template <bool kMax, bool kRelu, typename T>
__global__ void PoolForwardKernel(WindowGeometry g, int32_t elements, const T* x, T* y) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    y[i] = PoolForwardAt(g, kMax, kRelu, x, static_cast<int32_t>(i));
  }
}

template <bool kMax, bool kRelu, typename T>
__global__ void PoolBackwardKernel(WindowGeometry g, int32_t elements, const T* x, const T* dy,
                                   T* dx) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    dx[i] = PoolBackwardAt(g, kMax, kRelu, x, dy, static_cast<int32_t>(i));
  }
}

template <typename T>
__global__ void ReluKernel(int32_t elements, T* x) {
  CAPSTAN_FOR_ELEMENTS(i, elements) x[i] = Positive(x[i]);
}

template <typename T>
__global__ void ReluMaskKernel(int32_t elements, const T* y, T* dy) {
  CAPSTAN_FOR_ELEMENTS(i, elements) dy[i] = MaskedBy(y[i], dy[i]);
}

__global__ void AddKernel(int64_t elements, const float* right, float* left) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < elements; i += stride) {
    left[i] = __fadd_rn(left[i], right[i]);
  }
}

template <typename T>
__global__ void BiasReluKernel(int32_t elements, int32_t columns, const T* bias, bool relu, T* y) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    const float v = bias == nullptr ? float(y[i]) : y[i] + bias[i % columns];
    y[i] = T(relu ? Positive(v) : v);
  }
}

// A block is a part. Its threads are lanes x columns where columns are few, so that neighbours read
// neighbours and long sums are cut once more; the lanes are added in their order.
template <typename T>
__global__ void ColumnSumKernel(int32_t rows, int32_t columns, const T* dy, float* parts) {
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

template <typename T>
__global__ void LossKernel(int32_t n, int32_t classes, const double* scale, const int32_t* labels,
                           const T* x, T* dx, double* row_loss, int32_t* row_correct) {
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

template <typename T>
__global__ void ConvForwardKernel(WindowGeometry g, int32_t elements, const T* x, const T* weight,
                                  const T* bias, bool relu, T* y) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    y[i] = ConvForwardAt(g, x, weight, bias, relu, static_cast<int32_t>(i));
  }
}

template <typename T>
__global__ void ConvDataGradientKernel(WindowGeometry g, int32_t elements, const T* dy,
                                       const T* weight, T* dx) {
  CAPSTAN_FOR_ELEMENTS(i, elements) {
    dx[i] = ConvDataGradientAt(g, dy, weight, static_cast<int32_t>(i));
  }
}

// A block per weight.
template <typename T, typename To>
__global__ void ConvWeightGradientKernel(WindowGeometry g, int32_t n, int32_t weights, const T* x,
                                         const T* dy, To* dw) {
  __shared__ float sums[kThreads];
  for (int32_t i = blockIdx.x; i < weights; i += gridDim.x) {
    sums[threadIdx.x] =
        ConvWeightGradientPart(g, n, x, dy, i, static_cast<int32_t>(threadIdx.x), kThreads);
    __syncthreads();
    for (int width = kThreads / 2; width > 0; width /= 2) {
      if (threadIdx.x < width) sums[threadIdx.x] += sums[threadIdx.x + width];
      __syncthreads();
    }
    if (threadIdx.x == 0) dw[i] = To(sums[0]);
    __syncthreads();
  }
}

}  // namespace

cudaError_t LaunchLoadImages(cudaStream_t stream, Element e, const void* images, bool bytes,
                             const float* scale, bool nhwc, int32_t n, int32_t channels,
                             int32_t pixels, void* x) {
  const int32_t elements = n * channels * pixels;
  const int blocks = Blocks(elements);
  const auto* const u8 = static_cast<const uint8_t*>(images);
  const auto* const f32 = static_cast<const float*>(images);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* const to = static_cast<T*>(x);
    if (bytes && nhwc) {
      LoadImagesKernel<uint8_t, true>
          <<<blocks, kThreads, 0, stream>>>(u8, scale, elements, channels, pixels, to);
    } else if (bytes) {
      LoadImagesKernel<uint8_t, false>
          <<<blocks, kThreads, 0, stream>>>(u8, scale, elements, channels, pixels, to);
    } else if (nhwc) {
      LoadImagesKernel<float, true>
          <<<blocks, kThreads, 0, stream>>>(f32, scale, elements, channels, pixels, to);
    } else {
      LoadImagesKernel<float, false>
          <<<blocks, kThreads, 0, stream>>>(f32, scale, elements, channels, pixels, to);
    }
  });
}

cudaError_t LaunchLoadKept(cudaStream_t stream, Element e, const float* kept, const int32_t* places,
                           bool nhwc, int32_t n, int32_t channels, int32_t pixels, void* x) {
  const int32_t elements = n * channels * pixels;
  return ForElement(e, [=](auto* type) {
    LoadKeptKernel<<<Blocks(elements), kThreads, 0, stream>>>(
        kept, places, nhwc, elements, channels, pixels, static_cast<decltype(type)>(x));
  });
}

cudaError_t LaunchToChannelsLast(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                                 int32_t pixels, const void* from, void* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    PermuteKernel<false><<<Blocks(elements), kThreads, 0, stream>>>(
        elements, channels, pixels, static_cast<const T*>(from), static_cast<T*>(to));
  });
}

cudaError_t LaunchToCanonical(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                              int32_t pixels, const void* from, void* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    PermuteKernel<true><<<Blocks(elements), kThreads, 0, stream>>>(
        elements, channels, pixels, static_cast<const T*>(from), static_cast<T*>(to));
  });
}

cudaError_t LaunchCopyWeights(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                              int32_t pixels, const float* from, void* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    PermuteKernel<false><<<Blocks(elements), kThreads, 0, stream>>>(elements, channels, pixels,
                                                                    from, static_cast<T*>(to));
  });
}

cudaError_t LaunchGradientToFlat(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                                 int32_t pixels, const void* from, float* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    PermuteKernel<true><<<Blocks(elements), kThreads, 0, stream>>>(elements, channels, pixels,
                                                                   static_cast<const T*>(from), to);
  });
}

cudaError_t LaunchPoolForward(cudaStream_t stream, Element e, const WindowGeometry& g, bool max,
                              bool relu, int32_t n, const void* x, void* y) {
  const int32_t elements = n * g.out_c * g.out_h * g.out_w;
  const int blocks = Blocks(elements);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const from = static_cast<const T*>(x);
    T* const to = static_cast<T*>(y);
    if (max && relu) {
      PoolForwardKernel<true, true><<<blocks, kThreads, 0, stream>>>(g, elements, from, to);
    } else if (max) {
      PoolForwardKernel<true, false><<<blocks, kThreads, 0, stream>>>(g, elements, from, to);
    } else if (relu) {
      PoolForwardKernel<false, true><<<blocks, kThreads, 0, stream>>>(g, elements, from, to);
    } else {
      PoolForwardKernel<false, false><<<blocks, kThreads, 0, stream>>>(g, elements, from, to);
    }
  });
}

cudaError_t LaunchPoolBackward(cudaStream_t stream, Element e, const WindowGeometry& g, bool max,
                               bool relu, int32_t n, const void* x, const void* dy, void* dx) {
  const int32_t elements = n * g.in_c * g.in_h * g.in_w;
  const int blocks = Blocks(elements);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    const auto* const from = static_cast<const T*>(dy);
    T* const to = static_cast<T*>(dx);
    if (max && relu) {
      PoolBackwardKernel<true, true><<<blocks, kThreads, 0, stream>>>(g, elements, in, from, to);
    } else if (max) {
      PoolBackwardKernel<true, false><<<blocks, kThreads, 0, stream>>>(g, elements, in, from, to);
    } else if (relu) {
      PoolBackwardKernel<false, true><<<blocks, kThreads, 0, stream>>>(g, elements, in, from, to);
    } else {
      PoolBackwardKernel<false, false><<<blocks, kThreads, 0, stream>>>(g, elements, in, from, to);
    }
  });
}

cudaError_t LaunchRelu(cudaStream_t stream, Element e, int32_t elements, void* x) {
  return ForElement(e, [=](auto* type) {
    ReluKernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, static_cast<decltype(type)>(x));
  });
}

cudaError_t LaunchReluMask(cudaStream_t stream, Element e, int32_t elements, const void* y,
                           void* dy) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ReluMaskKernel<<<Blocks(elements), kThreads, 0, stream>>>(elements, static_cast<const T*>(y),
                                                              static_cast<T*>(dy));
  });
}

cudaError_t LaunchAdd(cudaStream_t stream, int64_t elements, const float* right, float* left) {
  const int64_t blocks = std::min<int64_t>((elements + kThreads - 1) / kThreads, 4096);
  AddKernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(elements, right, left);
  return cudaGetLastError();
}

cudaError_t LaunchBiasRelu(cudaStream_t stream, Element e, int32_t rows, int32_t columns,
                           const void* bias, bool relu, void* y) {
  const int32_t elements = rows * columns;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    BiasReluKernel<<<Blocks(elements), kThreads, 0, stream>>>(
        elements, columns, static_cast<const T*>(bias), relu, static_cast<T*>(y));
  });
}

cudaError_t LaunchColumnSums(cudaStream_t stream, Element e, int32_t rows, int32_t columns,
                             const void* dy, float* parts, float* db) {
  const cudaError_t error = ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ColumnSumKernel<<<kSumParts, kThreads, 0, stream>>>(rows, columns, static_cast<const T*>(dy),
                                                        parts);
  });
  if (error != cudaSuccess) return error;
  AddPartsKernel<<<Blocks(columns), kThreads, 0, stream>>>(columns, parts, db);
  return cudaGetLastError();
}

cudaError_t LaunchLoss(cudaStream_t stream, Element e, int32_t n, int32_t classes,
                       const double* scale, const int32_t* labels, const void* x, void* dx,
                       double* row_loss, int32_t* row_correct) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    LossKernel<<<Blocks(n), kThreads, 0, stream>>>(n, classes, scale, labels,
                                                   static_cast<const T*>(x), static_cast<T*>(dx),
                                                   row_loss, row_correct);
  });
}

cudaError_t LaunchSumRows(cudaStream_t stream, int32_t n, const double* row_loss,
                          const int32_t* row_correct, double* loss_sum, int64_t* correct) {
  SumRowsKernel<<<1, kThreads, 0, stream>>>(n, row_loss, row_correct, loss_sum, correct);
  return cudaGetLastError();
}

cudaError_t LaunchConvForward(cudaStream_t stream, Element e, const WindowGeometry& g, int32_t n,
                              const void* x, const void* weight, const void* bias, bool relu,
                              void* y) {
  const int32_t elements = n * g.out_c * g.out_h * g.out_w;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ConvForwardKernel<<<Blocks(elements), kThreads, 0, stream>>>(
        g, elements, static_cast<const T*>(x), static_cast<const T*>(weight),
        static_cast<const T*>(bias), relu, static_cast<T*>(y));
  });
}

cudaError_t LaunchConvDataGradient(cudaStream_t stream, Element e, const WindowGeometry& g,
                                   int32_t n, const void* dy, const void* weight, void* dx) {
  const int32_t elements = n * g.in_c * g.in_h * g.in_w;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    ConvDataGradientKernel<<<Blocks(elements), kThreads, 0, stream>>>(
        g, elements, static_cast<const T*>(dy), static_cast<const T*>(weight), static_cast<T*>(dx));
  });
}

cudaError_t LaunchConvWeightGradient(cudaStream_t stream, Element e, const WindowGeometry& g,
                                     int32_t n, const void* x, const void* dy, bool rounded,
                                     void* dw) {
  const int32_t weights = g.out_c * g.in_c * g.kernel_h * g.kernel_w;
  const int blocks = weights < 65535 ? weights : 65535;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    const auto* const from = static_cast<const T*>(dy);
    if (rounded) {
      ConvWeightGradientKernel<<<blocks, kThreads, 0, stream>>>(g, n, weights, in, from,
                                                                static_cast<T*>(dw));
    } else {
      ConvWeightGradientKernel<<<blocks, kThreads, 0, stream>>>(g, n, weights, in, from,
                                                                static_cast<float*>(dw));
    }
  });
}

}  // namespace capstan::engine::cuda
