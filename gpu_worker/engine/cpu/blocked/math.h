// Inner loops of the blocked CPU kernels: 16 samples side by side.
//
// A value lies as [blocks][elements][16]: 16 samples of one element follow each other. Each sample's sums
// are sequences of fused multiply-adds in one order, whatever the width of a register; where the 16 samples
// are added there is one fixed tree. So the bits are the same on every instruction set.
//
// Pointers are aligned to 64 bytes where they point to 16 samples. Threads: stateless.
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

// y[o][j] = start + sum over channels c and taps t of weights[c][t][o] * x[c * channel_stride + taps[t] + j * x_step],
// for outputs o of [0, rows), rows <= kTileOutputs, and j of [0, count); each a vector of 16 samples, strides in
// floats. `start` is bias[o], 0 where bias is null, or, where `add`, what y holds.
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
// for o of [0, outputs); each a vector of 16 samples, strides in floats.
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

// Where a place is read in x and written in y, in floats.
struct PlaceOffsets {
  int64_t x = 0, y = 0;
};

// y[o * y_plane + place.y] = start + sum over channels c and taps t of
//   weights[o / 16][c][t][o % 16] * x[c * channel_stride + taps[t] + place.x]
// for o of [0, outputs) and `count` places; each a vector of 16 samples. `start` is bias[o], 0 where bias is null,
// or, where `add`, what y holds.
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
// for r of [0, count) and o of [0, 16 * vectors): sums begin at 0 and are added when they are whole.
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

// y = (add ? y : 0) + (dropped ? 0 : x * scale) for elements [first, first + count) of a block. Word e % 4 of Philox's
// block with the counter (e / 4, second_words[l], third_word, fourth_words[l]) drops element e of sample l where its
// upper 24 bits are below `threshold`. y may be x.
struct DropoutCall {
  int64_t first = 0;  // a multiple of 4
  int64_t count = 0;
  const uint64_t* second_words = nullptr;  // [16]
  uint32_t third_word = 0;
  const uint64_t* fourth_words = nullptr;  // [16]
  uint32_t key[2] = {};
  uint32_t threshold = 0;
  float scale = 1;
  const float* x = nullptr;  // of the first element
  float* y = nullptr;
  bool add = false;
};

// y = (x - mean) * scale + shift, then + other where it is given, then max(y, 0) where `relu`. y may be x or
// other.
struct NormalizeCall {
  int64_t size = 0;
  const float* x = nullptr;
  float mean = 0, scale = 0, shift = 0;
  const float* other = nullptr;
  bool relu = false;
  float* y = nullptr;
};

// sums[16] = sum of dz, products[16] = sum of dz * (x - mean): dz is dy, or, where y is given, dy where y > 0.
struct NormalizeSumsCall {
  int64_t size = 0;
  const float* dy = nullptr;
  const float* y = nullptr;
  const float* x = nullptr;
  float mean = 0;
  float* sums = nullptr;
  float* products = nullptr;
};

// dx = (add ? dx : 0) + dz * a + (x - mean) * b + c, where dx is given; then, where it is given,
// other = (add_other ? other : 0) + dz. dz as above. other may be dx or dy.
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

// Winograd's F(4x4, 3x3): 36 frequencies of a tile; winograd.h says what is made of them.
inline constexpr int64_t kFrequencies = 36;

// For each i of [0, count): the square of vectors at at[k] + i * steps[k], row by row, into 36 vectors at
// to + f * to_frequency + i * to_step. Sides: 6 of an image, 4 of a gradient, 3 of weights.
struct TransformCall {
  const float* const* at = nullptr;
  const int64_t* steps = nullptr;
  int64_t count = 0;
  float* to = nullptr;
  int64_t to_frequency = 0, to_step = 0;
};

// y[r][s] = (add ? y : 0) + inverse + bias for the rows and columns of 4 x 4 that there are.
struct InverseCall {
  const float* from = nullptr;
  int64_t from_frequency = 0;
  float bias = 0;
  float* y = nullptr;
  int64_t y_row = 0;
  int64_t rows = 0, columns = 0;
  bool add = false;
};

// y[o][j] = (add ? y : 0) + sum over k of [0, depth) of w[k][o] * x[k][j], for o of [0, rows) and vectors j of
// [0, vectors). Rows of y up to 16 are written too. Laid out w [depth][16], x [depth][4][16], y [16][4][16].
struct FrequencyCall {
  int64_t depth = 0;
  const float* w = nullptr;
  const float* x = nullptr;
  int64_t rows = 0, vectors = 0;  // to 16, to 4
  float* y = nullptr;
  bool add = false;
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
  // 36 vectors into 3 x 3 that follow each other.
  void (*inverse_weights)(const float* from, int64_t from_frequency, float* to);
  void (*frequency_products)(const FrequencyCall& call);
  // 16 rows of 16 floats.
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
  // y = x Phi(x), Phi by its definition or by tanh, with the bits of the reference. y may be x.
  void (*gelu)(int64_t size, const float* x, bool tanh_form, float* y);
  // dx = (add ? dx : 0) + dy * (the derivative at x). dx may be dy.
  void (*gelu_backward)(int64_t size, const float* x, const float* dy, bool tanh_form, float* dx,
                        bool add);
  void (*dropout)(const DropoutCall& call);
  absl::string_view target;  // one of the words below
};

// Words of CAPSTAN_CPU_TARGET. Emulated is what the build takes for granted; on x86-64 that has no fused
// multiply-add, so the C library computes them.
inline constexpr char kAvx512[] = "avx512", kAvx2[] = "avx2", kEmulated[] = "emulated";

// The loops that this processor can run, the widest first; never empty.
const std::vector<const BlockedMath*>& PresentMath();

// Those of `present` that `word` names. InvalidArgument: it is no word; FailedPrecondition: the processor lacks it.
absl::StatusOr<const BlockedMath*> MathOf(absl::string_view word,
                                          absl::Span<const BlockedMath* const> present);

// The sum of 16 samples by the one tree.
inline float SumOfSamples(const float* a) {
  float eight[8], four[4];
  for (int i = 0; i < 8; ++i) eight[i] = a[i] + a[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_MATH_H_
