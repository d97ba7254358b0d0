// A window that slides over height and width, for convolutions and poolings.
//
// Output height P = floor((H + pad_begin + pad_end - dilation * (kernel - 1) - 1) / stride) + 1;
// width likewise. auto_pad SAME_UPPER and SAME_LOWER give P = ceil(H / stride). If the padding is
// odd, they put the extra row at the end or at the beginning. VALID pads nothing.
// Source: ONNX operator specification (opset 13); Dumoulin & Visin 2016, arXiv:1603.07285.
#ifndef CAPSTAN_TRAINING_OPS_WINDOW_H_
#define CAPSTAN_TRAINING_OPS_WINDOW_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "training/ops/attributes.h"
#include "training/ops/types.h"

namespace capstan::training {

// All values except pads are >= 1. Pads are >= 0 and at most kMaxTensorElements. The product of the
// kernel's sizes has the same limit.
struct Window {
  std::array<int64_t, 2> kernel_shape = {1, 1};  // height, width
  std::array<int64_t, 2> strides = {1, 1};
  std::array<int64_t, 4> pads = {0, 0, 0, 0};  // top, left, bottom, right
  std::array<int64_t, 2> dilations = {1, 1};
};

// The attributes kernel_shape (required), strides, pads, dilations and auto_pad.
std::vector<AttributeDef> WindowSchema();
void SetWindow(const Window& window, Attributes& attributes);
// The attributes must be complete, and their lists must have their lengths.
Window ReadWindow(const Attributes& attributes);

// Resolves auto_pad into pads and returns [P, Q] over the height and width of `x`. InvalidArgument:
// a list of another length, a value out of its range, an output without elements, or an input that
// exceeds kMaxTensorElements with its padding.
absl::StatusOr<std::array<int64_t, 2>> InferWindow(const Shape& x, Attributes& attributes);

// Calls visit(h, w, tap) for each element of an [.., height, width] that the window at (p, q)
// covers, row by row.
template <typename Visit>
void ForWindow(const Window& window, int64_t height, int64_t width, int64_t p, int64_t q,
               Visit visit) {
  for (int64_t r = 0; r < window.kernel_shape[0]; ++r) {
    const int64_t h = p * window.strides[0] + r * window.dilations[0] - window.pads[0];
    if (h < 0 || h >= height) continue;
    for (int64_t s = 0; s < window.kernel_shape[1]; ++s) {
      const int64_t w = q * window.strides[1] + s * window.dilations[1] - window.pads[1];
      if (w >= 0 && w < width) visit(h, w, r * window.kernel_shape[1] + s);
    }
  }
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_WINDOW_H_
