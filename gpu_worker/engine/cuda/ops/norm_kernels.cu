#include <algorithm>
#include <cmath>

#include "gpu_worker/engine/cuda/element_launch.h"
#include "gpu_worker/engine/cuda/ops/norm_kernels.h"

namespace capstan::engine::cuda {
namespace {

template <typename T>
CAPSTAN_HD void KeepOrAdd(bool add, float value, T* to) {
  *to = T(add ? float(*to) + value : value);
}

// Part BlockIndex() of kSumParts of two sums over rows, for each column: parts[sum][part][column].
// `term` adds the summands of (row, column). If there are few columns, the threads of a block are
// lanes x columns, as in ColumnSumKernel.
template <typename AddTerm>
__device__ void TwoColumnSums(int32_t rows, int32_t columns, float* parts, AddTerm term) {
  __shared__ float first[kThreads];
  __shared__ float second[kThreads];
  const auto block = static_cast<int32_t>(BlockIndex());
  const int32_t lanes = columns < kThreads ? kThreads / columns : 1;
  float* const to_first = parts + block * columns;
  float* const to_second = to_first + kSumParts * columns;
  EachThread([&](int thread) {
    const int32_t lane = lanes == 1 ? 0 : thread / columns;
    first[thread] = second[thread] = 0;
    if (lane >= lanes) return;
    for (int32_t c = lanes == 1 ? thread : thread % columns; c < columns; c += kThreads) {
      float a = 0, b = 0;
      for (int32_t j = block * lanes + lane; j < rows; j += kSumParts * lanes) term(j, c, a, b);
      if (lanes == 1) to_first[c] = a, to_second[c] = b;
      first[thread] = a, second[thread] = b;
    }
  });
  if (lanes == 1) return;
  EachThread([&](int thread) {
    if (thread >= columns) return;
    float a = 0, b = 0;
    for (int32_t lane = 0; lane < lanes; ++lane) {
      a += first[lane * columns + thread];
      b += second[lane * columns + thread];
    }
    to_first[thread] = a, to_second[thread] = b;
  });
}

// Of column c; sum 0 or 1.
CAPSTAN_HD float SumOfParts(const float* parts, int32_t columns, int32_t c, int sum) {
  float all = 0;
  for (int32_t part = 0; part < kSumParts; ++part) {
    all += parts[(sum * kSumParts + part) * columns + c];
  }
  return all;
}

template <typename T>
__global__ void ChannelSumKernel(ChannelRows g, const T* x, float* parts) {
  TwoColumnSums(g.rows, g.channels, parts,
                [&](int32_t j, int32_t c, float& a, float&) { a += float(x[RowPlace(g, j, c)]); });
}

__global__ void MeanKernel(int32_t channels, int32_t rows, const float* parts, float* mean) {
  ForElements(channels, [&](int64_t c) {
    mean[c] = SumOfParts(parts, channels, static_cast<int32_t>(c), 0) / static_cast<float>(rows);
  });
}

template <typename T>
__global__ void ChannelSquareKernel(ChannelRows g, const T* x, const float* mean, float* parts) {
  TwoColumnSums(g.rows, g.channels, parts, [&](int32_t j, int32_t c, float& a, float&) {
    const float distance = float(x[RowPlace(g, j, c)]) - mean[c];
    a += distance * distance;
  });
}

__global__ void ScaleKernel(int32_t channels, int32_t rows, float epsilon, const float* parts,
                            float* scale, float* variance) {
  ForElements(channels, [&](int64_t c) {
    const float sum = SumOfParts(parts, channels, static_cast<int32_t>(c), 0);
    const float biased = sum / static_cast<float>(rows);
    scale[c] = 1 / std::sqrt(biased + epsilon);
    variance[c] = rows > 1 ? sum / static_cast<float>(rows - 1) : biased;
  });
}

__global__ void RunningMomentsKernel(int32_t channels, float epsilon, const float* mean,
                                     const float* variance, float* to_mean, float* to_scale) {
  ForElements(channels, [&](int64_t c) {
    to_mean[c] = mean[c];
    to_scale[c] = 1 / std::sqrt(variance[c] + epsilon);
  });
}

// The channel of place i, in the order in which the numbers lie.
CAPSTAN_HD int32_t ChannelOf(const ChannelRows& g, int32_t i) {
  return g.channels_last ? i % g.channels : i / g.pixels % g.channels;
}

template <typename T>
__global__ void BatchNormKernel(ChannelRows g, Moments moments, const float* weight,
                                const float* bias, const T* x, const T* z, bool relu, T* y) {
  ForElements(int64_t{g.rows} * g.channels, [&](int64_t i) {
    const int32_t c = ChannelOf(g, static_cast<int32_t>(i));
    float v = weight[c] * ((float(x[i]) - moments.mean[c]) * moments.scale[c]) + bias[c];
    if (z != nullptr) v += float(z[i]);
    y[i] = T(relu ? Positive(v) : v);
  });
}

// Sums of dy and of dy * z.
template <typename T>
__global__ void BatchNormSumsKernel(ChannelRows g, Moments moments, const T* x, const T* dy,
                                    float* parts) {
  TwoColumnSums(g.rows, g.channels, parts, [&](int32_t j, int32_t c, float& a, float& b) {
    const int32_t at = RowPlace(g, j, c);
    a += float(dy[at]);
    b += float(dy[at]) * ((float(x[at]) - moments.mean[c]) * moments.scale[c]);
  });
}

__global__ void BatchNormParametersKernel(int32_t channels, Moments moments,
                                          const double* loss_scale, int32_t samples,
                                          const float* parts, BatchNormGradients to) {
  ForElements(channels, [&](int64_t at) {
    const auto c = static_cast<int32_t>(at);
    to.bias[c] = SumOfParts(parts, channels, c, 0);
    to.weight[c] = SumOfParts(parts, channels, c, 1);
    const double share = *loss_scale * samples;
    to.mean[c] = static_cast<float>(moments.mean[c] * share);
    to.variance[c] = static_cast<float>(moments.variance[c] * share);
  });
}

template <typename T>
__global__ void BatchNormDataKernel(ChannelRows g, Moments moments, const float* weight, const T* x,
                                    const T* dy, const float* dweight, const float* dbias, bool add,
                                    T* dx) {
  const float n = static_cast<float>(g.rows);
  ForElements(int64_t{g.rows} * g.channels, [&](int64_t i) {
    const int32_t c = ChannelOf(g, static_cast<int32_t>(i));
    const float z = (float(x[i]) - moments.mean[c]) * moments.scale[c];
    KeepOrAdd(add,
              weight[c] * moments.scale[c] * (float(dy[i]) - dbias[c] / n - z * dweight[c] / n),
              dx + i);
  });
}

// Adds up sums[0] to sums[kThreads - 1] into sums[0]; `second` likewise.
__device__ void AddUp(float* sums, float* second) {
  for (int width = kThreads / 2; width > 0; width /= 2) {
    EachThread([&](int thread) {
      if (thread >= width) return;
      sums[thread] += sums[thread + width];
      second[thread] += second[thread + width];
    });
  }
}

// One block for each row.
template <typename T>
__global__ void LayerNormKernel(int32_t rows, int32_t size, float epsilon, const float* weight,
                                const float* bias, const T* x, T* y, Moments to) {
  __shared__ float sums[kThreads];
  __shared__ float unused[kThreads];
  const float n = static_cast<float>(size);
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t row = static_cast<int32_t>(BlockIndex()); row < rows; row += stride) {
    const T* const in = x + row * size;
    EachThread([&](int thread) {
      sums[thread] = unused[thread] = 0;
      for (int32_t i = thread; i < size; i += kThreads) sums[thread] += float(in[i]);
    });
    AddUp(sums, unused);
    EachThread([&](int thread) {
      if (thread == 0) to.mean[row] = sums[0] / n;
    });
    EachThread([&](int thread) {
      const float mean = to.mean[row];
      sums[thread] = 0;
      for (int32_t i = thread; i < size; i += kThreads) {
        sums[thread] += (float(in[i]) - mean) * (float(in[i]) - mean);
      }
    });
    AddUp(sums, unused);
    EachThread([&](int thread) {
      if (thread == 0) to.scale[row] = 1 / std::sqrt(sums[0] / n + epsilon);
    });
    EachThread([&](int thread) {
      const float mean = to.mean[row], scale = to.scale[row];
      for (int32_t i = thread; i < size; i += kThreads) {
        y[row * size + i] = T(weight[i] * ((float(in[i]) - mean) * scale) + bias[i]);
      }
    });
  }
}

// One block for each row.
template <typename T>
__global__ void LayerNormDataKernel(int32_t rows, int32_t size, Moments moments,
                                    const float* weight, const T* x, const T* dy, bool add, T* dx) {
  __shared__ float sums[kThreads];
  __shared__ float products[kThreads];
  const float n = static_cast<float>(size);
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t row = static_cast<int32_t>(BlockIndex()); row < rows; row += stride) {
    const float mean = moments.mean[row], scale = moments.scale[row];
    const int32_t first = row * size;
    EachThread([&](int thread) {
      float sum = 0, product = 0;
      for (int32_t i = thread; i < size; i += kThreads) {
        const float g = weight[i] * float(dy[first + i]);
        sum += g;
        product += g * ((float(x[first + i]) - mean) * scale);
      }
      sums[thread] = sum;
      products[thread] = product;
    });
    AddUp(sums, products);
    EachThread([&](int thread) {
      const float sum = sums[0] / n, product = products[0] / n;
      for (int32_t i = thread; i < size; i += kThreads) {
        const float z = (float(x[first + i]) - mean) * scale;
        KeepOrAdd(add, scale * (weight[i] * float(dy[first + i]) - sum - z * product),
                  dx + first + i);
      }
    });
  }
}

