#include "gpu_worker/engine/cpu/kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu_worker/engine/cpu/pool_avx512.h"

// A resolver of a function clone runs before a sanitizer is ready, so those builds take one
// version.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__clang__)
#define CAPSTAN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CAPSTAN_CLONES
#endif
#if defined(__clang__)
#define CAPSTAN_NO_LOOP_DEPENDENCY
#else
#define CAPSTAN_NO_LOOP_DEPENDENCY _Pragma("GCC ivdep")
#endif
#define CAPSTAN_INLINE __attribute__((always_inline)) inline

namespace capstan::engine {
namespace {

// A NaN stays: the comparison is false.
CAPSTAN_INLINE float Positive(float x) { return x < 0.0f ? 0.0f : x; }
// The larger one; a NaN of either side stays.
CAPSTAN_INLINE float Larger(float a, float b) { return (b > a || b != b) ? b : a; }

// The usual window: 2x2, stride 2.
template <bool kMax, bool kRelu>
CAPSTAN_INLINE void TwoByTwoForward(const PoolGeometry& g, int64_t n, const float* __restrict x,
                                    float* __restrict y) {
  const int64_t c = g.channels;
  const int64_t row = g.in_w * c;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = 0; p < g.out_h; ++p) {
      const float* top = x + (i * g.in_h + 2 * p) * row;
      float* out = y + (i * g.out_h + p) * g.out_w * c;
      for (int64_t q = 0; q < g.out_w; ++q, top += 2 * c, out += c) {
        const float* const bottom = top + row;
        for (int64_t k = 0; k < c; ++k) {
          float v0 = top[k], v1 = top[c + k], v2 = bottom[k], v3 = bottom[c + k];
          if constexpr (kMax) {
            const float m = Larger(Larger(v0, v1), Larger(v2, v3));
            out[k] = kRelu ? Positive(m) : m;
          } else {
            if constexpr (kRelu) {
              v0 = Positive(v0), v1 = Positive(v1), v2 = Positive(v2), v3 = Positive(v3);
            }
            out[k] = (((v0 + v1) + v2) + v3) * 0.25f;
          }
        }
      }
    }
  }
}

template <bool kMax, bool kRelu>
CAPSTAN_INLINE void TwoByTwoBackward(const PoolGeometry& g, int64_t n, const float* x,
                                     const float* __restrict dy, float* dx) {
  const int64_t c = g.channels;
  const int64_t row = g.in_w * c;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t p = 0; p < g.out_h; ++p) {
      const int64_t start = (i * g.in_h + 2 * p) * row;
      const float* top = x + start;
      float* dtop = dx + start;
      const float* in = dy + (i * g.out_h + p) * g.out_w * c;
      for (int64_t q = 0; q < g.out_w; ++q, top += 2 * c, dtop += 2 * c, in += c) {
        const float* const bottom = top + row;
        float* const dbottom = dtop + row;
        // x and dx may be the same memory: every place is read before it is written in its own
        // turn.
        CAPSTAN_NO_LOOP_DEPENDENCY
        for (int64_t k = 0; k < c; ++k) {
          const float v0 = top[k], v1 = top[c + k], v2 = bottom[k], v3 = bottom[c + k];
          if constexpr (kMax) {
            const float m = Larger(Larger(v0, v1), Larger(v2, v3));
            const float d = kRelu ? (m > 0.0f ? in[k] : 0.0f) : in[k];
            // Without branches: the first that equals the maximum takes all.
            const float d1 = v0 == m ? 0.0f : d;
            const float d2 = v1 == m ? 0.0f : d1;
            const float d3 = v2 == m ? 0.0f : d2;
            dtop[k] = v0 == m ? d : 0.0f;
            dtop[c + k] = v1 == m ? d1 : 0.0f;
            dbottom[k] = v2 == m ? d2 : 0.0f;
            dbottom[c + k] = v3 == m ? d3 : 0.0f;
          } else {
            const float d = in[k] * 0.25f;
            dtop[k] = !kRelu || v0 > 0.0f ? d : 0.0f;
            dtop[c + k] = !kRelu || v1 > 0.0f ? d : 0.0f;
            dbottom[k] = !kRelu || v2 > 0.0f ? d : 0.0f;
            dbottom[c + k] = !kRelu || v3 > 0.0f ? d : 0.0f;
          }
        }
      }
      // What no window covers.
      if (g.in_w % 2 != 0) {
        std::memset(dx + start + row - c, 0, static_cast<size_t>(c) * sizeof(float));
        std::memset(dx + start + 2 * row - c, 0, static_cast<size_t>(c) * sizeof(float));
      }
    }
    if (g.in_h % 2 != 0) {
      std::memset(dx + ((i + 1) * g.in_h - 1) * row, 0, static_cast<size_t>(row) * sizeof(float));
    }
  }
}

