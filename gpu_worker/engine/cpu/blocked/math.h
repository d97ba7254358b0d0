// Inner loops of the blocked CPU kernels: 16 samples side by side.
//
// A value lies as [blocks][elements][16]: 16 samples of one element are adjacent. Each sample's
// sums are sequences of fused multiply-adds in one order, whatever the width of a register. The 16
// samples are added by one fixed tree. So the bits are the same on every instruction set.
//
// Pointers to 16 samples are aligned to 64 bytes. Threads: stateless.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_MATH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_MATH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu_worker/engine/cpu/blocked/lane_math.h"

namespace capstan::engine {

inline constexpr int64_t kSideBySide = 16;  // samples
inline constexpr int64_t kTileOutputs = 8;  // output channels of a tile of products
inline constexpr int64_t kMostTaps = 9;     // of a tile of weight gradients

// y[o][j] = start + sum over channels c and taps t of
//   weights[c][t][o] * x[c * channel_stride + taps[t] + j * x_step]
// for outputs o of [0, rows), rows <= kTileOutputs, and j of [0, count). Each is a vector of 16
// samples; strides are in floats. `start` is bias[o], or 0 if bias is null; with `add` it is the
// old value of y.
struct ProductsCall {
  int64_t channels = 0, channel_stride = 0;
  const int64_t* taps = nullptr;
  int64_t tap_count = 0;
  const float* x = nullptr;
  int64_t x_step = 0;
  int64_t count = 0;
  const float* weights = nullptr;  // [channels][tap_count][kTileOutputs]
  const float* bias = nullptr;     // [kTileOutputs]
  int64_t rows = 0;
  float* y = nullptr;
  int64_t y_row = 0;   // from output o to o + 1
  int64_t y_step = 0;  // from j to j + 1
  bool add = false;
};

// sums[o][t] = (add ? sums[o][t] : 0) + sum over p of [0, rows), q of [0, columns) of
//   dy[o * dy_plane + p * dy_row + q * 16] * x[p * x_row + q * x_step + taps[t]]
// for o of [0, outputs). Each is a vector of 16 samples; strides are in floats.
struct WeightSumsCall {
  int64_t rows = 0, columns = 0;
  const float* dy = nullptr;
  int64_t dy_plane = 0, dy_row = 0;
  int64_t outputs = 0;
  const float* x = nullptr;
  int64_t x_row = 0, x_step = 0;
  const int64_t* taps = nullptr;
  int64_t tap_count = 0;
  float* sums = nullptr;  // [outputs][tap_count][16]
  bool add = true;
};

// Offsets, in floats, at which a place is read in x and written in y.
struct PlaceOffsets {
  int64_t x = 0, y = 0;
};

// y[o * y_plane + place.y] = start + sum over channels c and taps t of
//   weights[o / 16][c][t][o % 16] * x[c * channel_stride + taps[t] + place.x]
// for o of [0, outputs) and `count` places. Each is a vector of 16 samples. `start` is bias[o], or
// 0 if bias is null; with `add` it is the old value of y.
struct PlaceProductsCall {
  int64_t channels = 0, channel_stride = 0;
  const int64_t* taps = nullptr;
  int64_t tap_count = 0;
  const float* x = nullptr;
  const PlaceOffsets* places = nullptr;
  int64_t count = 0;
  const float* weights = nullptr;  // [runs of 16 outputs][channels][tap_count][16]
  int64_t next_run = 0;            // floats
  const float* bias = nullptr;     // [outputs]
  int64_t outputs = 0;
  float* y = nullptr;
  int64_t y_plane = 0;
  bool add = false;
};

// sums[r][o] += sum over p of [0, rows), q of [0, columns) and samples l of
//   x[r * x_plane + p * x_row + q * x_step + l] * dy[p * dy_row + (q * 16 + l) * 16 * vectors + o]
// for r of [0, count) and o of [0, 16 * vectors). Each sum begins at 0 and is added when it is
// complete.
struct OuterSumsCall {
  int64_t rows = 0, columns = 0;
  const float* dy = nullptr;
  int64_t dy_row = 0;
  int64_t vectors = 0;
  const float* x = nullptr;
  int64_t x_plane = 0, x_row = 0, x_step = 0;
  int64_t count = 0;
  float* sums = nullptr;  // [count][16 * vectors]
};

// y = (x - mean) * scale + shift, then + other if it is given, then max(y, 0) if `relu`. y may be x
// or other.
struct NormalizeCall {
  int64_t size = 0;
  const float* x = nullptr;
  float mean = 0, scale = 0, shift = 0;
  const float* other = nullptr;
  bool relu = false;
  float* y = nullptr;
};

// sums[16] = sum of dz, products[16] = sum of dz * (x - mean). dz is dy or, if y is given, dy where
// y > 0.
struct NormalizeSumsCall {
  int64_t size = 0;
  const float* dy = nullptr;
  const float* y = nullptr;
  const float* x = nullptr;
  float mean = 0;
  float* sums = nullptr;
  float* products = nullptr;
};

// dx = (add ? dx : 0) + dz * a + (x - mean) * b + c, if dx is given. Then, if other is given, other
// = (add_other ? other : 0) + dz. dz as above. other may be dx or dy.
struct NormalizeBackwardCall {
  int64_t size = 0;
  const float* dy = nullptr;
  const float* y = nullptr;
  const float* x = nullptr;
  float mean = 0, a = 0, b = 0, c = 0;
  float* dx = nullptr;
  bool add = false;
  float* other = nullptr;
  bool add_other = false;
};

// Winograd's F(4x4, 3x3) has 36 frequencies per tile. winograd.h says how they are used.
inline constexpr int64_t kFrequencies = 36;

// For each i of [0, count): transforms the square of vectors at at[k] + i * steps[k], row by row,
// into 36 vectors at to + f * to_frequency + i * to_step. Sides: 6 for an image, 4 for a gradient,
// 3 for weights.
struct TransformCall {
  const float* const* at = nullptr;
  const int64_t* steps = nullptr;
  int64_t count = 0;
  float* to = nullptr;
  int64_t to_frequency = 0, to_step = 0;
};

// y[r][s] = (add ? y : 0) + inverse + bias for the existing rows and columns of the 4 x 4.
struct InverseCall {
  const float* from = nullptr;
  int64_t from_frequency = 0;
  float bias = 0;
  float* y = nullptr;
  int64_t y_row = 0;
  int64_t rows = 0, columns = 0;
  bool add = false;
};

// y[o][j] = (add ? y : 0) + sum over k of [0, depth) of w[k][o] * x[k][j], for o of [0, rows) and
// vectors j of [0, vectors). Rows of y up to 16 are written, too. Layout: w [depth][16], x
// [depth][4][16], y [16][4][16].
struct FrequencyCall {
  int64_t depth = 0;
  const float* w = nullptr;
  const float* x = nullptr;
  int64_t rows = 0, vectors = 0;  // up to 16, up to 4
  float* y = nullptr;
  bool add = false;
};

// For 16 samples that lie side by side.
struct SoftmaxRow {
  double largest[kSideBySide];  // largest logit
  double best[kSideBySide];     // its class, the first of equal ones; -1: a logit is a NaN
  double sum[kSideBySide];      // of exp(logit - largest), in the order of the classes
};

// gradient = (exp(logit - log_sum) - target) * scale. The target is `others`, plus `own` for the
// label's class.
struct SoftmaxGradientCall {
  int64_t classes = 0;
  const float* logits = nullptr;     // [classes, 16]
  const double* labels = nullptr;    // [16]
  const double* log_sums = nullptr;  // [16]
  double others = 0, own = 1, scale = 1;
  float* gradient = nullptr;  // [classes, 16]
};

// The loops for one instruction set. `size` is in floats and a multiple of 16.
struct BlockedMath {
  void (*products)(const ProductsCall& call);
  void (*weight_sums)(const WeightSumsCall& call);
  // y = max(x, 0), NaN stays NaN. y may be x.
  void (*relu)(int64_t size, const float* x, float* y);
  // dx = (add ? dx : 0) + (y > 0 ? dy : 0). dx may be dy.
  void (*relu_backward)(int64_t size, const float* y, const float* dy, float* dx, bool add);
  // y = x, or y += x.
  void (*copy)(int64_t size, const float* x, float* y, bool add);
  // y = x * scale, or y += x * scale.
  void (*scale)(int64_t size, const float* x, float scale, float* y, bool add);
  void (*normalize)(const NormalizeCall& call);
  // sums[16] = sum of x over its vectors.
  void (*sum)(int64_t size, const float* x, float* sums);
  // sums[16] = sum of (x - mean)^2.
  void (*square_sum)(int64_t size, const float* x, float mean, float* sums);
  void (*normalize_sums)(const NormalizeSumsCall& call);
  void (*normalize_backward)(const NormalizeBackwardCall& call);
  void (*transform_image)(const TransformCall& call);
  void (*transform_gradient)(const TransformCall& call);
  void (*transform_weights)(const TransformCall& call);
  void (*inverse_output)(const InverseCall& call);
  // Transforms 36 vectors into 3 x 3 adjacent ones.
  void (*inverse_weights)(const float* from, int64_t from_frequency, float* to);
  void (*frequency_products)(const FrequencyCall& call);
  // Transposes 16 rows of 16 floats.
  void (*transpose)(const float* from, int64_t from_row, float* to, int64_t to_row);
  void (*conv_pool)(const ConvPoolCall& call);
  void (*unpool)(const UnpoolCall& call);
  void (*spread)(const SpreadCall& call);
  void (*dense)(const DenseCall& call);
  void (*dense_weights)(const DenseWeightsCall& call);
  // to[i] = SumOfSamples(from + 16 * i), for i of [0, count).
  void (*sum_samples)(int64_t count, const float* from, float* to);
  void (*outer_sums)(const OuterSumsCall& call);
  void (*place_products)(const PlaceProductsCall& call);
  // For 16 samples; logits [classes, 16].
  void (*softmax_sums)(int64_t classes, const float* logits, SoftmaxRow& row);
  void (*softmax_gradient)(const SoftmaxGradientCall& call);
  absl::string_view target;  // one of the words below
};

// Values of CAPSTAN_CPU_TARGET. `emulated` is the baseline of the build. On x86-64 that has no
// fused multiply-add, so the C library computes them.
inline constexpr char kAvx512[] = "avx512", kAvx2[] = "avx2", kEmulated[] = "emulated";

// The loops that this processor can run, the widest first; never empty.
const std::vector<const BlockedMath*>& PresentMath();

// The loops among `present` that `word` names. InvalidArgument: not one of the words;
// FailedPrecondition: the processor lacks that instruction set.
absl::StatusOr<const BlockedMath*> MathOf(absl::string_view word,
                                          absl::Span<const BlockedMath* const> present);

// The sum of 16 samples by the one fixed tree.
inline float SumOfSamples(const float* a) {
  float eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = a[i] + a[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_MATH_H_
