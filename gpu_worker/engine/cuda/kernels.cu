#include <algorithm>
#include <cstdint>

#include "gpu_worker/engine/cuda/element_launch.h"
#include "gpu_worker/engine/cuda/pool_math.h"

namespace capstan::engine::cuda {
namespace {

template <typename Source, bool kNhwc, typename T>
__global__ void LoadImagesKernel(const Source* images, const float* scale, int32_t elements,
                                 int32_t channels, int32_t pixels, T* x) {
  ForElements(elements, [&](int64_t i) {
    const int32_t at = static_cast<int32_t>(i);
    const Source v = images[kNhwc ? CanonicalPlace(at, channels, pixels) : at];
    x[i] = T(sizeof(Source) == 1 ? static_cast<float>(v) * scale[0] + scale[1]
                                 : static_cast<float>(v));
  });
}

template <typename T>
__global__ void LoadKeptKernel(const float* kept, const int32_t* places, bool nhwc,
                               int32_t elements, int32_t channels, int32_t pixels, T* x) {
  ForElements(elements, [&](int64_t i) {
    const int32_t at = static_cast<int32_t>(i), size = channels * pixels;
    const int32_t within = at % size;
    const int32_t from = nhwc ? CanonicalPlace(within, channels, pixels) : within;
    x[i] = T(kept[int64_t{places[at / size]} * size + from]);
  });
}

template <bool kToCanonical, typename From, typename To>
__global__ void PermuteKernel(int32_t elements, int32_t channels, int32_t pixels, const From* from,
                              To* to) {
  ForElements(elements, [&](int64_t i) {
    const int32_t canonical = CanonicalPlace(static_cast<int32_t>(i), channels, pixels);
    if (kToCanonical) {
      to[canonical] = To(from[i]);
    } else {
      to[i] = To(from[canonical]);
    }
  });
}

struct WeightCopies {
  WeightCopy copies[kMostWeightCopies];
  int64_t ends[kMostWeightCopies];  // elements of a copy and of all before it
};

static_assert(sizeof(WeightCopies) <= 2048, "a kernel is given 4 KiB at most");

template <typename T>
__global__ void CopyWeightsKernel(int64_t elements, const __grid_constant__ WeightCopies all) {
  ForElements(elements, [&](int64_t i) {
    int c = 0;
    while (i >= all.ends[c]) ++c;
    const WeightCopy& copy = all.copies[c];
    const int32_t at = static_cast<int32_t>(i - (c == 0 ? 0 : all.ends[c - 1]));
    static_cast<T*>(copy.to)[at] =
        T(static_cast<const float*>(copy.from)[CanonicalPlace(at, copy.channels, copy.pixels)]);
  });
}

template <bool kMax, bool kRelu, typename T>
__global__ void PoolForwardKernel(WindowGeometry g, int32_t elements, const T* x, T* y) {
  ForElements(elements,
              [&](int64_t i) { y[i] = PoolForwardAt(g, kMax, kRelu, x, static_cast<int32_t>(i)); });
}

template <bool kMax, bool kRelu, typename T>
__global__ void PoolBackwardKernel(WindowGeometry g, int32_t elements, const T* x, const T* dy,
                                   T* dx) {
  ForElements(elements, [&](int64_t i) {
    dx[i] = PoolBackwardAt(g, kMax, kRelu, x, dy, static_cast<int32_t>(i));
  });
}

template <bool kMax, bool kRelu, typename T>
__global__ void PoolBackwardWindowsKernel(WindowGeometry g, int32_t windows, const T* x,
                                          const T* dy, T* dx) {
  ForElements(windows, [&](int64_t i) {
    PoolBackwardWindow(g, kMax, kRelu, x, dy, dx, static_cast<int32_t>(i));
  });
}

template <typename T>
__global__ void ReluKernel(int32_t elements, T* x) {
  ForElements(elements, [&](int64_t i) { x[i] = Positive(x[i]); });
}

template <typename T>
__global__ void ReluMaskKernel(int32_t elements, const T* y, T* dy) {
  ForElements(elements, [&](int64_t i) { dy[i] = MaskedBy(y[i], dy[i]); });
}

__global__ void AddKernel(int64_t elements, const float* right, float* left) {
  ForElements(elements, [&](int64_t i) { left[i] = __fadd_rn(left[i], right[i]); });
}

template <typename T>
__global__ void BiasReluKernel(int32_t elements, int32_t columns, const T* bias, bool relu, T* y) {
  ForElements(elements, [&](int64_t i) {
    const float v = bias == nullptr ? float(y[i]) : y[i] + bias[static_cast<int32_t>(i) % columns];
    y[i] = T(relu ? Positive(v) : v);
  });
}

// Each block computes one part. If there are few columns, its threads are lanes x columns: then
// neighbouring threads read neighbouring elements, and long sums are split again. The lanes are
// added in order.
template <typename T>
__global__ void ColumnSumKernel(int32_t rows, int32_t columns, const T* dy, float* parts) {
  __shared__ float sums[kThreads];
  const int32_t block = static_cast<int32_t>(BlockIndex());
  const int32_t lanes = columns < kThreads ? kThreads / columns : 1;
  if (lanes == 1) {
    EachThread([&](int thread) {
      for (int32_t c = thread; c < columns; c += kThreads) {
        parts[block * columns + c] = ColumnSumPart(dy, rows, columns, c, block, kSumParts);
      }
    });
    return;
  }
  EachThread([&](int thread) {
    const int32_t lane = thread / columns;
    sums[thread] = lane < lanes ? ColumnSumPart(dy, rows, columns, thread % columns,
                                                block * lanes + lane, kSumParts * lanes)
                                : 0.0f;
  });
  EachThread([&](int thread) {
    if (thread >= columns) return;
    float sum = 0;
    for (int32_t k = 0; k < lanes; ++k) sum += sums[k * columns + thread];
    parts[block * columns + thread] = sum;
  });
}

__global__ void AddPartsKernel(int32_t columns, const float* parts, float* db) {
  ForElements(columns, [&](int64_t c) {
    float sum = 0;
#pragma unroll 16
    for (int32_t part = 0; part < kSumParts; ++part) sum += parts[part * columns + c];
    db[c] = sum;
  });
}

template <typename T>
__global__ void LossKernel(int32_t n, int32_t classes, float smoothing, const double* scale,
                           const int32_t* labels, const T* x, T* dx, double* row_loss,
                           int32_t* row_correct) {
  ForElements(n, [&](int64_t i) {
    const LossOfRow row = SoftmaxLossRow(x + i * classes, classes, labels[i], *scale,
                                         dx == nullptr ? nullptr : dx + i * classes, smoothing);
    row_loss[i] = row.loss;
    row_correct[i] = row.correct;
  });
}

// A thread adds up a row.
template <typename T>
__global__ void NarrowSquaredErrorKernel(int32_t n, int32_t columns, const double* scale,
                                         const float* targets, const T* x, T* dx, double* row_loss,
                                         int32_t* row_correct) {
  const double factor = *scale * 2 / columns;
  ForElements(n, [&](int64_t row) {
    double sum = 0;
    for (int64_t k = row * columns; k < (row + 1) * columns; ++k) {
      const double error = ErrorAt(x, targets, k);
      sum += error * error;
      if (dx != nullptr) dx[k] = T(float(error * factor));
    }
    row_loss[row] = sum / columns;
    row_correct[row] = 0;
  });
}

// A block adds up a row.
template <typename T>
__global__ void SquaredErrorKernel(int32_t n, int32_t columns, const double* scale,
                                   const float* targets, const T* x, T* dx, double* row_loss,
                                   int32_t* row_correct) {
  __shared__ double sums[kThreads];
  const double factor = *scale * 2 / columns;
  for (int64_t row = BlockIndex(); row < n; row += BlockCount()) {
    EachThread([&](int thread) {
      double sum = 0;
      for (int64_t k = row * columns + thread; k < (row + 1) * columns; k += kThreads) {
        const double error = ErrorAt(x, targets, k);
        sum += error * error;
        if (dx != nullptr) dx[k] = T(float(error * factor));
      }
      sums[thread] = sum;
    });
    for (int width = kThreads / 2; width > 0; width /= 2) {
      EachThread([&](int thread) {
        if (thread < width) sums[thread] += sums[thread + width];
      });
    }
    EachThread([&](int thread) {
      if (thread > 0) return;
      row_loss[row] = sums[0] / columns;
      row_correct[row] = 0;
    });
  }
}

// Runs as one block.
__global__ void SumRowsKernel(int32_t n, const double* row_loss, const int32_t* row_correct,
                              double* loss_sum, int64_t* correct) {
  __shared__ double losses[kThreads];
  __shared__ int64_t counts[kThreads];
  EachThread([&](int thread) {
    double loss = 0;
    int64_t count = 0;
    for (int32_t i = thread; i < n; i += kThreads) {
      loss += row_loss[i];
      count += row_correct[i];
    }
    losses[thread] = loss;
    counts[thread] = count;
  });
  for (int width = kThreads / 2; width > 0; width /= 2) {
    EachThread([&](int thread) {
      if (thread >= width) return;
      losses[thread] += losses[thread + width];
      counts[thread] += counts[thread + width];
    });
  }
  EachThread([&](int thread) {
    if (thread > 0) return;
    *loss_sum = losses[0];
    *correct = counts[0];
  });
}

// Runs as one block. All threads do the same.
__global__ void DelayKernel(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

template <typename T>
__global__ void ConvForwardKernel(WindowGeometry g, int32_t elements, const T* x, const T* weight,
                                  const T* bias, bool relu, T* y) {
  ForElements(elements, [&](int64_t i) {
    y[i] = ConvForwardAt(g, x, weight, bias, relu, static_cast<int32_t>(i));
  });
}

template <typename T>
__global__ void ConvDataGradientKernel(WindowGeometry g, int32_t elements, const T* dy,
                                       const T* weight, T* dx) {
  ForElements(elements, [&](int64_t i) {
    dx[i] = ConvDataGradientAt(g, dy, weight, static_cast<int32_t>(i));
  });
}

// One block for each weight.
template <typename T, typename To>
__global__ void ConvWeightGradientKernel(WindowGeometry g, int32_t n, int32_t weights, const T* x,
                                         const T* dy, To* dw) {
  __shared__ float sums[kThreads];
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t i = static_cast<int32_t>(BlockIndex()); i < weights; i += stride) {
    EachThread([&](int thread) {
      sums[thread] = ConvWeightGradientPart(g, n, x, dy, i, thread, kThreads);
    });
    for (int width = kThreads / 2; width > 0; width /= 2) {
      EachThread([&](int thread) {
        if (thread < width) sums[thread] += sums[thread + width];
      });
    }
    EachThread([&](int thread) {
      if (thread == 0) dw[i] = To(sums[0]);
    });
  }
}

// Launches the backward kernel of one kind of pooling.
template <bool kMax, bool kRelu, typename T>
void LaunchPoolBackwardOf(cudaStream_t stream, const WindowGeometry& g, int32_t n, const T* x,
                          const T* dy, T* dx) {
  if (WindowsTile(g)) {
    const int32_t windows = n * g.out_c * g.out_h * g.out_w;
    Launch(PoolBackwardWindowsKernel<kMax, kRelu, T>, Blocks(windows), stream, g, windows, x, dy,
           dx);
  } else {
    const int32_t elements = n * g.in_c * g.in_h * g.in_w;
    Launch(PoolBackwardKernel<kMax, kRelu, T>, Blocks(elements), stream, g, elements, x, dy, dx);
  }
}

}  // namespace

cudaError_t LaunchLoadImages(cudaStream_t stream, Element e, const void* images, bool bytes,
                             const float* scale, bool nhwc, int32_t n, int32_t channels,
                             int32_t pixels, void* x) {
  const int32_t elements = n * channels * pixels;
  const unsigned blocks = Blocks(elements);
  const auto* const u8 = static_cast<const uint8_t*>(images);
  const auto* const f32 = static_cast<const float*>(images);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    T* const to = static_cast<T*>(x);
    if (bytes && nhwc) {
      Launch(LoadImagesKernel<uint8_t, true, T>, blocks, stream, u8, scale, elements, channels,
             pixels, to);
    } else if (bytes) {
      Launch(LoadImagesKernel<uint8_t, false, T>, blocks, stream, u8, scale, elements, channels,
             pixels, to);
    } else if (nhwc) {
      Launch(LoadImagesKernel<float, true, T>, blocks, stream, f32, scale, elements, channels,
             pixels, to);
    } else {
      Launch(LoadImagesKernel<float, false, T>, blocks, stream, f32, scale, elements, channels,
             pixels, to);
    }
  });
}