CAPSTAN_CLONES void FastForward(const PoolGeometry& g, int64_t n, const float* x, float* y) {
  if (g.max) {
    g.relu ? TwoByTwoForward<true, true>(g, n, x, y) : TwoByTwoForward<true, false>(g, n, x, y);
  } else {
    g.relu ? TwoByTwoForward<false, true>(g, n, x, y) : TwoByTwoForward<false, false>(g, n, x, y);
  }
}

CAPSTAN_CLONES void FastBackward(const PoolGeometry& g, int64_t n, const float* x, const float* dy,
                                 float* dx) {
  if (g.max) {
    g.relu ? TwoByTwoBackward<true, true>(g, n, x, dy, dx)
           : TwoByTwoBackward<true, false>(g, n, x, dy, dx);
  } else {
    g.relu ? TwoByTwoBackward<false, true>(g, n, x, dy, dx)
           : TwoByTwoBackward<false, false>(g, n, x, dy, dx);
  }
}

// Calls visit(offset of the input) for what the window at (p, q) covers of channel k, row by row.
template <typename Visit>
void ForWindow(const PoolGeometry& g, int64_t p, int64_t q, int64_t k, Visit visit) {
  const training::Window& w = g.window;
  for (int64_t r = 0; r < w.kernel_shape[0]; ++r) {
    const int64_t h = p * w.strides[0] + r * w.dilations[0] - w.pads[0];
    if (h < 0 || h >= g.in_h) continue;
    for (int64_t s = 0; s < w.kernel_shape[1]; ++s) {
      const int64_t v = q * w.strides[1] + s * w.dilations[1] - w.pads[1];
      if (v < 0 || v >= g.in_w) continue;
      visit((h * g.in_w + v) * g.channels + k);
    }
  }
}

// The value of a window, as forward gives it, and in the average how many it covers.
struct WindowValue {
  float value = 0;
  int64_t count = 0;
};

WindowValue Pool(const PoolGeometry& g, const float* x, int64_t p, int64_t q, int64_t k) {
  WindowValue result;
  ForWindow(g, p, q, k, [&](int64_t at) {
    const float v = g.relu ? Positive(x[at]) : x[at];
    if (g.max) {
      result.value = result.count == 0 ? v : Larger(result.value, v);
    } else {
      result.value += v;
    }
    ++result.count;
  });
  if (!g.max) result.value /= static_cast<float>(result.count);
  return result;
}

void AnyForward(const PoolGeometry& g, int64_t n, const float* x, float* y) {
  for (int64_t i = 0; i < n; ++i, x += g.in_h * g.in_w * g.channels) {
    for (int64_t p = 0; p < g.out_h; ++p) {
      for (int64_t q = 0; q < g.out_w; ++q) {
        for (int64_t k = 0; k < g.channels; ++k) *y++ = Pool(g, x, p, q, k).value;
      }
    }
  }
}

// Windows may overlap and leave gaps.
void AnyBackward(const PoolGeometry& g, int64_t n, const float* x, const float* dy, float* dx) {
  const int64_t size = g.in_h * g.in_w * g.channels;
  for (int64_t i = 0; i < n; ++i, x += size, dx += size) {
    std::memset(dx, 0, static_cast<size_t>(size) * sizeof(float));
    for (int64_t p = 0; p < g.out_h; ++p) {
      for (int64_t q = 0; q < g.out_w; ++q) {
        for (int64_t k = 0; k < g.channels; ++k, ++dy) {
          const WindowValue value = Pool(g, x, p, q, k);
          bool taken = false;
          ForWindow(g, p, q, k, [&](int64_t at) {
            const float v = g.relu ? Positive(x[at]) : x[at];
            float d = 0;
            if (!g.max) {
              d = !g.relu || v > 0.0f ? *dy / static_cast<float>(value.count) : 0.0f;
            } else if (!taken && v == value.value) {
              taken = true;
              d = !g.relu || v > 0.0f ? *dy : 0.0f;
            }
            dx[at] += d;
          });
        }
      }
    }
  }
}

}  // namespace

void PoolForwardPortable(const PoolGeometry& geometry, int64_t n, const float* x, float* y) {
  if (geometry.two_by_two()) {
    FastForward(geometry, n, x, y);
  } else {
    AnyForward(geometry, n, x, y);
  }
}

