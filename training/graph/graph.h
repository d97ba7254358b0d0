// A network as a graph of operators with ONNX names: shapes, parameters and operation counts.
//
// Shapes are of one sample, row-major: [C, H, W] or [features]; the batch is not part of the graph.
// All values are float32. A value is numbered: 0 is the graph's input, i + 1 the output of node i.
// Every node reads earlier values only, every value but the last is read, and the last node is the
// loss.
//
// Operators (the parameters belong to the node, as "<node>.weight" and "<node>.bias"):
//   Conv                     x [C, H, W] -> [K, P, Q]; weight [K, C/group, kh, kw], bias [K];
//                            the kernel is not flipped
//   MaxPool, AveragePool     x [C, H, W] -> [C, P, Q], per channel
//   Gemm                     x [I] -> [O]; y = weight * x + bias; weight [O, I] (ONNX transB = 1),
//                            bias [O]
//   Relu                     any shape; max(x, 0), NaN stays NaN
//   Flatten                  any shape -> [elements], in the order C, H, W
//   SoftmaxCrossEntropyLoss  logits [classes] -> [1]; a label of [0, classes) comes with the batch
// P = floor((H + pad_begin + pad_end - dilation * (kernel - 1) - 1) / stride) + 1, Q likewise.
// Source: ONNX operator specification (opset 13) and, for the output size, Dumoulin & Visin 2016,
// arXiv:1603.07285. Parameter names and shapes are PyTorch's.
//
// Graphs are immutable after Build; all const members are thread-safe. No allocation depends on a
// size in the graph: absurd sizes are answered with an error.
#ifndef CAPSTAN_TRAINING_GRAPH_GRAPH_H_
#define CAPSTAN_TRAINING_GRAPH_GRAPH_H_

#include <array>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::training {

using Shape = std::vector<int64_t>;

// A window that slides over height and width. All values but pads are >= 1, pads >= 0.
struct Window {
  std::array<int64_t, 2> kernel_shape = {1, 1};  // height, width
  std::array<int64_t, 2> strides = {1, 1};
  std::array<int64_t, 4> pads = {0, 0, 0, 0};  // top, left, bottom, right
  std::array<int64_t, 2> dilations = {1, 1};
};

struct Conv {
  int64_t out_channels = 0;
  Window window;
  int64_t group = 1;  // divides the channels of input and output
  bool bias = true;
};
struct MaxPool {
  Window window;  // pads are less than the kernel
};
struct AveragePool {
  Window window;  // as MaxPool; padding does not count in the mean (ONNX count_include_pad = 0)
};
struct Gemm {
  int64_t out_features = 0;
  bool bias = true;
};
struct Relu {};
struct Flatten {};
struct SoftmaxCrossEntropyLoss {};

using Operator =
    std::variant<Conv, MaxPool, AveragePool, Gemm, Relu, Flatten, SoftmaxCrossEntropyLoss>;

// The ONNX name, e.g. "Conv".
absl::string_view OperatorName(const Operator& op);

using ValueId = int;

struct GraphNode {
  std::string name;             // unique, not empty; of a-z A-Z 0-9 _ . / -
  Operator op;                  // kind and attributes
  std::vector<ValueId> inputs;  // every operator above has one
};

enum class ParameterKind { kWeight, kBias };

// A parameter tensor. A bias has the fans of its weight.
struct Parameter {
  std::string name;  // "conv1.weight"
  Shape shape;
  ParameterKind kind = ParameterKind::kWeight;
  int node = 0;
  int64_t fan_in = 0;   // inputs of one output element: C/group * kh * kw, or I
  int64_t fan_out = 0;  // K * kh * kw, or O
  int64_t elements = 0;
};

// Largest number of elements of one value or parameter.
inline constexpr int64_t kMaxTensorElements = int64_t{1} << 40;

// "[1, 28, 28]".
std::string ShapeToString(const Shape& shape);

// The product of the dimensions, 1 for []. InvalidArgument: a dimension below 1, or more than
// kMaxTensorElements; `what` opens the message.
absl::StatusOr<int64_t> ElementCount(const Shape& shape, absl::string_view what);

class Graph {
 public:
  // Checks the nodes and infers every shape. InvalidArgument: a rule above is broken; the message
  // names the node, what it got and what it wants.
  static absl::StatusOr<Graph> Build(std::string name, Shape input_shape,
                                     std::vector<GraphNode> nodes);

  const std::string& name() const { return name_; }
  const Shape& input_shape() const { return value_shapes_[0]; }
  const std::vector<GraphNode>& nodes() const { return nodes_; }
  int value_count() const { return static_cast<int>(value_shapes_.size()); }
  const Shape& value_shape(ValueId value) const { return value_shapes_[value]; }
  int64_t value_elements(ValueId value) const { return value_elements_[value]; }
  ValueId output_of(int node) const { return node + 1; }

  // In forward order, a node's weight before its bias.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  int64_t parameter_elements() const { return parameter_elements_; }
  // Index into parameters(), or -1 where the node has none.
  int weight_of(int node) const { return weight_of_[node]; }
  int bias_of(int node) const { return bias_of_[node]; }

  // Classes of the loss.
  int64_t num_classes() const { return num_classes_; }
  // Whether backward needs the gradient by the value: some parameter acts on it.
  bool needs_gradient(ValueId value) const { return needs_gradient_[value]; }

  // Floating-point operations of Conv and Gemm for one sample, a multiply-add counting 2 and
  // nothing else counting: forward alone; and forward, the gradients by the weights and the
  // gradients by the values that need one. Saturates at the largest int64.
  int64_t forward_flops() const { return forward_flops_; }
  int64_t training_flops() const { return training_flops_; }

 private:
  Graph() = default;
  absl::Status Infer(int node);
  absl::Status AddParameters(int node, Shape weight_shape, bool bias, int64_t positions);

  std::string name_;
  std::vector<GraphNode> nodes_;
  std::vector<Shape> value_shapes_;
  std::vector<int64_t> value_elements_;
  std::vector<bool> needs_gradient_;
  std::vector<Parameter> parameters_;
  std::vector<int> weight_of_;
  std::vector<int> bias_of_;
  int64_t parameter_elements_ = 0;
  int64_t num_classes_ = 0;
  int64_t forward_flops_ = 0;
  int64_t training_flops_ = 0;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_GRAPH_H_