cudaError_t LaunchLoadKept(cudaStream_t stream, Element e, const float* kept, const int32_t* places,
                           bool nhwc, int32_t n, int32_t channels, int32_t pixels, void* x) {
  const int32_t elements = n * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(LoadKeptKernel<T>, Blocks(elements), stream, kept, places, nhwc, elements, channels,
           pixels, static_cast<T*>(x));
  });
}

cudaError_t LaunchToChannelsLast(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                                 int32_t pixels, const void* from, void* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(PermuteKernel<false, T, T>, Blocks(elements), stream, elements, channels, pixels,
           static_cast<const T*>(from), static_cast<T*>(to));
  });
}

cudaError_t LaunchToCanonical(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                              int32_t pixels, const void* from, void* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(PermuteKernel<true, T, T>, Blocks(elements), stream, elements, channels, pixels,
           static_cast<const T*>(from), static_cast<T*>(to));
  });
}

cudaError_t LaunchCopyWeights(cudaStream_t stream, Element e, const WeightCopy* copies, int count) {
  WeightCopies all = {};
  for (int c = 0; c < count; ++c) {
    all.copies[c] = copies[c];
    all.ends[c] = copies[c].elements + (c == 0 ? 0 : all.ends[c - 1]);
  }
  const int64_t elements = all.ends[count - 1];
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(CopyWeightsKernel<T>, Blocks(elements), stream, elements, all);
  });
}

