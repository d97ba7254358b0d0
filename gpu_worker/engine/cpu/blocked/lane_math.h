// Arguments of the loops for small nets (math.h): convolution with pooling in one pass, and dense
// layers over a whole lane. Strides are in floats; a vector is 16 samples.
//
// Weights are read directly from the flat vector. Nothing is packed.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_LANE_MATH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_LANE_MATH_H_

#include <cstdint>

namespace capstan::engine {

// For a window of 2 x 2: two bytes per place, one bit per sample. A set bit means that the gradient
// goes there.
inline constexpr int64_t kMaskBytes = 8;

// Convolution of stride 1, Relu and pooling of windows of 2 x 2 that do not overlap. For outputs o
// and windows (p, q):
//   a[o][h][w] = bias[o] + sum over taps t and, within each tap, channels c of
//     weights[(o * channels + c) * tap_count + t] *
//     x[c * channel_stride + h * x_row + w * 16 + taps[t]]
// y [outputs][rows][columns][16] is the largest of max(a, 0) over the window, or its mean. A NaN
// stays. masks [outputs][rows][columns][kMaskBytes]: the first of the largest values if it is above
// 0; with a mean, all values above 0.
struct ConvPoolCall {
  int64_t channels = 0, channel_stride = 0;
  const int64_t* taps = nullptr;
  int64_t tap_count = 0;
  const float* x = nullptr;
  int64_t x_row = 0;
  const float* weights = nullptr;
  const float* bias = nullptr;  // null: zeros
  int64_t outputs = 0;
  int64_t rows = 0, columns = 0;
  bool max = false;
  float* y = nullptr;
  uint8_t* masks = nullptr;
};

// to [2 * rows][2 * columns][16] from dy [rows][columns][16]: dy * scale where the mask has a bit,
// else 0. If `sums` is given, everything written is also added to its 16 samples, window by window.
struct UnpoolCall {
  int64_t rows = 0, columns = 0;
  const float* dy = nullptr;
  const uint8_t* masks = nullptr;
  float scale = 1;
  float* to = nullptr;
  float* sums = nullptr;
};

// The gradient by the input of a convolution of stride 1 without margins:
//   dx[c * dx_plane + h * dx_row + w * 16] = (add ? dx : 0) + sum over outputs o and taps (r, s) of
//       weights[o * weight_stride + (c * kernel_rows + r) * kernel_columns + s] *
//       dy[o][h - r][w - s]
// for channels c and all places that dy [outputs][rows][columns][16] reaches: rows + kernel_rows -
// 1 rows, columns likewise. kernel_columns is 3 or 5, and columns is even.
struct SpreadCall {
  int64_t outputs = 0, rows = 0, columns = 0;
  const float* dy = nullptr;
  int64_t kernel_rows = 0, kernel_columns = 0;
  const float* weights = nullptr;
  int64_t weight_stride = 0;
  int64_t channels = 0;
  float* dx = nullptr;
  int64_t dx_plane = 0, dx_row = 0;
  bool add = false;
};

// y[j * y_step + o * 16] = start + sum over k of [0, depth) of
//   weights[o * w_output + k * w_depth] * x[j * x_step + k * 16]
// for outputs o and vectors j of [0, count). `start` is bias[o], or 0 if bias is null; with `add`
// it is the old value of y. With `relu` the result is the maximum of that and 0; a NaN stays.
struct DenseCall {
  int64_t depth = 0, outputs = 0, count = 0;
  const float* x = nullptr;
  int64_t x_step = 0;
  const float* weights = nullptr;
  int64_t w_output = 0, w_depth = 0;
  const float* bias = nullptr;
  float* y = nullptr;
  int64_t y_step = 0;
  bool add = false, relu = false;
};

// Size of a tile of a dense layer's weight gradient.
inline constexpr int64_t kDenseInputs = 32, kDenseOutputs = 12;

// to[o * kDenseInputs + i] = the sum over samples s, one after the other, of
//   dy[s / 16 * dy_step + o * 16 + s % 16] * x[s * kDenseInputs + i]
// for outputs o and inputs i. `outputs` is 1 to kDenseOutputs, `inputs` 16 or 32.
struct DenseWeightsCall {
  int64_t samples = 0;
  const float* dy = nullptr;
  int64_t dy_step = 0, outputs = 0;
  const float* x = nullptr;
  int64_t inputs = 0;
  float* to = nullptr;
};

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_LANE_MATH_H_
