// Turns the nodes of a compile request into the stages that a card runs, and plans their memory:
// which nodes are fused, the layout of each tensor, and which tensors share a place. Plain host
// code without CUDA.
//
// Inside, images are NHWC and filters OHWI. A dense layer after a flattened image uses its weights
// in that order, too. So no activation is ever permuted on the way, except logits that come
// straight from an image. A Relu in front of a pooling becomes part of it. A Relu after a
// convolution or a dense layer becomes part of that. Any other Relu works in place. With bf16 and
// fp16, activations, their gradients and the kernels' copies of weights have 16 bits. The flat
// vectors of weights and gradients, and all sums, have 32.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/index_math.h"
#include "gpu_worker/engine/plugin/abi.h"

namespace capstan::engine::cuda {

enum class StageKind { kConv, kDense, kMaxPool, kAveragePool, kRelu, kPermute, kLoss };

struct Stage {
  StageKind kind = StageKind::kRelu;
  std::string name;  // of the node
  int x = 0;         // tensor
  int y = 0;         // tensor; x if the stage works in place
  // kConv, pools. kDense: in_c to out_c. kPermute: in_c channels of in_h * in_w pixels.
  WindowGeometry window;
  bool relu = false;            // pools: first, on the input; kConv, kDense: last, on the output
  bool input_gradient = false;  // backward computes dx

  // kConv, kDense: floats from the start of the flat vector; -1: no bias.
  int64_t weight = -1, bias = -1;
  // [weight_rows, weight_channels, weight_pixels], canonical.
  int32_t weight_rows = 0, weight_channels = 1, weight_pixels = 1;
  // Elements from the start of the plan's copies; -1: the flat vector is used. Permuted weights
  // have a copy, and in 16 bits so do all weights and biases.
  int64_t copy = -1, bias_copy = -1;

  // The gradient by the weights has 16 bits, because cuDNN has no engine that writes float32 from
  // factors of 16 bits.
  bool rounded_gradient = false;

  // Whether [channels, pixels] is stored as [pixels, channels].
  bool permuted() const { return weight_channels > 1 && weight_pixels > 1; }
  int64_t weight_elements() const { return int64_t{weight_rows} * weight_channels * weight_pixels; }
};

struct Tensor {
  int64_t elements = 0;   // per sample
  bool gradient = false;  // backward needs the gradient by it
};

struct CardProgram {
  std::vector<Stage> stages;  // in forward order, the loss last
  std::vector<Tensor> tensors;
  int32_t image_channels = 1, image_pixels = 1;  // of the input, which is tensor 0
  bool input_nhwc = false;   // the order of tensor 0 differs from that of a batch's images
  int64_t total_floats = 0;  // of the flat vector
  int64_t copied_elements = 0;
  int64_t largest_gradient = 0;  // of one stage, if not written straight to the flat one
  int32_t widest_bias = 0;
  int32_t classes = 0;

  const Stage& loss() const { return stages.back(); }
  // Whether backward has anything to do.
  bool trains() const { return tensors[loss().x].gradient; }
  // Whether a kernel reads weights from elsewhere than the flat vector.
  bool copies_weights() const {
    for (const Stage& stage : stages) {
      if (stage.copy >= 0 || stage.bias_copy >= 0) return true;
    }
    return false;
  }
};

// Unimplemented, by name: a graph that CheckChain (chain.h) refuses. InvalidArgument: ReceiveGraph
// refuses it, or tensors have 2^31 elements or more (int32 indices).
absl::StatusOr<CardProgram> MakeCardProgram(const capstan_compile_request& request);

// A buffer of the arena, needed from time `first` to time `last`, both included.
struct CardBuffer {
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = 0;  // set by PlaceBuffers: a multiple of kAlignBytes
};
inline constexpr int64_t kAlignBytes = 256;

// Sets the offsets and returns the total bytes. Places the largest first, each at the lowest place
// that is free during its life.
int64_t PlaceBuffers(std::vector<CardBuffer>& buffers);

struct MemoryOptions {
  int64_t max_batch = 1;
  int64_t element_bytes = 4;    // activations, their gradients, copies of the weights
  int64_t flat_bytes = 4;       // the flat vectors and parts of sums
  int64_t workspace_bytes = 0;  // for libraries, each of the two workspaces
};

// The places of everything in a plan's one piece of memory: offsets in bytes, multiples of
// kAlignBytes.
struct MemoryPlan {
  std::vector<int64_t> values, gradients;  // by tensor; gradients: -1 if there is none
  int64_t header = 0;                      // BatchHeader, then labels, int32
  int64_t images = 0;                      // after them, a batch as given: float, bytes or places
  int64_t row_loss = 0, row_correct = 0;   // per sample: double, int32
  int64_t parts = 0;                       // [kSumParts, widest_bias]
  int64_t stage_gradient = 0;              // by the weights of one stage
  int64_t workspace = 0, parameter_workspace = 0;  // the latter for parameter gradients
  int64_t weights = 0, copies = 0, gradient = 0;

  int64_t arena_bytes = 0, weight_bytes = 0, gradient_bytes = 0;
  int64_t total_bytes() const { return arena_bytes + weight_bytes + gradient_bytes; }
};

struct BatchHeader {
  double loss_scale = 1;
  float image_scale = 1, image_shift = 0;
};
static_assert(sizeof(BatchHeader) == 16, "the labels behind it are aligned");

// The inputs of a stage's parameter gradients are kept until backward is two such stages further.
// So these gradients may lag that far behind the rest of backward.
inline constexpr int kParameterLag = 2;

MemoryPlan PlanMemory(const CardProgram& program, const MemoryOptions& options);

// The largest max_batch whose plan fits into `bytes`; 0 if not even one sample does.
int64_t LargestBatchWithin(const CardProgram& program, MemoryOptions options, int64_t bytes);

// "needs 12.3 GiB for 4096 samples, 1.2 GiB of 139.0 GiB are free; up to 311 samples would fit:
// ...".
std::string OutOfMemoryText(const CardProgram& program, const MemoryOptions& options,
                            int64_t free_bytes, int64_t whole_bytes);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_