cudaError_t LaunchGradientToFlat(cudaStream_t stream, Element e, int32_t rows, int32_t channels,
                                 int32_t pixels, const void* from, float* to) {
  const int32_t elements = rows * channels * pixels;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(PermuteKernel<true, T, float>, Blocks(elements), stream, elements, channels, pixels,
           static_cast<const T*>(from), to);
  });
}

cudaError_t LaunchPoolForward(cudaStream_t stream, Element e, const WindowGeometry& g, bool max,
                              bool relu, int32_t n, const void* x, void* y) {
  const int32_t elements = n * g.out_c * g.out_h * g.out_w;
  const unsigned blocks = Blocks(elements);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const from = static_cast<const T*>(x);
    T* const to = static_cast<T*>(y);
    if (max && relu) {
      Launch(PoolForwardKernel<true, true, T>, blocks, stream, g, elements, from, to);
    } else if (max) {
      Launch(PoolForwardKernel<true, false, T>, blocks, stream, g, elements, from, to);
    } else if (relu) {
      Launch(PoolForwardKernel<false, true, T>, blocks, stream, g, elements, from, to);
    } else {
      Launch(PoolForwardKernel<false, false, T>, blocks, stream, g, elements, from, to);
    }
  });
}

cudaError_t LaunchPoolBackward(cudaStream_t stream, Element e, const WindowGeometry& g, bool max,
                               bool relu, int32_t n, const void* x, const void* dy, void* dx) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    const auto* const from = static_cast<const T*>(dy);
    T* const to = static_cast<T*>(dx);
    if (max && relu) {
      LaunchPoolBackwardOf<true, true>(stream, g, n, in, from, to);
    } else if (max) {
      LaunchPoolBackwardOf<true, false>(stream, g, n, in, from, to);
    } else if (relu) {
      LaunchPoolBackwardOf<false, true>(stream, g, n, in, from, to);
    } else {
      LaunchPoolBackwardOf<false, false>(stream, g, n, in, from, to);
    }
  });
}