template <typename T>
__global__ void LayerNormSumsKernel(int32_t rows, int32_t size, Moments moments, const T* x,
                                    const T* dy, float* parts) {
  TwoColumnSums(rows, size, parts, [&](int32_t j, int32_t c, float& a, float& b) {
    const int32_t at = j * size + c;
    a += float(dy[at]);
    b += float(dy[at]) * ((float(x[at]) - moments.mean[j]) * moments.scale[j]);
  });
}

__global__ void LayerNormParametersKernel(int32_t size, const float* parts, float* dweight,
                                          float* dbias) {
  ForElements(size, [&](int64_t at) {
    const auto c = static_cast<int32_t>(at);
    dbias[c] = SumOfParts(parts, size, c, 0);
    dweight[c] = SumOfParts(parts, size, c, 1);
  });
}

// One block for each line.
template <bool kLog, typename T>
__global__ void SoftmaxKernel(int32_t lines, int32_t size, int32_t step, const T* x, T* y) {
  __shared__ float largest[kThreads];
  __shared__ float sums[kThreads];
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t line = static_cast<int32_t>(BlockIndex()); line < lines; line += stride) {
    const int32_t first = line / step * size * step + line % step;
    EachThread([&](int thread) {
      largest[thread] = x[first];
      sums[thread] = 0;
      for (int32_t i = thread; i < size; i += kThreads) {
        const float v = x[first + i * step];
        if (v > largest[thread]) largest[thread] = v;
      }
    });
    for (int width = kThreads / 2; width > 0; width /= 2) {
      EachThread([&](int thread) {
        if (thread < width && largest[thread + width] > largest[thread]) {
          largest[thread] = largest[thread + width];
        }
      });
    }
    EachThread([&](int thread) {
      for (int32_t i = thread; i < size; i += kThreads) {
        sums[thread] += std::exp(float(x[first + i * step]) - largest[0]);
      }
    });
    for (int width = kThreads / 2; width > 0; width /= 2) {
      EachThread([&](int thread) {
        if (thread < width) sums[thread] += sums[thread + width];
      });
    }
    EachThread([&](int thread) {
      for (int32_t i = thread; i < size; i += kThreads) {
        const float distance = float(x[first + i * step]) - largest[0];
        y[first + i * step] = T(kLog ? distance - std::log(sums[0]) : std::exp(distance) / sums[0]);
      }
    });
  }
}

