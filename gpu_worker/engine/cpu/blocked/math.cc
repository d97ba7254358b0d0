#include "gpu_worker/engine/cpu/blocked/math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/engine/cpu/blocked/math.cc"
#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu_worker/engine/cpu/blocked/instruction_sets.h"
#include "hwy/foreach_target.h"  // NOLINT(build/include): must come before highway.h
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace capstan::engine {
namespace HWY_NAMESPACE {
namespace {

#include "gpu_worker/engine/cpu/blocked/vectors-inl.h"

// kOutputs x kPixels sums in registers, over one part of the 16 samples.
template <int kOutputs, int kPixels>
HWY_INLINE void ProductsTile(const ProductsCall& call, int64_t first_output, int64_t first_pixel,
                             int part) {
  V sums[kOutputs][kPixels];
  float* const y = call.y + first_output * call.y_row + first_pixel * call.y_step + part * kLanes;
  for (int o = 0; o < kOutputs; ++o) {
    const bool real = first_output + o < call.rows;
    const V start = call.bias == nullptr ? hn::Zero(d) : hn::Set(d, call.bias[first_output + o]);
    for (int j = 0; j < kPixels; ++j) {
      sums[o][j] = call.add && real ? hn::Load(d, y + o * call.y_row + j * call.y_step) : start;
    }
  }
  const float* weights = call.weights + first_output;
  const float* channel = call.x + first_pixel * call.x_step + part * kLanes;
  for (int64_t c = 0; c < call.channels; ++c, channel += call.channel_stride) {
    for (int64_t t = 0; t < call.tap_count; ++t, weights += kTileOutputs) {
      const float* const at = channel + call.taps[t];
      V x[kPixels];
      for (int j = 0; j < kPixels; ++j) x[j] = hn::Load(d, at + j * call.x_step);
      for (int o = 0; o < kOutputs; ++o) {
        const V w = hn::Set(d, weights[o]);
        for (int j = 0; j < kPixels; ++j) sums[o][j] = Fma(w, x[j], sums[o][j]);
      }
    }
  }
  for (int o = 0; o < kOutputs; ++o) {
    if (first_output + o >= call.rows) break;
    for (int j = 0; j < kPixels; ++j) {
      hn::Store(sums[o][j], d, y + o * call.y_row + j * call.y_step);
    }
  }
}

// Register use: 8 x 3 sums if there are 32 registers, else 4 x 3.
constexpr int kOutputsAtOnce = kParts == 1 ? 8 : 4;

void Products(const ProductsCall& call) {
  for (int part = 0; part < kParts; ++part) {
    for (int64_t o = 0; o < call.rows; o += kOutputsAtOnce) {
      int64_t j = 0;
      for (; j + 3 <= call.count; j += 3) ProductsTile<kOutputsAtOnce, 3>(call, o, j, part);
      if (call.count - j == 2) ProductsTile<kOutputsAtOnce, 2>(call, o, j, part);
      if (call.count - j == 1) ProductsTile<kOutputsAtOnce, 1>(call, o, j, part);
    }
  }
}

// kRow: the taps are adjacent.
template <int kOutputs, int kTaps, bool kRow>
HWY_INLINE void WeightTile(const WeightSumsCall& call, int64_t first_output, int64_t first_tap,
                           int part) {
  V sums[kOutputs][kTaps];
  float* const out = call.sums + (first_output * call.tap_count + first_tap) * 16 + part * kLanes;
  for (int o = 0; o < kOutputs; ++o) {
    for (int t = 0; t < kTaps; ++t) {
      sums[o][t] = call.add ? hn::Load(d, out + (o * call.tap_count + t) * 16) : hn::Zero(d);
    }
  }
  const float* const dy = call.dy + first_output * call.dy_plane + part * kLanes;
  const float* const x = call.x + part * kLanes;
  const int64_t* const taps = call.taps + first_tap;
  for (int64_t p = 0; p < call.rows; ++p) {
    for (int64_t q = 0; q < call.columns; ++q) {
      const float* const at = x + p * call.x_row + q * call.x_step;
      V g[kOutputs];
      for (int o = 0; o < kOutputs; ++o) {
        g[o] = hn::Load(d, dy + o * call.dy_plane + p * call.dy_row + q * 16);
      }
      for (int t = 0; t < kTaps; ++t) {
        const V v = hn::Load(d, at + (kRow ? (first_tap + t) * 16 : taps[t]));
        for (int o = 0; o < kOutputs; ++o) sums[o][t] = Fma(g[o], v, sums[o][t]);
      }
    }
  }
  for (int o = 0; o < kOutputs; ++o) {
    for (int t = 0; t < kTaps; ++t) hn::Store(sums[o][t], d, out + (o * call.tap_count + t) * 16);
  }
}

// `outputs` is 1 to kMost.
template <int kMost, int kTaps, bool kRow>
HWY_INLINE void WeightOutputs(const WeightSumsCall& call, int64_t first, int64_t outputs,
                              int64_t first_tap, int part) {
  if (outputs == kMost) {
    WeightTile<kMost, kTaps, kRow>(call, first, first_tap, part);
  } else if constexpr (kMost > 1) {
    WeightOutputs<kMost - 1, kTaps, kRow>(call, first, outputs, first_tap, part);
  }
}

// Outputs are cut into tiles that are as equal as possible.
template <int kMost, int kTaps, bool kRow = false>
void WeightTiles(const WeightSumsCall& call, int64_t first_tap) {
  const int64_t tiles = (call.outputs + kMost - 1) / kMost;
  for (int part = 0; part < kParts; ++part) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t o = call.outputs * tile / tiles;
      WeightOutputs<kMost, kTaps, kRow>(call, o, call.outputs * (tile + 1) / tiles - o, first_tap,
                                        part);
    }
  }
}

bool IsRow(const WeightSumsCall& call) {
  for (int64_t t = 0; t < call.tap_count; ++t) {
    if (call.taps[t] != t * 16) return false;
  }
  return true;
}

// Up to 27 sums if there are 32 registers, else 12.
void WeightSums(const WeightSumsCall& call) {
  constexpr int kTapsAtOnce = kParts == 1 ? 9 : 3;
  if (call.tap_count == 3 && IsRow(call)) {
    return WeightTiles<(kParts == 1 ? 8 : 4), 3, true>(call, 0);
  }
  if constexpr (kParts == 1) {
    if (call.tap_count == 5 && IsRow(call)) return WeightTiles<5, 5, true>(call, 0);
  }
  if (call.tap_count == 9 && call.outputs == 1) return WeightTiles<1, 9>(call, 0);
  for (int64_t t = 0; t < call.tap_count; t += kTapsAtOnce) {
    switch (std::min<int64_t>(kTapsAtOnce, call.tap_count - t)) {
      case 1:
        WeightTiles<8, 1>(call, t);
        break;
      case 2:
        WeightTiles<4, 2>(call, t);
        break;
      case 3:
        WeightTiles<(kParts == 1 ? 8 : 4), 3>(call, t);
        break;
#if HWY_MAX_BYTES >= 64
      case 4:
        WeightTiles<4, 4>(call, t);
        break;
      case 5:
        WeightTiles<5, 5>(call, t);
        break;
      case 6:
        WeightTiles<4, 6>(call, t);
        break;
      case 7:
        WeightTiles<3, 7>(call, t);
        break;
      case 8:
        WeightTiles<3, 8>(call, t);
        break;
      default:
        WeightTiles<3, 9>(call, t);
        break;
#endif
    }
  }
}

void ReluLoop(int64_t size, const float* x, float* y) {
  const V zero = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kLanes) {
    const V v = hn::Load(d, x + i);
    hn::Store(hn::IfThenElse(hn::Lt(v, zero), zero, v), d, y + i);
  }
}

