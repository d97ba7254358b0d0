// The arithmetic of the stand-in for cuDNN: convolutions through any strides, with what is fused
// behind them.
#ifndef CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_CONV_H_
#define CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_CONV_H_

#include <cudnn.h>

#include <array>
#include <cstdint>

namespace capstan::fake_cuda::dnn {

// In memory; dimensions n, c, h, w, of filters o, i, h, w.
struct ConvTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  // or BFLOAT16, HALF
  std::array<int64_t, 4> dims = {}, strides = {};
  void* data = nullptr;

  int64_t element_bytes() const { return type == CUDNN_DATA_FLOAT ? 4 : 2; }
  // From the first element to the end of the last.
  int64_t bytes() const;
};

enum class ConvDirection { kForward, kDataGradient, kFilterGradient };

// Pointers and numbers alone, so that a stream may own a copy.
struct ConvWork {
  ConvDirection direction = ConvDirection::kForward;
  // One of x (data gradient), w (filter gradient) and y (forward) is written. No data: no bias.
  ConvTensor x, w, y, bias;
  std::array<int64_t, 2> pads = {}, strides = {}, dilations = {};  // of height and width; in front
  float alpha = 1, beta = 0;                                       // 0: the old values are not read
  bool relu = false;
  bool relu_keeps_nan = true;    // else it makes a NaN 0
  bool rounds_factors = false;   // to the 10 bits of TF32, ties to even
  bool moves_last_bits = false;  // from one run to the next, as sums in the order of arrival do
  void* workspace = nullptr;     // filled with garbage while the work runs
  int64_t workspace_bytes = 0;
};

// Sums in float32, in an order that the shapes alone decide. Padding takes no part: a NaN factor
// beside it stays out.
void RunConv(const ConvWork& work);

}  // namespace capstan::fake_cuda::dnn

#endif  // CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_CONV_H_