cudaError_t LaunchRelu(cudaStream_t stream, Element e, int32_t elements, void* x) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(ReluKernel<T>, Blocks(elements), stream, elements, static_cast<T*>(x));
  });
}

cudaError_t LaunchReluMask(cudaStream_t stream, Element e, int32_t elements, const void* y,
                           void* dy) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(ReluMaskKernel<T>, Blocks(elements), stream, elements, static_cast<const T*>(y),
           static_cast<T*>(dy));
  });
}

cudaError_t LaunchAdd(cudaStream_t stream, int64_t elements, const float* right, float* left) {
  Launch(AddKernel, Blocks(elements), stream, elements, right, left);
  return cudaGetLastError();
}

cudaError_t LaunchBiasRelu(cudaStream_t stream, Element e, int32_t rows, int32_t columns,
                           const void* bias, bool relu, void* y) {
  const int32_t elements = rows * columns;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(BiasReluKernel<T>, Blocks(elements), stream, elements, columns,
           static_cast<const T*>(bias), relu, static_cast<T*>(y));
  });
}

cudaError_t LaunchColumnSums(cudaStream_t stream, Element e, int32_t rows, int32_t columns,
                             const void* dy, float* parts, float* db) {
  const cudaError_t error = ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(ColumnSumKernel<T>, kSumParts, stream, rows, columns, static_cast<const T*>(dy), parts);
  });
  if (error != cudaSuccess) return error;
  Launch(AddPartsKernel, Blocks(columns), stream, columns, parts, db);
  return cudaGetLastError();
}

