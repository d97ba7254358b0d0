// The work of one thread of a pooling. The rules of index_math.h hold here, too.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_POOL_MATH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_POOL_MATH_H_

#include <cstdint>

#include "gpu_worker/engine/cuda/index_math.h"

namespace capstan::engine::cuda {

// Whether b replaces the maximum a. The first of equal values stays, and a NaN wins.
template <typename T>
CAPSTAN_HD bool Beats(T b, T a) {
  return b > a || (IsNan(b) && !IsNan(a));
}

// y[i] of a pooling, after a Relu of the input if `relu`. Padding counts in a mean only with
// count_pads.
template <typename T>
CAPSTAN_HD T PoolForwardAt(const WindowGeometry& g, bool max, bool relu, const T* x, int32_t i) {
  const int32_t c = i % g.out_c, q = i / g.out_c % g.out_w;
  const int32_t p = i / (g.out_c * g.out_w) % g.out_h, n = i / (g.out_c * g.out_w * g.out_h);
  Sum<T> best = 0, sum = 0;
  int32_t covered = 0;
  for (int32_t r = 0; r < g.kernel_h; ++r) {
    const int32_t h = p * g.stride_h + r * g.dilation_h - g.pad_top;
    if (h < 0 || h >= g.in_h) continue;
    for (int32_t s = 0; s < g.kernel_w; ++s) {
      const int32_t w = q * g.stride_w + s * g.dilation_w - g.pad_left;
      if (w < 0 || w >= g.in_w) continue;
      Sum<T> v = x[((n * g.in_h + h) * g.in_w + w) * g.in_c + c];
      if (relu) v = Positive(v);
      if (covered == 0 || Beats(v, best)) best = v;
      sum += v;
      ++covered;
    }
  }
  if (max) return T(best);
  if (g.count_pads) covered = g.kernel_h * g.kernel_w;
  return covered == 0 ? T(0) : T(sum / Sum<T>(covered));
}

// Whether (want_h, want_w) is the place of the largest value of window (p, q) of channel c.
template <typename T>
CAPSTAN_HD bool IsLargest(const WindowGeometry& g, const T* x, int32_t n, int32_t p, int32_t q,
                          int32_t c, int32_t want_h, int32_t want_w) {
  Sum<T> best = 0;
  int32_t best_h = -1, best_w = -1;
  for (int32_t r = 0; r < g.kernel_h; ++r) {
    const int32_t h = p * g.stride_h + r * g.dilation_h - g.pad_top;
    if (h < 0 || h >= g.in_h) continue;
    for (int32_t s = 0; s < g.kernel_w; ++s) {
      const int32_t w = q * g.stride_w + s * g.dilation_w - g.pad_left;
      if (w < 0 || w >= g.in_w) continue;
      const Sum<T> v = x[((n * g.in_h + h) * g.in_w + w) * g.in_c + c];
      if (best_h < 0 || Beats(v, best)) best = v, best_h = h, best_w = w;
    }
  }
  return best_h == want_h && best_w == want_w;
}

// By how much the mean of window (p, q) is divided: the places of the image that it covers, or all
// of its places.
CAPSTAN_HD int32_t Covered(const WindowGeometry& g, int32_t p, int32_t q) {
  if (g.count_pads) return g.kernel_h * g.kernel_w;
  int32_t rows = 0, columns = 0;
  for (int32_t r = 0; r < g.kernel_h; ++r) {
    const int32_t h = p * g.stride_h + r * g.dilation_h - g.pad_top;
    rows += h >= 0 && h < g.in_h;
  }
  for (int32_t s = 0; s < g.kernel_w; ++s) {
    const int32_t w = q * g.stride_w + s * g.dilation_w - g.pad_left;
    columns += w >= 0 && w < g.in_w;
  }
  return rows * columns;
}

// dx[i] of a pooling, gathered from the windows that read x[i], with the mask of the Relu before
// it. The largest value of a window is searched again, because no places are stored.
template <typename T>
CAPSTAN_HD T PoolBackwardAt(const WindowGeometry& g, bool max, bool relu, const T* x, const T* dy,
                            int32_t i) {
  if (relu && !(x[i] > T(0))) return T(0);
  const int32_t c = i % g.in_c, w = i / g.in_c % g.in_w;
  const int32_t h = i / (g.in_c * g.in_w) % g.in_h, n = i / (g.in_c * g.in_w * g.in_h);
  Sum<T> sum = 0;
  for (int32_t r = 0; r < g.kernel_h; ++r) {
    const int32_t top = h + g.pad_top - r * g.dilation_h;
    if (top < 0 || top % g.stride_h != 0 || top / g.stride_h >= g.out_h) continue;
    const int32_t p = top / g.stride_h;
    for (int32_t s = 0; s < g.kernel_w; ++s) {
      const int32_t left = w + g.pad_left - s * g.dilation_w;
      if (left < 0 || left % g.stride_w != 0 || left / g.stride_w >= g.out_w) continue;
      const int32_t q = left / g.stride_w;
      const Sum<T> d = dy[((n * g.out_h + p) * g.out_w + q) * g.out_c + c];
      if (max) {
        if (IsLargest(g, x, n, p, q, c, h, w)) sum += d;
      } else {
        sum += d / Sum<T>(Covered(g, p, q));
      }
    }
  }
  return T(sum);
}

// Whether the windows of a pooling lie side by side inside the image, so that no place is in two of
// them.
CAPSTAN_HD bool WindowsTile(const WindowGeometry& g) {
  return g.stride_h == g.kernel_h && g.stride_w == g.kernel_w && g.dilation_h == 1 &&
         g.dilation_w == 1 && g.pad_top == 0 && g.pad_left == 0 && g.out_h * g.kernel_h <= g.in_h &&
         g.out_w * g.kernel_w <= g.in_w;
}

// Only if WindowsTile: dx of every place of window i, which gets dy[i], and the zeros after the
// last windows of a row or a column. It has the bits of PoolBackwardAt, but divides by the sizes
// once per window instead of several times per place, and searches the largest value once.
template <typename T>
CAPSTAN_HD void PoolBackwardWindow(const WindowGeometry& g, bool max, bool relu, const T* x,
                                   const T* dy, T* dx, int32_t i) {
  const int32_t c = i % g.out_c, q = i / g.out_c % g.out_w;
  const int32_t p = i / (g.out_c * g.out_w) % g.out_h, n = i / (g.out_c * g.out_w * g.out_h);
  const int32_t top = p * g.kernel_h, left = q * g.kernel_w;
  const int32_t first = ((n * g.in_h + top) * g.in_w + left) * g.in_c + c;
  int32_t largest = first;
  if (max) {
    Sum<T> best = x[first];
    for (int32_t r = 0; r < g.kernel_h; ++r) {
      for (int32_t s = 0; s < g.kernel_w; ++s) {
        const int32_t at = first + (r * g.in_w + s) * g.in_c;
        const Sum<T> v = x[at];
        if (Beats(v, best)) best = v, largest = at;
      }
    }
  }
  const Sum<T> d = dy[i];
  const Sum<T> share = max ? d : d / Sum<T>(g.kernel_h * g.kernel_w);
  const int32_t rows = p + 1 == g.out_h ? g.in_h - top : g.kernel_h;
  const int32_t columns = q + 1 == g.out_w ? g.in_w - left : g.kernel_w;
  for (int32_t r = 0; r < rows; ++r) {
    for (int32_t s = 0; s < columns; ++s) {
      const int32_t at = first + (r * g.in_w + s) * g.in_c;
      const bool takes = r < g.kernel_h && s < g.kernel_w && (!max || at == largest);
      const bool passes = !relu || x[at] > T(0);
      dx[at] = takes && passes ? T(Sum<T>(0) + share) : T(0);
    }
  }
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_POOL_MATH_H_
