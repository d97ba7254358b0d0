// Turns the graph of a compile request into the stages that a card runs, and plans their memory:
// which nodes are fused, the layout of each tensor, and which tensors share a place. Plain host
// code without CUDA.
//
// Stages are made from the steps of plan/program.h, in its order. Convolutions, dense layers and
// poolings have kinds of their own. Every other operator is a kOperator, whose kernel is in ops/.
//
// Inside, images are NHWC and filters OHWI. A dense layer after a flattened image uses its weights
// in that order, too. So no activation is ever permuted on the way, except logits that come
// straight from an image. Operators that move or sum numbers read their inputs by strides, so
// they take images as they lie. A kPermute stands in front of a stage that needs the other order.
// A Relu in front of a pooling becomes part of it. A Relu after a
// convolution or a dense layer becomes part of that. Any other Relu works in place. With bf16 and
// fp16, activations, their gradients and the kernels' copies of weights have 16 bits. The flat
// vectors of weights and gradients, and all sums, have 32.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/index_math.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "training/graph/graph.h"

namespace capstan::engine::cuda {

enum class StageKind { kConv, kDense, kMaxPool, kAveragePool, kRelu, kPermute, kOperator, kLoss };

// An input of a kOperator.
struct StageInput {
  int tensor = -1;             // -1: a parameter that the kernel reads from the flat vector
  bool channels_last = false;  // the value, an image, lies as NHWC
  bool gradient = false;       // backward computes the gradient by it
  bool add = false;            // and adds it to the gradient that later stages have stored
  bool read = true;            // backward reads the value, if the stage reads_x
};

// Floats that forward leaves for backward.
struct SavedFloats {
  int64_t per_sample = 0;
  int64_t fixed = 0;  // independent of the number of samples
};

struct Stage {
  StageKind kind = StageKind::kRelu;
  std::string name;  // of the node
  int x = 0;         // tensor
  int y = 0;         // tensor; x if the stage works in place
  // kConv, pools. kDense: in_c to out_c. kPermute and kOperator: in_c channels of in_h * in_w
  // pixels, as the first input lies.
  WindowGeometry window;
  int32_t rows = 1;  // kDense: vectors of a sample. kLoss: rows of logits of a sample
  // Pools: first, on the input. Others: last, on the output.
  bool relu = false;
  bool input_gradient = false;    // backward computes dx
  bool add_gradient = false;      // and adds it to the gradient that later stages have stored
  bool to_channels_last = false;  // kPermute: forward goes to NHWC
  float label_smoothing = 0;      // kLoss
  bool squared_error = false;     // kLoss: its targets are numbers

  // kOperator. kLoss of a sequence: inputs has the tokens.
  int node = -1;  // in the graph
  std::vector<StageInput> inputs;
  bool channels_last = false;             // the output
  bool backward = false;                  // runs in backward
  bool reads_x = false, reads_y = false;  // in backward
  std::vector<int64_t> parameters;        // floats from the start of the flat vector
  std::vector<SavedFloats> saved;
  int64_t scratch_floats = 0;

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
  bool linear() const { return kind == StageKind::kConv || kind == StageKind::kDense; }
  bool has_parameters() const { return weight >= 0 || !parameters.empty(); }
  // The lowest place of a parameter in the flat vector; the largest int64 if there is none.
  int64_t first_parameter() const {
    int64_t first = std::numeric_limits<int64_t>::max();
    if (weight >= 0) first = std::min(first, weight);
    if (bias >= 0) first = std::min(first, bias);
    for (const int64_t offset : parameters) first = std::min(first, offset);
    return first;
  }
};

struct Tensor {
  int64_t elements = 0;   // per sample
  bool gradient = false;  // backward needs the gradient by it
  bool wide = false;      // float32 in every precision: tokens, whose numbers 16 bits do not hold
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
  int32_t classes = 0;  // or outputs of a squared error
  bool draws = false;   // an operator draws random numbers in training
  std::shared_ptr<const training::Graph> graph;

  const Stage& loss() const { return stages.back(); }
  // Numbers of a sample's target; 0: it is a label.
  int64_t target_numbers() const { return loss().squared_error ? classes : 0; }
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

// Unimplemented, by name: a graph that CheckCarriedOut (carried_out.h) refuses. InvalidArgument:
// ReceiveGraph refuses it, or tensors have 2^31 elements or more (int32 indices).
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
  bool conv_workspace = false;  // at least ConvWorkspaceBytes of every stage
};

// The places of everything in a plan's one piece of memory: offsets in bytes, multiples of
// kAlignBytes.
struct MemoryPlan {
  std::vector<int64_t> values, gradients;   // by tensor; gradients: -1 if there is none
  std::vector<std::vector<int64_t>> saved;  // by stage
  int64_t header = 0;                       // BatchHeader, then labels
  int64_t images = 0;                       // after them, a batch as given: float, bytes or places
  int64_t targets = 0;                      // the labels, or the numbers of a squared error
  int64_t ids = 0;                          // per sample, int64; only if the program draws
  int64_t row_loss = 0, row_correct = 0;    // per row of logits: double, int32
  int64_t parts = 0;                        // [kSumParts, widest_bias]
  int64_t stage_gradient = 0;               // by the weights of one stage
  int64_t scratch = 0;                      // of one operation on the plan's stream
  int64_t workspace = 0, parameter_workspace = 0;  // the latter for parameter gradients
  int64_t weights = 0, copies = 0, gradient = 0;

  int64_t arena_bytes = 0, weight_bytes = 0, gradient_bytes = 0;
  int64_t total_bytes() const { return arena_bytes + weight_bytes + gradient_bytes; }
};

struct BatchHeader {
  double loss_scale = 1;
  float image_scale = 1, image_shift = 0;
  uint32_t dropout_key[2] = {0, 0};  // training::MakePhiloxKey of the seed
  uint32_t epoch = 0, unused = 0;
};
static_assert(sizeof(BatchHeader) == 32, "the labels behind it are aligned");

// The inputs of a stage's parameter gradients are kept until backward is two such stages further.
// So these gradients may lag that far behind the rest of backward.
inline constexpr int kParameterLag = 2;

// The most workspace that a kernel for a product of matrices may use.
inline constexpr int64_t kWorkspaceBytes = 32 << 20;
// The same for a convolution of n samples: what copies of its tensors in another order need, because
// many of cuDNN's engines for float32 make these. It depends on the problem alone, not on a plan's
// largest batch, and so does the choice of a kernel.
int64_t ConvWorkspaceBytes(const WindowGeometry& g, int64_t n);

MemoryPlan PlanMemory(const CardProgram& program, const MemoryOptions& options);

// The largest max_batch whose plan fits into `bytes`; 0 if not even one sample does.
int64_t LargestBatchWithin(const CardProgram& program, MemoryOptions options, int64_t bytes);

// "needs 12.3 GiB for 4096 samples, 1.2 GiB of 139.0 GiB are free; up to 311 samples would fit:
// ...".
std::string OutOfMemoryText(const CardProgram& program, const MemoryOptions& options,
                            int64_t free_bytes, int64_t whole_bytes);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_PROGRAM_H_