cudaError_t LaunchLoss(cudaStream_t stream, Element e, int32_t n, int32_t classes, float smoothing,
                       const double* scale, const int32_t* labels, const void* x, void* dx,
                       double* row_loss, int32_t* row_correct) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(LossKernel<T>, Blocks(n), stream, n, classes, smoothing, scale, labels,
           static_cast<const T*>(x), static_cast<T*>(dx), row_loss, row_correct);
  });
}

cudaError_t LaunchSquaredError(cudaStream_t stream, Element e, int32_t n, int32_t columns,
                               const double* scale, const float* targets, const void* x, void* dx,
                               double* row_loss, int32_t* row_correct) {
  // A block of fewer columns would have most of its threads idle.
  const bool narrow = columns <= kThreads / 8;
  const unsigned blocks = Blocks(narrow ? n : int64_t{n} * kThreads);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(narrow ? NarrowSquaredErrorKernel<T> : SquaredErrorKernel<T>, blocks, stream, n, columns,
           scale, targets, static_cast<const T*>(x), static_cast<T*>(dx), row_loss, row_correct);
  });
}

cudaError_t LaunchSumRows(cudaStream_t stream, int32_t n, const double* row_loss,
                          const int32_t* row_correct, double* loss_sum, int64_t* correct) {
  Launch(SumRowsKernel, 1, stream, n, row_loss, row_correct, loss_sum, correct);
  return cudaGetLastError();
}

cudaError_t LaunchDelay(cudaStream_t stream, int64_t cycles) {
  Launch(DelayKernel, 1, stream, cycles);
  return cudaGetLastError();
}

cudaError_t LaunchConvForward(cudaStream_t stream, Element e, const WindowGeometry& g, int32_t n,
                              const void* x, const void* weight, const void* bias, bool relu,
                              void* y) {
  const int32_t elements = n * g.out_c * g.out_h * g.out_w;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(ConvForwardKernel<T>, Blocks(elements), stream, g, elements, static_cast<const T*>(x),
           static_cast<const T*>(weight), static_cast<const T*>(bias), relu, static_cast<T*>(y));
  });
}

cudaError_t LaunchConvDataGradient(cudaStream_t stream, Element e, const WindowGeometry& g,
                                   int32_t n, const void* dy, const void* weight, void* dx) {
  const int32_t elements = n * g.in_c * g.in_h * g.in_w;
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(ConvDataGradientKernel<T>, Blocks(elements), stream, g, elements,
           static_cast<const T*>(dy), static_cast<const T*>(weight), static_cast<T*>(dx));
  });
}

cudaError_t LaunchConvWeightGradient(cudaStream_t stream, Element e, const WindowGeometry& g,
                                     int32_t n, const void* x, const void* dy, bool rounded,
                                     void* dw) {
  const int32_t weights = g.out_c * (g.in_c / g.groups) * g.kernel_h * g.kernel_w;
  const unsigned blocks = std::min(weights, 65535);
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    const auto* const from = static_cast<const T*>(dy);
    if (rounded) {
      Launch(ConvWeightGradientKernel<T, T>, blocks, stream, g, n, weights, in, from,
             static_cast<T*>(dw));
    } else {
      Launch(ConvWeightGradientKernel<T, float>, blocks, stream, g, n, weights, in, from,
             static_cast<float*>(dw));
    }
  });
}

}  // namespace capstan::engine::cuda