// One block for each line.
template <bool kLog, typename T>
__global__ void SoftmaxBackwardKernel(int32_t lines, int32_t size, int32_t step, bool add,
                                      const T* y, const T* dy, T* dx) {
  __shared__ float sums[kThreads];
  const auto stride = static_cast<int32_t>(BlockCount());
  for (int32_t line = static_cast<int32_t>(BlockIndex()); line < lines; line += stride) {
    const int32_t first = line / step * size * step + line % step;
    EachThread([&](int thread) {
      sums[thread] = 0;
      for (int32_t i = thread; i < size; i += kThreads) {
        const int32_t at = first + i * step;
        sums[thread] += kLog ? float(dy[at]) : float(dy[at]) * float(y[at]);
      }
    });
    for (int width = kThreads / 2; width > 0; width /= 2) {
      EachThread([&](int thread) {
        if (thread < width) sums[thread] += sums[thread + width];
      });
    }
    EachThread([&](int thread) {
      for (int32_t i = thread; i < size; i += kThreads) {
        const int32_t at = first + i * step;
        KeepOrAdd(add,
                  kLog ? float(dy[at]) - std::exp(float(y[at])) * sums[0]
                       : float(y[at]) * (float(dy[at]) - sums[0]),
                  dx + at);
      }
    });
  }
}

