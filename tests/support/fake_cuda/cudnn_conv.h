// The arithmetic of the stand-in for cuDNN: convolutions with any strides and the operations fused
// after them.
#ifndef CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_CONV_H_
#define CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_CONV_H_

#include <cudnn.h>

#include <array>
#include <cstdint>

namespace capstan::fake_cuda::dnn {

// A tensor in memory. Dimensions are n, c, h, w, or o, i, h, w for filters.
struct ConvTensor {
  cudnnDataType_t type = CUDNN_DATA_FLOAT;  // or BFLOAT16, HALF
  std::array<int64_t, 4> dims = {}, strides = {};
  void* data = nullptr;

  int64_t element_bytes() const { return type == CUDNN_DATA_FLOAT ? 4 : 2; }
  // Bytes from the first element to the end of the last.
  int64_t bytes() const;
};

enum class ConvDirection { kForward, kDataGradient, kFilterGradient };

// Only pointers and numbers, so that a stream may own a copy.
struct ConvWork {
  ConvDirection direction = ConvDirection::kForward;
  // The operation writes one of x (data gradient), w (filter gradient) and y (forward). Without
  // data there is no bias.
  ConvTensor x, w, y, bias;
  std::array<int64_t, 2> pads = {}, strides = {}, dilations = {};  // of height and width; in front
  float alpha = 1, beta = 0;                                       // 0: the old values are not read
  bool relu = false;
  bool relu_keeps_nan = true;    // false: it turns a NaN into 0
  bool rounds_factors = false;   // to the 10 bits of TF32, ties to even
  bool moves_last_bits = false;  // from run to run, like sums in the order of arrival
  void* workspace = nullptr;     // filled with garbage while the work runs
  int64_t workspace_bytes = 0;
};

// Sums in float32, in an order that depends only on the shapes. Padding is left out of the sums, so
// a NaN factor beside it has no effect.
void RunConv(const ConvWork& work);

}  // namespace capstan::fake_cuda::dnn

#endif  // CAPSTAN_TESTS_SUPPORT_FAKE_CUDA_CUDNN_CONV_H_
