// A network as a graph of operators (training/ops): shapes, parameters and operation counts.
//
// Shapes are of one sample, row-major: [C, H, W] or [features]. The batch is not part of the graph.
// Values are numbered: 0 is the graph's input, i + 1 the output of node i. Every node reads earlier
// values only. A value may have many readers, and every value except the last is read. The last
// node is the loss, and there is no other loss.
//
// The parameters of a node are "<node>.<suffix>": "conv1.weight". Names and shapes are PyTorch's.
//
// Graphs are immutable after Build; all const members are thread-safe. No allocation depends on a
// size in the graph, so absurd sizes are answered with an error.
#ifndef CAPSTAN_TRAINING_GRAPH_GRAPH_H_
#define CAPSTAN_TRAINING_GRAPH_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "training/ops/op.h"
#include "training/ops/types.h"

namespace capstan::training {

using ValueId = int;

// Dropout counts by the node's index, in 16 bits. Each node also costs time and memory wherever a
// graph is read.
inline constexpr int kMaxGraphNodes = 4096;
inline constexpr size_t kMaxNodeNameBytes = 128;
inline constexpr size_t kMaxAxes = 16;  // of a value, without the batch

// 1 to kMaxNodeNameBytes of a-z A-Z 0-9 _ . / -
bool IsNodeName(absl::string_view name);

struct GraphNode {
  std::string name;             // unique, IsNodeName
  Operator op;                  // after Build: with all attributes, auto_pad resolved
  std::vector<ValueId> inputs;  // the same value may appear twice
};

// A parameter tensor of one node: the operator's parameter with its full name.
struct Parameter : OpParameter {
  std::string name;  // "conv1.weight"
  int node = 0;
  int64_t elements = 0;
};

struct NodeProblem {
  int node = -1;        // index; -1: the graph as a whole
  std::string message;  // names the node, found and wanted value; no control characters
};

// Checks every rule of a graph that needs no shape: names, operators, number and choice of inputs,
// names and types of attributes, the loss, unread values. Returns at most one problem per node;
// empty if there is none. Fills in the defaults of attributes. `nodes` may contain anything.
std::vector<NodeProblem> CheckNodes(std::vector<GraphNode>& nodes);

class Graph {
 public:
  // Checks the nodes and infers every shape. InvalidArgument: a rule above is broken, or an
  // operator is unknown. The message names the node, the found and the wanted value.
  static absl::StatusOr<Graph> Build(std::string name, Shape input_shape,
                                     std::vector<GraphNode> nodes);

  const std::string& name() const { return name_; }
  const Shape& input_shape() const { return values_[0].type.shape; }
  const std::vector<GraphNode>& nodes() const { return nodes_; }
  int node_count() const { return static_cast<int>(nodes_.size()); }
  // The table's entry for a node's operator, and what was inferred for this node.
  const OpDef& def(int node) const { return *defs_[node]; }
  const OpInstance& instance(int node) const { return instances_[node]; }

  int value_count() const { return static_cast<int>(values_.size()); }
  const Shape& value_shape(ValueId value) const { return values_[value].type.shape; }
  int64_t value_elements(ValueId value) const { return values_[value].elements; }
  ValueId output_of(int node) const { return node + 1; }
  // Nodes that read the value, in rising order. A node that reads it twice appears twice.
  const std::vector<int>& readers(ValueId value) const { return values_[value].readers; }
  // Whether backward needs the gradient by the value, i.e. some parameter contributes to it.
  bool needs_gradient(ValueId value) const { return values_[value].needs_gradient; }
  // The gradients that backward of the node computes: by each input that needs one, and by the
  // node's own trained parameters together. Each takes as many products as forward.
  int gradients_of(int node) const;

  // In forward order. Those of one node are in the order of its operator.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Indices into parameters(): all of a node, and the one with a given suffix, or -1.
  const std::vector<int>& parameters_of(int node) const { return node_parameters_[node]; }
  int parameter_of(int node, absl::string_view suffix) const;
  // Elements of trained parameters, and of running statistics.
  int64_t parameter_elements() const { return parameter_elements_; }
  int64_t statistic_elements() const { return statistic_elements_; }

  // The loss node and the value that it reads.
  int loss() const { return node_count() - 1; }
  ValueId logits() const { return nodes_.back().inputs[0]; }
  // Classes of the loss: the last axis of the logits. Of a loss that takes numbers, its outputs.
  int64_t num_classes() const { return values_[logits()].type.shape.back(); }
  // Numbers of a sample's target, for a loss that takes numbers; 0: it takes labels.
  int64_t target_size() const {
    return defs_.back()->numeric_targets ? values_[logits()].elements : 0;
  }
  // The element of a sample's logits where those of the answer begin, num_classes() of them: the
  // last position of a sequence, else 0.
  int64_t answer_offset() const { return values_[logits()].elements - num_classes(); }

  // Floating-point operations of one sample in products with parameters or of matrices. A
  // multiply-add counts as 2 and nothing else counts. forward_flops() is the forward pass alone.
  // training_flops() adds the gradients by the parameters and by the values that need one. Both
  // saturate at the largest int64.
  int64_t forward_flops() const { return forward_flops_; }
  int64_t training_flops() const { return training_flops_; }

 private:
  struct Value {
    ValueType type;
    int64_t elements = 0;
    bool needs_gradient = false;
    std::vector<int> readers;
  };

  Graph() = default;
  absl::Status AddNode(int node);
  absl::Status AddParameters(int node);

  std::string name_;
  std::vector<GraphNode> nodes_;
  std::vector<const OpDef*> defs_;
  std::vector<OpInstance> instances_;
  std::vector<Value> values_;
  std::vector<Parameter> parameters_;
  std::vector<std::vector<int>> node_parameters_;
  int64_t parameter_elements_ = 0;
  int64_t statistic_elements_ = 0;
  int64_t forward_flops_ = 0;
  int64_t training_flops_ = 0;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_GRAPH_H_
