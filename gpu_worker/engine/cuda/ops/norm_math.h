// The arithmetic of normalisations, for host and cards.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_NORM_MATH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_NORM_MATH_H_

#include <cmath>
#include <cstdint>

#include "gpu_worker/engine/cuda/half16.h"

namespace capstan::engine::cuda {

// A batch as rows of channels: one row for each pixel of each sample.
struct ChannelRows {
  int32_t rows = 0, channels = 1, pixels = 1;
  bool channels_last = false;
};

// Where the number of channel c in row j lies.
CAPSTAN_HD int32_t RowPlace(const ChannelRows& g, int32_t j, int32_t c) {
  return g.channels_last ? j * g.channels + c
                         : (j / g.pixels * g.channels + c) * g.pixels + j % g.pixels;
}

// LRN (training/ops/lrn/lrn.h) over the channels of one pixel, `step` elements apart.
struct LrnRule {
  int32_t channels = 1, step = 1;
  int32_t before = 0, behind = 0;  // neighbours; not more than there are channels
  float alpha_over_size = 0, beta = 0, bias = 0;
};

// bias + alpha / size * sum of squares around channel c. `x` is the first channel's number.
template <typename T>
CAPSTAN_HD float LrnSum(const LrnRule& g, const T* x, int32_t c) {
  const int32_t last = c + g.behind < g.channels - 1 ? c + g.behind : g.channels - 1;
  float sum = 0;
  for (int32_t i = c > g.before ? c - g.before : 0; i <= last; ++i) {
    sum += float(x[i * g.step]) * float(x[i * g.step]);
  }
  return g.bias + g.alpha_over_size * sum;
}

template <typename T>
CAPSTAN_HD float LrnValue(const LrnRule& g, const T* x, int32_t c) {
  return float(x[c * g.step]) * std::pow(LrnSum(g, x, c), -g.beta);
}

// The gradient by channel c. Its neighbours are the channels that have it as a neighbour.
template <typename T>
CAPSTAN_HD float LrnGradient(const LrnRule& g, const T* x, const T* dy, int32_t c) {
  const int32_t last = c + g.before < g.channels - 1 ? c + g.before : g.channels - 1;
  float others = 0;
  for (int32_t i = c > g.behind ? c - g.behind : 0; i <= last; ++i) {
    others += float(dy[i * g.step]) * float(x[i * g.step]) * std::pow(LrnSum(g, x, i), -g.beta - 1);
  }
  return float(dy[c * g.step]) * std::pow(LrnSum(g, x, c), -g.beta) -
         2 * g.alpha_over_size * g.beta * float(x[c * g.step]) * others;
}

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_NORM_MATH_H_
