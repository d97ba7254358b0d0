// From the nodes of a compile request to the stages that a card runs, and their memory: what is
// fused, which layout a tensor has, what shares a place. Plain host code: knows no CUDA.
//
// Images are NHWC and filters OHWI inside. A dense layer behind a flattened image takes its weights
// in that order too, so no activation is ever permuted on the way; only logits that come straight
// from an image are. A Relu in front of a pooling becomes part of it, a Relu behind a convolution
// or a dense layer part of that; any other works in place. With bf16 and fp16 activations, their
// gradients and the kernels' copies of weights have 16 bits; the flat vectors of weights and
// gradients, and all sums, have 32.
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
  int y = 0;         // tensor; x where the stage works in place
  // kConv, pools. kDense: in_c to out_c. kPermute: in_c channels of in_h * in_w pixels.
  WindowGeometry window;
  bool relu = false;            // pools: of the input, first; kConv, kDense: of the output, last
  bool input_gradient = false;  // backward computes dx

  // kConv, kDense: floats from the start of the flat vector; -1: no bias.
  int64_t weight = -1, bias = -1;
  // [weight_rows, weight_channels, weight_pixels], canonical.
  int32_t weight_rows = 0, weight_channels = 1, weight_pixels = 1;
  // Elements from the start of the plan's copies; -1: the flat vector serves. Weights that are
  // permuted have a copy, and in 16 bits all weights and biases.
  int64_t copy = -1, bias_copy = -1;

  // The gradient by the weights comes out in 16 bits: cuDNN has no engine that writes float32 from
  // factors of 16 bits.
  bool rounded_gradient = false;

  // [channels, pixels] inside is [pixels, channels].
  bool permuted() const { return weight_channels > 1 && weight_pixels > 1; }
  int64_t weight_elements() const { return int64_t{weight_rows} * weight_channels * weight_pixels; }
};

struct Tensor {
  int64_t elements = 0;   // per sample
  bool gradient = false;  // backward needs the gradient by it
};

struct Program {
  std::vector<Stage> stages;  // in forward order, the loss last
  std::vector<Tensor> tensors;
  int32_t image_channels = 1, image_pixels = 1;  // of the input, which is tensor 0
  bool input_nhwc = false;   // tensor 0 is in another order than the images of a batch
  int64_t total_floats = 0;  // of the flat vector
  int64_t copied_elements = 0;
  int64_t largest_gradient = 0;  // of one stage, of those that do not go straight to the flat one
  int32_t widest_bias = 0;
  int32_t classes = 0;

  const Stage& loss() const { return stages.back(); }
  // Whether backward has anything to do.
  bool trains() const { return tensors[loss().x].gradient; }
  // Whether a kernel reads weights elsewhere than in the flat vector.
  bool copies_weights() const {
    for (const Stage& stage : stages) {
      if (stage.copy >= 0 || stage.bias_copy >= 0) return true;
    }
    return false;
  }
};

// Unimplemented: a grouped convolution, by name. InvalidArgument: nodes that are no chain with a
// loss at its end, or tensors of 2^31 elements and more (int32 indices).
absl::StatusOr<Program> MakeProgram(const capstan_compile_request& request);

// A buffer of the arena: needed from time `first` to time `last`, both included.
struct ArenaBuffer {
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = 0;  // set by PlaceBuffers: a multiple of kAlignBytes
};
inline constexpr int64_t kAlignBytes = 256;

// Sets the offsets and returns the bytes of the whole. Largest first, each at the lowest place that
// is free during its life.
int64_t PlaceBuffers(std::vector<ArenaBuffer>& buffers);

struct MemoryOptions {
  int64_t max_batch = 1;
  int64_t element_bytes = 4;    // activations, their gradients, copies of the weights
  int64_t flat_bytes = 4;       // the flat vectors and parts of sums
  int64_t workspace_bytes = 0;  // for libraries, each of the two
};

// Where everything lies in the one piece of memory of a plan; offsets in bytes, multiples of
// kAlignBytes.
struct MemoryPlan {
  std::vector<int64_t> values, gradients;  // by tensor; gradients: -1 where there is none
  int64_t header = 0;                      // BatchHeader, then labels, int32
  int64_t images = 0;  // next to them, a batch as it came: float, bytes or places
  int64_t row_loss = 0, row_correct = 0;           // per sample: double, int32
  int64_t parts = 0;                               // [kSumParts, widest_bias]
  int64_t stage_gradient = 0;                      // by the weights of one stage
  int64_t workspace = 0, parameter_workspace = 0;  // the latter for gradients by parameters
  int64_t weights = 0, copies = 0, gradient = 0;

  int64_t arena_bytes = 0, weight_bytes = 0, gradient_bytes = 0;
  int64_t total_bytes() const { return arena_bytes + weight_bytes + gradient_bytes; }
};

struct BatchHeader {
  double loss_scale = 1;
  float image_scale = 1, image_shift = 0;
};
static_assert(sizeof(BatchHeader) == 16, "the labels behind it are aligned");

// What the gradients by the parameters of a stage read stays until backward is two such stages
// further: they may lag behind the rest of backward so far.
inline constexpr int kParameterLag = 2;

MemoryPlan PlanMemory(const Program& program, const MemoryOptions& options);

// The largest max_batch whose plan fits into `bytes`; 0 where not even one sample does.
int64_t LargestBatchWithin(const Program& program, MemoryOptions options, int64_t bytes);

// "needs 12.3 GiB for 4096 samples, 1.2 GiB of 139.0 GiB are free; up to 311 samples would fit: ...".
std::string OutOfMemoryText(const Program& program, const MemoryOptions& options,
                            int64_t free_bytes, int64_t whole_bytes);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_