template <typename T>
__global__ void LrnKernel(LrnRule g, ChannelRows rows, const T* x, T* y) {
  ForElements(int64_t{rows.rows} * rows.channels, [&](int64_t i) {
    const int32_t c = ChannelOf(rows, static_cast<int32_t>(i));
    y[i] = T(LrnValue(g, x + (i - int64_t{c} * g.step), c));
  });
}

template <typename T>
__global__ void LrnBackwardKernel(LrnRule g, ChannelRows rows, bool add, const T* x, const T* dy,
                                  T* dx) {
  ForElements(int64_t{rows.rows} * rows.channels, [&](int64_t i) {
    const int32_t c = ChannelOf(rows, static_cast<int32_t>(i));
    const int64_t first = i - int64_t{c} * g.step;
    KeepOrAdd(add, LrnGradient(g, x + first, dy + first, c), dx + i);
  });
}

unsigned BlocksOfRows(int32_t rows) { return static_cast<unsigned>(std::min(rows, 65535)); }

}  // namespace

cudaError_t LaunchBatchMoments(cudaStream_t stream, Element e, const ChannelRows& g, float epsilon,
                               const void* x, float* parts, const Moments& to) {
  const cudaError_t error = ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    Launch(ChannelSumKernel<T>, kSumParts, stream, g, in, parts);
    Launch(MeanKernel, Blocks(g.channels), stream, g.channels, g.rows, parts, to.mean);
    Launch(ChannelSquareKernel<T>, kSumParts, stream, g, in, to.mean, parts);
  });
  if (error != cudaSuccess) return error;
  Launch(ScaleKernel, Blocks(g.channels), stream, g.channels, g.rows, epsilon, parts, to.scale,
         to.variance);
  return cudaGetLastError();
}

cudaError_t LaunchRunningMoments(cudaStream_t stream, int32_t channels, float epsilon,
                                 const float* mean, const float* variance, const Moments& to) {
  Launch(RunningMomentsKernel, Blocks(channels), stream, channels, epsilon, mean, variance, to.mean,
         to.scale);
  return cudaGetLastError();
}

