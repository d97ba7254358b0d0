// Import of ONNX files: bytes in memory become the nodes of a Graph and its weights.
//
// Operator sets 6 to 25 of ONNX's own domain. The operators are those of convert_*.cc, as far as
// training/ops has them.
//
// The batch is the first axis of the input and of every value that depends on it. The result has
// shapes of one sample, as Graph does. A node that would mix samples is refused.
//
// Weights belong to the node that reads them, with PyTorch's names and layouts: a Gemm's weight is
// [out, in]. So constants become parameters if an operator has a parameter for them. Where Add, Mul,
// Sub, Div, MatMul or Concat read a constant, a rule says whether it is trained:
//
//   an initializer with at least one dimension, and what is made of one    a Parameter, trained
//   any other constant whose elements are equal, such as 0.125             a Constant, never trained
//   a triangle of equal elements, as of a mask, and zeros                  Trilu of a Constant
//   any other constant                                                     refused; it is a
//                                                                          Parameter of OnnxNetwork
//
// The table of a Gather by values is one of these, too: usually an initializer, an embedding.
//
// What nodes make of constants and of shapes is computed during the import, within
// max_folded_elements. The size of the batch stays unknown in it. Numbers in binary16, bfloat16 and
// binary64 are converted to float.
//
// Source: the ONNX operator specification, https://onnx.ai/onnx/operators/.
//
// Files may come from anybody. Everything that is wrong with one is InvalidArgument. The message
// names the node or the value, and contains no control characters. Nothing is allocated because of
// a number in a file that exceeds OnnxLimits. Threads: functions without state.
#ifndef CAPSTAN_TRAINING_ONNX_ONNX_MODEL_H_
#define CAPSTAN_TRAINING_ONNX_ONNX_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/graph/graph.h"

namespace capstan::training::onnx {

inline constexpr int64_t kOldestOperatorSet = 6;
inline constexpr int64_t kNewestOperatorSet = 25;

struct OnnxLimits {
  int64_t max_bytes = int64_t{1} << 30;  // of the file
  // Fields of the messages in the file, including those that are not read. Each byte of a list of
  // 64-bit whole numbers counts as one. A parsed field occupies at most some 300 bytes, and the
  // parsed tensors at most 4 times the file.
  int64_t max_fields = int64_t{1} << 19;
  int64_t max_nodes = kMaxGraphNodes;
  int64_t max_tensors = int64_t{1} << 14;          // initializers
  int64_t max_weight_elements = int64_t{1} << 28;  // of one tensor, and of all weights together
  int64_t max_name_bytes = 1024;                   // of a node or a value
  int64_t max_dims = 8;                            // of a tensor
  int64_t max_folded_elements = int64_t{1} << 20;  // computed from constants, in the whole file
  int64_t max_values = 64;                         // inputs, and outputs, of a network to run
};

// The loss that a network gets. A file has none.
enum class OnnxLoss { kSoftmaxCrossEntropy, kMeanSquaredError };

// A parameter of a node: the name and the shape are those of Graph::parameters().
struct OnnxWeight {
  std::string name;  // "conv1.weight"
  Shape shape;
  std::vector<float> values;  // row-major, finite
};

struct OnnxModel {
  std::string input_name;   // as in the file, any bytes
  std::string output_name;  // likewise
  Shape input_shape;        // of one sample: [C, H, W] or [features]
  Shape output_shape;       // of one sample
  // As for Graph::Build, but without a loss. The last node makes the output. Names are those of
  // PyTorch's modules if the weights have PyTorch's names, else those of the file's nodes, made
  // valid and unique.
  std::vector<GraphNode> nodes;
  std::vector<OnnxWeight> weights;  // as Graph::parameters(), running statistics included
  OnnxLoss loss = OnnxLoss::kSoftmaxCrossEntropy;
  // "Softmax" or "LogSoftmax", if the file applies one to the output and `loss` contains it, which
  // kMeanSquaredError does not. It is left out of the nodes. Else empty.
  std::string final_activation;
  // Weights of the file that several nodes read, in the order of the file. Each node has a copy, so
  // training changes them apart.
  std::vector<std::string> shared_weights;
};

absl::StatusOr<OnnxModel> ReadOnnx(absl::string_view bytes, const OnnxLimits& limits = {},
                                   OnnxLoss loss = OnnxLoss::kSoftmaxCrossEntropy);

// Whether a network's answer has the logits of a token for each number of its input, of which it
// looks up rows of a table: `output` is [T, classes], `input` has T numbers, and a node is a Gather.
bool PredictsTokens(absl::Span<const GraphNode> nodes, const Shape& input, const Shape& output);

// The model with its loss: a SequenceCrossEntropyLoss instead of a SoftmaxCrossEntropyLoss if
// PredictsTokens() says so; before the other losses a Flatten if the output is not [features].
// Their names are "loss" and "flatten", with a number if a node has that name.
// InvalidArgument: the graph is refused, e.g. since it has too many nodes.
absl::StatusOr<Graph> WithLoss(const OnnxModel& model, std::string name);

// A value that a file names, of one sample.
struct OnnxValue {
  std::string name;  // as in the file, any bytes
  Shape shape;
};

// A file's network as it is, to be run and not trained: any number of inputs and outputs, of any
// shapes behind the batch, and a softmax at the end stays.
struct OnnxNetwork {
  std::vector<OnnxValue> inputs;   // in the order of the file
  std::vector<OnnxValue> outputs;  // likewise, at least one
  // Outputs of the file that are not made: they depend on no input, or their node has them besides
  // its first one, as the mask of a Dropout.
  std::vector<std::string> left_out;
  // A sample's input holds the elements of all inputs, one input after the other. The logits begin
  // with the elements of all outputs, likewise; what follows has no meaning.
  Graph graph;
  std::vector<OnnxWeight> weights;  // as Graph::parameters(), of which there is at least one
};

// `name` is the graph's. InvalidArgument as ReadOnnx. Also: a node is meant for training, such as a
// Dropout that says so, or no output is made.
absl::StatusOr<OnnxNetwork> ReadOnnxNetwork(absl::string_view bytes, std::string name,
                                            const OnnxLimits& limits = {});

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_ONNX_MODEL_H_
