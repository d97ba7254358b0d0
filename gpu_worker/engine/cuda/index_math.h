// The work of one thread of a kernel, as functions that a CPU can run too. The kernels and the test
// plug-in share them, so that a machine without a card checks every index.
//
// Images are NHWC, filters OHWI, and indices int32, because program.h refuses larger tensors. T is
// the type of the elements and Sum<T> that of sums. A result is rounded to T once. Results are the
// same for every schedule of threads.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_INDEX_MATH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_INDEX_MATH_H_

#include <cmath>
#include <cstdint>

#include "gpu_worker/engine/cuda/half16.h"

namespace capstan::engine::cuda {

// A window that slides over an image, for a convolution or a pooling.
struct WindowGeometry {
  int32_t in_c = 1, in_h = 1, in_w = 1;
  int32_t out_c = 1, out_h = 1, out_w = 1;
  int32_t kernel_h = 1, kernel_w = 1;
  int32_t stride_h = 1, stride_w = 1;
  int32_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
  int32_t dilation_h = 1, dilation_w = 1;
  int32_t groups = 1;       // of a convolution: divides the channels of input and output
  bool count_pads = false;  // in a mean
};

// The canonical order of images, filters and flattened images is [n, channels, pixels]; the
// kernels' order is [n, pixels, channels]. Returns the canonical place of place i of the kernels'
// order.
CAPSTAN_HD int32_t CanonicalPlace(int32_t i, int32_t channels, int32_t pixels) {
  const int32_t c = i % channels, rest = i / channels;
  return (rest / pixels * channels + c) * pixels + rest % pixels;
}

// Weights that kernels need in another order or type than in the flat vector: [rows, channels,
// pixels] there becomes [rows, pixels, channels].
struct WeightCopy {
  const void* from = nullptr;
  void* to = nullptr;
  int64_t elements = 0;
  int32_t channels = 1, pixels = 1;
};

// A NaN stays, because the comparison is false.
template <typename T>
CAPSTAN_HD T Positive(T x) {
  return x < T(0) ? T(0) : x;
}

template <typename T>
CAPSTAN_HD T MaskedBy(T y, T gradient) {
  return y > T(0) ? gradient : T(0);
}

// std::isnan for both host and device functions.
template <typename T>
CAPSTAN_HD bool IsNan(T v) {
  return v != v;  // NOLINT(misc-redundant-expression)
}

// y[i] of a convolution. `bias` may be null.
template <typename T>
CAPSTAN_HD T ConvForwardAt(const WindowGeometry& g, const T* x, const T* weight, const T* bias,
                           bool relu, int32_t i) {
  const int32_t k = i % g.out_c, q = i / g.out_c % g.out_w;
  const int32_t p = i / (g.out_c * g.out_w) % g.out_h, n = i / (g.out_c * g.out_w * g.out_h);
  const int32_t channels = g.in_c / g.groups;  // of a filter
  const int32_t first_c = k / (g.out_c / g.groups) * channels;
  Sum<T> sum = 0;
  for (int32_t r = 0; r < g.kernel_h; ++r) {
    const int32_t h = p * g.stride_h + r * g.dilation_h - g.pad_top;
    if (h < 0 || h >= g.in_h) continue;
    const T* const row = x + (n * g.in_h + h) * g.in_w * g.in_c + first_c;
    const T* const filter = weight + (k * g.kernel_h + r) * g.kernel_w * channels;
    const int32_t left = q * g.stride_w - g.pad_left;
    if (g.dilation_w == 1 && g.groups == 1) {  // adjacent: one run of pixels and channels
      const int32_t first = left < 0 ? -left : 0;
      const int32_t end = g.in_w - left < g.kernel_w ? g.in_w - left : g.kernel_w;
      const T* const in = row + left * g.in_c;
      for (int32_t t = first * g.in_c; t < end * g.in_c; ++t) sum += in[t] * filter[t];
      continue;
    }
    for (int32_t s = 0; s < g.kernel_w; ++s) {
      const int32_t w = left + s * g.dilation_w;
      if (w < 0 || w >= g.in_w) continue;
      for (int32_t c = 0; c < channels; ++c) sum += row[w * g.in_c + c] * filter[s * channels + c];
    }
  }
  if (bias != nullptr) sum += bias[k];
  return T(relu ? Positive(sum) : sum);
}

// dx[i] of a convolution.
template <typename T>
CAPSTAN_HD T ConvDataGradientAt(const WindowGeometry& g, const T* dy, const T* weight, int32_t i) {
  const int32_t c = i % g.in_c, w = i / g.in_c % g.in_w;
  const int32_t h = i / (g.in_c * g.in_w) % g.in_h, n = i / (g.in_c * g.in_w * g.in_h);
  const int32_t channels = g.in_c / g.groups, outputs = g.out_c / g.groups;
  const int32_t first_k = c / channels * outputs;
  Sum<T> sum = 0;
  for (int32_t r = 0; r < g.kernel_h; ++r) {
    const int32_t top = h + g.pad_top - r * g.dilation_h;
    if (top < 0 || top % g.stride_h != 0 || top / g.stride_h >= g.out_h) continue;
    for (int32_t s = 0; s < g.kernel_w; ++s) {
      const int32_t left = w + g.pad_left - s * g.dilation_w;
      if (left < 0 || left % g.stride_w != 0 || left / g.stride_w >= g.out_w) continue;
      const T* const d =
          dy + ((n * g.out_h + top / g.stride_h) * g.out_w + left / g.stride_w) * g.out_c;
      for (int32_t k = first_k; k < first_k + outputs; ++k) {
        sum += d[k] * weight[((k * g.kernel_h + r) * g.kernel_w + s) * channels + c % channels];
      }
    }
  }
  return T(sum);
}

// Part `part` of `parts` of dw[i] of a convolution over n samples: every parts-th row of outputs.
template <typename T>
CAPSTAN_HD Sum<T> ConvWeightGradientPart(const WindowGeometry& g, int32_t n, const T* x,
                                         const T* dy, int32_t i, int32_t part, int32_t parts) {
  const int32_t channels = g.in_c / g.groups;
  const int32_t s = i / channels % g.kernel_w, r = i / (channels * g.kernel_w) % g.kernel_h;
  const int32_t k = i / (channels * g.kernel_w * g.kernel_h);
  const int32_t c = k / (g.out_c / g.groups) * channels + i % channels;
  Sum<T> sum = 0;
  for (int32_t row = part; row < n * g.out_h; row += parts) {
    const int32_t p = row % g.out_h;
    const int32_t h = p * g.stride_h + r * g.dilation_h - g.pad_top;
    if (h < 0 || h >= g.in_h) continue;
    const T* const in = x + (row / g.out_h * g.in_h + h) * g.in_w * g.in_c + c;
    const T* const d = dy + row * g.out_w * g.out_c + k;
    for (int32_t q = 0; q < g.out_w; ++q) {
      const int32_t w = q * g.stride_w + s * g.dilation_w - g.pad_left;
      if (w >= 0 && w < g.in_w) sum += in[w * g.in_c] * d[q * g.out_c];
    }
  }
  return sum;
}

// Softmax and cross-entropy of one row of logits. `gradient` may be null. A label of -1 does not
// count.
struct LossOfRow {
  double loss = 0;
  int32_t correct = 0;
};
template <typename T>
CAPSTAN_HD LossOfRow SoftmaxLossRow(const T* logits, int32_t classes, int32_t label, double scale,
                                    T* gradient, float smoothing = 0) {
  Sum<T> best = logits[0];
  int32_t place = 0;
  bool nan = IsNan(best);
  for (int32_t k = 1; k < classes; ++k) {
    const Sum<T> v = logits[k];
    if (v > best) best = v, place = k;
    nan = nan || IsNan(v);
  }
  LossOfRow row;
  row.correct = !nan && place == label;
  if (label < 0) {
    for (int32_t k = 0; gradient != nullptr && k < classes; ++k) gradient[k] = T(0);
    return row;
  }
  Sum<T> sum = 0;
  for (int32_t k = 0; k < classes; ++k) sum += std::exp(logits[k] - best);
  const Sum<T> share = Sum<T>(smoothing) / Sum<T>(classes), rest = Sum<T>(1) - Sum<T>(smoothing);
  if (gradient != nullptr) {
    for (int32_t k = 0; k < classes; ++k) {
      const Sum<T> softmax = std::exp(logits[k] - best) / sum;
      const Sum<T> target =
          smoothing == 0 ? Sum<T>(k == label ? 1 : 0) : share + (k == label ? rest : Sum<T>(0));
      gradient[k] = T(Sum<T>(scale) * (softmax - target));
    }
  }
  const double log_sum = std::log(double(sum));
  row.loss = log_sum + (double(best) - double(logits[label]));
  if (smoothing == 0) return row;
  double others = 0;
  for (int32_t k = 0; k < classes; ++k) others += log_sum + (double(best) - double(logits[k]));
  row.loss = double(rest) * row.loss + double(share) * others;
  return row;
}

// Output k minus its target.
template <typename T>
CAPSTAN_HD double ErrorAt(const T* outputs, const float* targets, int64_t k) {
  return double(float(outputs[k])) - double(targets[k]);
}

// Number of parts of a sum over rows. It is fixed, so that the bits do not depend on the card.
inline constexpr int32_t kSumParts = 64;

// Part `part` of the sum over `rows` of column c.
template <typename T>
CAPSTAN_HD Sum<T> ColumnSumPart(const T* values, int32_t rows, int32_t columns, int32_t c,
                                int32_t part, int32_t parts) {
  Sum<T> sum = 0;
  for (int32_t row = part; row < rows; row += parts) sum += values[row * columns + c];
  return sum;
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_INDEX_MATH_H_