cudaError_t LaunchBatchNorm(cudaStream_t stream, Element e, const ChannelRows& g,
                            const Moments& moments, const float* weight, const float* bias,
                            const void* x, const void* z, bool relu, void* y) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(BatchNormKernel<T>, Blocks(int64_t{g.rows} * g.channels), stream, g, moments, weight,
           bias, static_cast<const T*>(x), static_cast<const T*>(z), relu, static_cast<T*>(y));
  });
}

cudaError_t LaunchBatchNormBackward(cudaStream_t stream, Element e, const ChannelRows& g,
                                    const Moments& moments, const float* weight,
                                    const double* loss_scale, int32_t samples, const void* x,
                                    const void* dy, float* parts, const BatchNormGradients& to) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    const auto* const from = static_cast<const T*>(dy);
    Launch(BatchNormSumsKernel<T>, kSumParts, stream, g, moments, in, from, parts);
    Launch(BatchNormParametersKernel, Blocks(g.channels), stream, g.channels, moments, loss_scale,
           samples, parts, to);
    if (to.x == nullptr) return;
    Launch(BatchNormDataKernel<T>, Blocks(int64_t{g.rows} * g.channels), stream, g, moments, weight,
           in, from, to.weight, to.bias, to.add, static_cast<T*>(to.x));
  });
}

cudaError_t LaunchLayerNorm(cudaStream_t stream, Element e, int32_t rows, int32_t size,
                            float epsilon, const float* weight, const float* bias, const void* x,
                            void* y, const Moments& to) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(LayerNormKernel<T>, BlocksOfRows(rows), stream, rows, size, epsilon, weight, bias,
           static_cast<const T*>(x), static_cast<T*>(y), to);
  });
}

cudaError_t LaunchLayerNormBackward(cudaStream_t stream, Element e, int32_t rows, int32_t size,
                                    const Moments& moments, const float* weight, const void* x,
                                    const void* dy, float* parts, float* dweight, float* dbias,
                                    bool add, void* dx) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto* const in = static_cast<const T*>(x);
    const auto* const from = static_cast<const T*>(dy);
    Launch(LayerNormSumsKernel<T>, kSumParts, stream, rows, size, moments, in, from, parts);
    Launch(LayerNormParametersKernel, Blocks(size), stream, size, parts, dweight, dbias);
    if (dx == nullptr) return;
    Launch(LayerNormDataKernel<T>, BlocksOfRows(rows), stream, rows, size, moments, weight, in,
           from, add, static_cast<T*>(dx));
  });
}

cudaError_t LaunchSoftmax(cudaStream_t stream, Element e, bool log, int32_t lines, int32_t size,
                          int32_t step, const void* x, void* y) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(log ? SoftmaxKernel<true, T> : SoftmaxKernel<false, T>, BlocksOfRows(lines), stream,
           lines, size, step, static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t LaunchSoftmaxBackward(cudaStream_t stream, Element e, bool log, bool add, int32_t lines,
                                  int32_t size, int32_t step, const void* y, const void* dy,
                                  void* dx) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(log ? SoftmaxBackwardKernel<true, T> : SoftmaxBackwardKernel<false, T>,
           BlocksOfRows(lines), stream, lines, size, step, add, static_cast<const T*>(y),
           static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

cudaError_t LaunchLrn(cudaStream_t stream, Element e, const LrnRule& g, const ChannelRows& rows,
                      const void* x, void* y) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(LrnKernel<T>, Blocks(int64_t{rows.rows} * rows.channels), stream, g, rows,
           static_cast<const T*>(x), static_cast<T*>(y));
  });
}

cudaError_t LaunchLrnBackward(cudaStream_t stream, Element e, const LrnRule& g,
                              const ChannelRows& rows, bool add, const void* x, const void* dy,
                              void* dx) {
  return ForElement(e, [=](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    Launch(LrnBackwardKernel<T>, Blocks(int64_t{rows.rows} * rows.channels), stream, g, rows, add,
           static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dx));
  });
}

}  // namespace capstan::engine::cuda
