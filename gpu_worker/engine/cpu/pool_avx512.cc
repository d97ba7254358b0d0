#include "gpu_worker/engine/cpu/pool_avx512.h"

#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace capstan::engine {

#if defined(__x86_64__)

#define CAPSTAN_AVX512 __attribute__((target("avx512f")))

namespace {

// One 2x2 window of up to 16 channels.
struct Window {
  __m512 v0, v1, v2, v3;
};

CAPSTAN_AVX512 inline Window Load(__mmask16 lanes, const float* top, const float* bottom,
                                  int64_t channels) {
  return {_mm512_maskz_loadu_ps(lanes, top), _mm512_maskz_loadu_ps(lanes, top + channels),
          _mm512_maskz_loadu_ps(lanes, bottom), _mm512_maskz_loadu_ps(lanes, bottom + channels)};
}

CAPSTAN_AVX512 inline __m512 Largest(const Window& w) {
  return _mm512_max_ps(_mm512_max_ps(w.v0, w.v1), _mm512_max_ps(w.v2, w.v3));
}

// Where a value is a NaN, which the maximum would drop.
CAPSTAN_AVX512 inline __mmask16 AnyNan(const Window& w) {
  return _mm512_cmp_ps_mask(w.v0, w.v1, _CMP_UNORD_Q) |
         _mm512_cmp_ps_mask(w.v2, w.v3, _CMP_UNORD_Q);
}

// max(x, 0); the second operand comes back when one is a NaN.
CAPSTAN_AVX512 inline __m512 Positive(__m512 x) { return _mm512_max_ps(_mm512_setzero_ps(), x); }

CAPSTAN_AVX512 inline __mmask16 Lanes(int64_t channels, int64_t k) {
  const int64_t left = channels - k;
  return left >= 16 ? 0xffff : static_cast<__mmask16>((1u << left) - 1);
}

template <bool kMax, bool kRelu>
CAPSTAN_AVX512 inline __m512 Forward(const Window& w) {
  if constexpr (kMax) {
    __m512 m = Largest(w);
    if constexpr (kRelu) m = Positive(m);
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_mov_ps(m, AnyNan(w), nan);
  } else if constexpr (kRelu) {
    return Forward<false, false>({Positive(w.v0), Positive(w.v1), Positive(w.v2), Positive(w.v3)});
  } else {
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(_mm512_add_ps(w.v0, w.v1), w.v2), w.v3);
    return _mm512_mul_ps(sum, _mm512_set1_ps(0.25f));
  }
}

template <bool kMax, bool kRelu>
CAPSTAN_AVX512 inline Window Backward(const Window& w, __m512 d) {
  const __m512 zero = _mm512_setzero_ps();
  if constexpr (kMax) {
    const __m512 m = Largest(w);
    __mmask16 left = static_cast<__mmask16>(~AnyNan(w));
    if constexpr (kRelu) left &= _mm512_cmp_ps_mask(m, zero, _CMP_GT_OQ);
    const __mmask16 k0 = _mm512_mask_cmp_ps_mask(left, w.v0, m, _CMP_EQ_OQ);
    left &= static_cast<__mmask16>(~k0);
    const __mmask16 k1 = _mm512_mask_cmp_ps_mask(left, w.v1, m, _CMP_EQ_OQ);
    left &= static_cast<__mmask16>(~k1);
    const __mmask16 k2 = _mm512_mask_cmp_ps_mask(left, w.v2, m, _CMP_EQ_OQ);
    left &= static_cast<__mmask16>(~k2);
    return {_mm512_maskz_mov_ps(k0, d), _mm512_maskz_mov_ps(k1, d), _mm512_maskz_mov_ps(k2, d),
            _mm512_maskz_mov_ps(left, d)};
  } else {
    d = _mm512_mul_ps(d, _mm512_set1_ps(0.25f));
    if constexpr (!kRelu) return {d, d, d, d};
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(w.v0, zero, _CMP_GT_OQ), d),
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(w.v1, zero, _CMP_GT_OQ), d),
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(w.v2, zero, _CMP_GT_OQ), d),
            _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(w.v3, zero, _CMP_GT_OQ), d)};
  }
}

