// From a graph to the stages that a CPU runs: what is fused, what works in place, which layout a
// tensor has.
//
// Tensors of images are NHWC inside a block: the pooling and the convolutions of few channels then
// work on whole vectors. Flatten brings them back to the order of the graph: that is less than to
// permute the weights of the dense layer behind it, since a block has fewer samples than the layer
// has outputs. A Relu in front of a pooling becomes part of it; any other Relu works in place.
// Rows and columns that nothing reads, such as the odd one that a 2x2 pooling drops, are not
// computed.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_LOWERING_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_LOWERING_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "training/graph/graph.h"
#include "training/ops/window.h"

namespace capstan::engine {

// x [N, in_h, in_w, in_channels] to y [N, out_h, out_w, out_channels]. A Gemm is a window as large
// as its input: in_h x in_w of the flattened image, or 1 x 1.
struct LinearGeometry {
  bool dense = false;
  int64_t in_channels = 0, in_h = 1, in_w = 1;
  int64_t out_channels = 0, out_h = 1, out_w = 1;
  training::Window window;
  bool bias = false;
  bool data_gradient = false;  // backward computes dx

  int64_t weight_elements() const {
    return out_channels * in_channels * window.kernel_shape[0] * window.kernel_shape[1];
  }
};

struct PoolGeometry {
  bool max = false;
  bool relu = false;  // of the input, first
  int64_t channels = 0;
  int64_t in_h = 0, in_w = 0;
  int64_t out_h = 0, out_w = 0;
  training::Window window;

  // The usual window, 2x2 with stride 2: its kernel may write dx over x.
  bool two_by_two() const {
    return window.kernel_shape == std::array<int64_t, 2>{2, 2} &&
           window.strides == std::array<int64_t, 2>{2, 2} &&
           window.dilations == std::array<int64_t, 2>{1, 1} &&
           window.pads == std::array<int64_t, 4>{0, 0, 0, 0};
  }
};

// NHWC to NCHW.
struct PermuteGeometry {
  int64_t channels = 0, pixels = 0;
};

// The images of a batch, NCHW of full_height x full_width, of which the first height x width are
// read. [features] have one pixel.
struct InputGeometry {
  int64_t channels = 1, height = 1, width = 1;
  int64_t full_height = 1, full_width = 1;
};

enum class StageKind { kLinear, kPool, kRelu, kPermute, kLoss };

struct Stage {
  StageKind kind = StageKind::kRelu;
  std::string name;  // of the node
  int node = 0;
  int input = 0;   // tensor
  int output = 0;  // tensor; `input` where the stage works in place
  LinearGeometry linear;
  PoolGeometry pool;
  PermuteGeometry permute;
};

struct Tensor {
  int64_t elements = 0;            // per sample
  bool gradient = false;           // backward needs the gradient by it
  bool gradient_in_place = false;  // the gradient takes the place of the value
};

struct Lowered {
  std::vector<Stage> stages;  // in forward order, the loss last
  std::vector<Tensor> tensors;
  InputGeometry input;  // tensor 0
  int64_t classes = 0;
};

// Unimplemented: what CheckChain refuses.
absl::StatusOr<Lowered> Lower(const training::Graph& graph);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_LOWERING_H_
