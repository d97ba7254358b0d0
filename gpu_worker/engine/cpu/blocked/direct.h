// Convolutions with direct products: any kernel, stride, dilation and number of groups.
//
// Forward and the gradient by the input are both sums of products of weights and image elements,
// and use the same loops. A band of rows of some channels is copied with its margins and stays in a
// cache while all outputs are computed from it. The gradient by the input is a convolution of the
// gradient by the output with the kernel rotated by 180 degrees. With a stride, places of the input
// fall into classes by their remainder. Each class meets only some of the kernel's places, and is a
// convolution of stride 1 of its own. In depthwise convolutions, whose groups have one channel and
// one output, a piece has several groups, and more places are computed at a time.
//
// The gradient by the weights is a product of matrices over places and samples. If a group has
// enough outputs, outputs lie side by side; for that, the gradient by the output is transposed in
// bands. Otherwise samples lie side by side.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_DIRECT_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_DIRECT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/engine/cpu/blocked/kernel.h"
#include "training/ops/window.h"

namespace capstan::engine {

// y[o][p][q] = sum over c, r, s of
//   w[o][c][r][s] * x[c][p * strides[0] + r * dilations[0] - pads[0]][...]
// in each of `groups`, which have `channels` of x and `outputs` of y.
struct DirectConv {
  training::Window window;
  int64_t groups = 1, channels = 0, outputs = 0;
  int64_t height = 0, width = 0;  // of x
  int64_t rows = 0, columns = 0;  // of y

  int64_t tap_count() const { return window.kernel_shape[0] * window.kernel_shape[1]; }
  int64_t reach(int axis) const {
    return window.dilations[axis] * (window.kernel_shape[axis] - 1) + 1;
  }
  int64_t x_plane() const { return height * width * kSideBySide; }
  int64_t y_plane() const { return rows * columns * kSideBySide; }
  int64_t x_block() const { return groups * channels * x_plane(); }
  int64_t y_block() const { return groups * outputs * y_plane(); }
};

// A plane [height][width][16], viewed from its place (row, column).
struct PlaneView {
  int64_t height = 0, width = 0;
  int64_t row = 0, column = 0;
};
// Copies rows x columns places of a view, with zeros outside the plane.
void CopyRows(const PlaneView& view, const float* plane, int64_t rows, int64_t columns, float* to);

// Append phases to phases.load and to phases.forward or phases.backward. ResourceExhausted: no
// memory.
absl::Status AddDirectForward(const DirectConv& conv, const NodePlaces& places, bool bias,
                              NodePhases& phases);
absl::Status AddDirectData(const DirectConv& conv, const NodePlaces& places, NodePhases& phases);
void AddDirectWeights(const DirectConv& conv, const NodePlaces& places, NodePhases& phases);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_BLOCKED_DIRECT_H_