void ReluBackwardLoop(int64_t size, const float* y, const float* dy, float* dx, bool add) {
  const V zero = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kLanes) {
    const V v = hn::IfThenElseZero(hn::Gt(hn::Load(d, y + i), zero), hn::Load(d, dy + i));
    hn::Store(add ? hn::Add(hn::Load(d, dx + i), v) : v, d, dx + i);
  }
}

void CopyLoop(int64_t size, const float* x, float* y, bool add) {
  for (int64_t i = 0; i < size; i += kLanes) {
    const V v = hn::Load(d, x + i);
    hn::Store(add ? hn::Add(hn::Load(d, y + i), v) : v, d, y + i);
  }
}

void ScaleLoop(int64_t size, const float* x, float scale, float* y, bool add) {
  const V s = hn::Set(d, scale);
  for (int64_t i = 0; i < size; i += kLanes) {
    const V v = hn::Mul(hn::Load(d, x + i), s);
    hn::Store(add ? hn::Add(hn::Load(d, y + i), v) : v, d, y + i);
  }
}

void SumLoop(int64_t size, const float* x, float* sums) {
  for (int part = 0; part < kParts; ++part) {
    V sum = hn::Zero(d);
    for (int64_t i = part * kLanes; i < size; i += 16) sum = hn::Add(sum, hn::Load(d, x + i));
    hn::StoreU(sum, d, sums + part * kLanes);
  }
}

