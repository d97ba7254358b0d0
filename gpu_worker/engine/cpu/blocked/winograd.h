// Convolutions 3 x 3 of stride 1 by Winograd's F(4x4, 3x3): 36 products, where direct tiles need
// 144.
//
// An image is cut into tiles of 4 x 4 places of the output. The 6 x 6 places that a tile reads
// become 36 frequencies, and so do the weights of a pair of channels. Each frequency is its own
// product of matrices. The gradient by the input is such a convolution of the gradient by the
// output, with the kernel rotated by 180 degrees. The gradient by the weights is the transposed
// form: tiles of both sides are transformed, their products are summed over tiles and samples, and
// the sums are transformed back. There 16 channels lie side by side.
//
// Tiles are processed in rounds of two phases (transform; multiply and transform back), so that the
// transformed data fit into a cache of a few megabytes. A round does not end a sum: the additions
// of each number are those of a single round.
//
// Precision: the rounding of a product shows 11 times as strongly as in a direct sum (root mean
// square over the places of a tile; 31 times at the last of them), and 11 times (24) in the
// gradient by the weights. This follows from the squares in the transforms' rows, for independent
// values. Measured on 64 x 64 to 512 x 512 channels: at most 1e-5 of a tensor's largest value and
// 7e-6 in relative L2.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_WINOGRAD_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_WINOGRAD_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"

namespace capstan::engine {

// Reads x [channels][height][width] and writes y [outputs][rows][columns]:
// y[o][p][q] = sum over c, r, s of w[o][c][r][s] * x[c][p + r - top][q + s - left], 0 outside x.
struct WinogradConv {
  int64_t channels = 0, height = 0, width = 0;
  int64_t outputs = 0, rows = 0, columns = 0;
  int64_t top = 0, left = 0;
  int64_t max_blocks = 0;
  const BlockedMath* math = nullptr;

  int64_t down() const { return CeilDivide(rows, 4); }
  int64_t across() const { return CeilDivide(columns, 4); }
  int64_t block_tiles() const { return down() * across(); }
};

// Whether a forward convolution and its gradients are faster than direct tiles, judged by shape
// alone.
bool WinogradPays(const WinogradConv& conv);

// Forward, or the gradient by the input; `conv` is then the convolution that computes it.
struct WinogradPass {
  WinogradConv conv;
  const float* x = nullptr;
  float* y = nullptr;
  bool add = false;     // to the old value of y
  int64_t weights = 0;  // offset of [outputs][channels][3][3] in the flat vector
  bool turned = false;  // weights are [channels][outputs][3][3], each kernel rotated
  int64_t bias = -1;    // offset; -1: no bias
};
// Appends to phases.load and to `to`, which is phases.forward or phases.backward.
absl::Status AddWinogradPass(const WinogradPass& pass, NodePhases& phases, std::vector<Phase>& to);

// The gradient by the weights. `conv` is the forward pass.
struct WinogradWeights {
  WinogradConv conv;
  const float* x = nullptr;
  const float* dy = nullptr;
  int64_t weights = 0;  // offset of [outputs][channels][3][3] in the flat gradient
};
void AddWinogradWeights(const WinogradWeights& pass, NodePhases& phases);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_WINOGRAD_H_