void PoolBackwardPortable(const PoolGeometry& geometry, int64_t n, const float* x, const float* dy,
                          float* dx) {
  if (geometry.two_by_two()) {
    FastBackward(geometry, n, x, dy, dx);
  } else {
    AnyBackward(geometry, n, x, dy, dx);
  }
}

void PoolForward(const PoolGeometry& geometry, int64_t n, const float* x, float* y) {
  if (geometry.two_by_two() && HasPoolAvx512()) {
    PoolForwardAvx512(geometry, n, x, y);
  } else {
    PoolForwardPortable(geometry, n, x, y);
  }
}

void PoolBackward(const PoolGeometry& geometry, int64_t n, const float* x, const float* dy,
                  float* dx) {
  if (geometry.two_by_two() && HasPoolAvx512()) {
    PoolBackwardAvx512(geometry, n, x, dy, dx);
  } else {
    PoolBackwardPortable(geometry, n, x, dy, dx);
  }
}

CAPSTAN_CLONES void ReluForward(int64_t size, float* x) {
  for (int64_t i = 0; i < size; ++i) x[i] = Positive(x[i]);
}

CAPSTAN_CLONES void ReluBackward(int64_t size, const float* y, float* dy) {
  for (int64_t i = 0; i < size; ++i) dy[i] = y[i] > 0.0f ? dy[i] : 0.0f;
}

void NhwcToNchw(const PermuteGeometry& geometry, int64_t n, const float* x, float* y) {
  const int64_t c = geometry.channels, pixels = geometry.pixels;
  for (int64_t i = 0; i < n; ++i, x += c * pixels, y += c * pixels) {
    for (int64_t k = 0; k < c; ++k) {
      for (int64_t p = 0; p < pixels; ++p) y[k * pixels + p] = x[p * c + k];
    }
  }
}

void NchwToNhwc(const PermuteGeometry& geometry, int64_t n, const float* x, float* y) {
  const int64_t c = geometry.channels, pixels = geometry.pixels;
  for (int64_t i = 0; i < n; ++i, x += c * pixels, y += c * pixels) {
    for (int64_t p = 0; p < pixels; ++p) {
      for (int64_t k = 0; k < c; ++k) y[p * c + k] = x[k * pixels + p];
    }
  }
}

void LoadImages(const InputGeometry& g, int64_t n, const float* images, float* x) {
  const int64_t full = g.full_height * g.full_width;
  if (g.height * g.width == full && (g.channels == 1 || full == 1)) {
    std::memcpy(x, images, static_cast<size_t>(n * g.channels * full) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t h = 0; h < g.height; ++h) {
      const float* const row = images + i * g.channels * full + h * g.full_width;
      if (g.channels == 1) {
        std::memcpy(x, row, static_cast<size_t>(g.width) * sizeof(float));
        x += g.width;
        continue;
      }
      for (int64_t w = 0; w < g.width; ++w) {
        for (int64_t k = 0; k < g.channels; ++k) *x++ = row[k * full + w];
      }
    }
  }
}

LossSums SoftmaxCrossEntropy(int64_t n, int64_t classes, const float* logits, const int32_t* labels,
                             double scale, float* gradient) {
  LossSums sums;
  for (int64_t i = 0; i < n; ++i) {
    const float* const row = logits + i * classes;
    const int64_t label = labels[i];
    int64_t best = 0;
    float largest = row[0];
    bool has_nan = false;
    for (int64_t k = 0; k < classes; ++k) {
      has_nan |= row[k] != row[k];
      if (row[k] > largest) {
        largest = row[k];
        best = k;
      }
    }
    // Subtracting the largest keeps exp in range; an infinite logit or a NaN makes the loss NaN.
    double sum = 0;
    for (int64_t k = 0; k < classes; ++k) sum += std::exp(row[k] - largest);
    const double loss = std::log(sum) - (static_cast<double>(row[label]) - largest);
    sums.loss += has_nan ? std::numeric_limits<double>::quiet_NaN() : loss;
    sums.correct += !has_nan && best == label;
    if (gradient == nullptr) continue;
    float* const out = gradient + i * classes;
    const double inverse = scale / sum;
    for (int64_t k = 0; k < classes; ++k) {
      const double softmax = std::exp(row[k] - largest) * inverse;
      out[k] = static_cast<float>(softmax - (k == label ? scale : 0.0));
    }
  }
  return sums;
}

}  // namespace capstan::engine