void SquareSumLoop(int64_t size, const float* x, float mean, float* sums) {
  const V m = hn::Set(d, mean);
  for (int part = 0; part < kParts; ++part) {
    V sum = hn::Zero(d);
    for (int64_t i = part * kLanes; i < size; i += 16) {
      const V v = hn::Sub(hn::Load(d, x + i), m);
      sum = Fma(v, v, sum);
    }
    hn::StoreU(sum, d, sums + part * kLanes);
  }
}

#include "gpu_worker/engine/cpu/blocked/direct-inl.h"
#include "gpu_worker/engine/cpu/blocked/doubles-inl.h"
#include "gpu_worker/engine/cpu/blocked/lane-inl.h"
#include "gpu_worker/engine/cpu/blocked/norm-inl.h"
#include "gpu_worker/engine/cpu/blocked/softmax-inl.h"
#include "gpu_worker/engine/cpu/blocked/winograd-inl.h"

constexpr BlockedMath kMath = {Products,
                               WeightSums,
                               ReluLoop,
                               ReluBackwardLoop,
                               CopyLoop,
                               ScaleLoop,
                               Normalize,
                               SumLoop,
                               SquareSumLoop,
                               NormalizeSums,
                               NormalizeBackward,
                               TransformImage,
                               TransformGradient,
                               TransformWeights,
                               InverseOutput,
                               InverseWeights,
                               FrequencyProducts,
                               Transpose,
                               ConvPool,
                               Unpool,
                               Spread,
                               Dense,
                               DenseWeights,
                               SumSamples,
                               OuterSums,
                               PlaceProducts,
                               SoftmaxSums,
                               SoftmaxGradient,
                               HWY_TARGET == HWY_AVX3   ? kAvx512
                               : HWY_TARGET == HWY_AVX2 ? kAvx2
                                                        : kEmulated};

}  // namespace

const BlockedMath* ThisMath() { return &kMath; }

}  // namespace HWY_NAMESPACE
}  // namespace capstan::engine
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace capstan::engine {
namespace {

// Chosen here instead of by Highway's library, because no part of it is linked.
std::vector<const BlockedMath*> FindMath() {
  std::vector<const BlockedMath*> found;
#if HWY_TARGETS & HWY_AVX3
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512cd")) {
    found.push_back(N_AVX3::ThisMath());
  }
#endif
#if HWY_TARGETS & HWY_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("bmi2")) {
    found.push_back(N_AVX2::ThisMath());
  }
#endif
  const BlockedMath* const granted = HWY_STATIC_DISPATCH(ThisMath)();
  if (found.empty() || found.back() != granted) found.push_back(granted);
  return found;
}

}  // namespace

const std::vector<const BlockedMath*>& PresentMath() {
  static const std::vector<const BlockedMath*>& present =
      *new std::vector<const BlockedMath*>(FindMath());
  return present;
}

absl::StatusOr<const BlockedMath*> MathOf(absl::string_view word,
                                          absl::Span<const BlockedMath* const> present) {
  std::vector<absl::string_view> words;
  for (const BlockedMath* const math : present) {
    if (math->target == word) return math;
    words.emplace_back(math->target);
  }
  const std::string has = absl::StrCat("this processor has ", absl::StrJoin(words, ", "));
  for (const char* const known : {kAvx512, kAvx2, kEmulated}) {
    if (word == known) return absl::FailedPreconditionError(absl::StrCat("'", word, "': ", has));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", word, "', want avx512, avx2 or emulated; ", has));
}

}  // namespace capstan::engine
#endif