template <bool kMax, bool kRelu>
CAPSTAN_AVX512 void ForwardAll(const PoolGeometry& g, int64_t n, const float* x, float* y) {
  const int64_t c = g.channels, row = g.in_w * c;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = 0; p < g.out_h; ++p) {
      const float* top = x + (i * g.in_h + 2 * p) * row;
      for (int64_t q = 0; q < g.out_w; ++q, top += 2 * c, y += c) {
        for (int64_t k = 0; k < c; k += 16) {
          const __mmask16 lanes = Lanes(c, k);
          const Window w = Load(lanes, top + k, top + row + k, c);
          _mm512_mask_storeu_ps(y + k, lanes, Forward<kMax, kRelu>(w));
        }
      }
    }
  }
}

// dx may be x: a window is read before it is written, and windows share nothing.
template <bool kMax, bool kRelu>
CAPSTAN_AVX512 void BackwardAll(const PoolGeometry& g, int64_t n, const float* x, const float* dy,
                                float* dx) {
  const int64_t c = g.channels, row = g.in_w * c;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = 0; p < g.out_h; ++p) {
      const int64_t start = (i * g.in_h + 2 * p) * row;
      const float* top = x + start;
      float* dtop = dx + start;
      for (int64_t q = 0; q < g.out_w; ++q, top += 2 * c, dtop += 2 * c, dy += c) {
        for (int64_t k = 0; k < c; k += 16) {
          const __mmask16 lanes = Lanes(c, k);
          const Window w = Load(lanes, top + k, top + row + k, c);
          const Window d = Backward<kMax, kRelu>(w, _mm512_maskz_loadu_ps(lanes, dy + k));
          _mm512_mask_storeu_ps(dtop + k, lanes, d.v0);
          _mm512_mask_storeu_ps(dtop + c + k, lanes, d.v1);
          _mm512_mask_storeu_ps(dtop + row + k, lanes, d.v2);
          _mm512_mask_storeu_ps(dtop + row + c + k, lanes, d.v3);
        }
      }
      if (g.in_w % 2 != 0) {  // what no window covers
        std::memset(dx + start + row - c, 0, static_cast<size_t>(c) * sizeof(float));
        std::memset(dx + start + 2 * row - c, 0, static_cast<size_t>(c) * sizeof(float));
      }
    }
    if (g.in_h % 2 != 0) {
      std::memset(dx + ((i + 1) * g.in_h - 1) * row, 0, static_cast<size_t>(row) * sizeof(float));
    }
  }
}

}  // namespace

bool HasPoolAvx512() {
  static const bool has = __builtin_cpu_supports("avx512f");
  return has;
}

void PoolForwardAvx512(const PoolGeometry& geometry, int64_t n, const float* x, float* y) {
  if (geometry.max) {
    (geometry.relu ? ForwardAll<true, true> : ForwardAll<true, false>)(geometry, n, x, y);
  } else {
    (geometry.relu ? ForwardAll<false, true> : ForwardAll<false, false>)(geometry, n, x, y);
  }
}

void PoolBackwardAvx512(const PoolGeometry& geometry, int64_t n, const float* x, const float* dy,
                        float* dx) {
  if (geometry.max) {
    (geometry.relu ? BackwardAll<true, true> : BackwardAll<true, false>)(geometry, n, x, dy, dx);
  } else {
    (geometry.relu ? BackwardAll<false, true> : BackwardAll<false, false>)(geometry, n, x, dy, dx);
  }
}

#else

bool HasPoolAvx512() { return false; }
void PoolForwardAvx512(const PoolGeometry&, int64_t, const float*, float*) {}
void PoolBackwardAvx512(const PoolGeometry&, int64_t, const float*, const float*, float*) {}

#endif

}  // namespace capstan::engine
