#include "training/graph/graph.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::training {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

std::string Label(const GraphNode& node) {
  return absl::StrCat("node ", node.name, " (", node.op.name, ")");
}

absl::Status CheckName(const std::string& name, int index) {
  if (name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("node ", index, ": empty name"));
  }
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '.' && c != '/' && c != '-') {
      return absl::InvalidArgumentError(absl::StrCat("node ", index, ": name \"", name,
                                                     "\", want letters, digits and _ . / - only"));
    }
  }
  return absl::OkStatus();
}

// `message` behind the node's name.
absl::Status Of(const GraphNode& node, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(Label(node), ": ", status.message()));
}

absl::Status UnknownOperator(const GraphNode& node) {
  return absl::InvalidArgumentError(absl::StrCat(
      Label(node), ": the operator is not known, want one of ",
      absl::StrJoin(AllOps(), ", ",
                    [](std::string* out, const OpDef* op) { out->append(op->name); })));
}

int64_t SaturatedAdd(int64_t a, absl::int128 b) {
  const absl::int128 sum = absl::int128(a) + b;
  return sum > kMaxInt64 ? kMaxInt64 : static_cast<int64_t>(sum);
}

}  // namespace

absl::StatusOr<Graph> Graph::Build(std::string name, Shape input_shape,
                                   std::vector<GraphNode> nodes) {
  if (input_shape.size() != 1 && input_shape.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat("input: shape ", ShapeToString(input_shape),
                                                   ", want [C, H, W] or [features]"));
  }
  const absl::StatusOr<int64_t> input_elements = ElementCount(input_shape, "input");
  if (!input_elements.ok()) return input_elements.status();
  if (nodes.empty()) return absl::InvalidArgumentError("graph: no nodes, want at least the loss");

  Graph graph;
  graph.name_ = std::move(name);
  graph.nodes_ = std::move(nodes);
  Value input;
  input.type.shape = std::move(input_shape);
  input.elements = *input_elements;
  graph.values_.push_back(std::move(input));
  absl::flat_hash_set<std::string> names;
  for (int i = 0; i < graph.node_count(); ++i) {
    const GraphNode& node = graph.nodes_[i];
    const absl::Status name_status = CheckName(node.name, i);
    if (!name_status.ok()) return name_status;
    if (!names.insert(node.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", i, ": the name ", node.name, " is taken by an earlier node"));
    }
    const absl::Status status = graph.AddNode(i);
    if (!status.ok()) return status;
  }
  for (int value = 0; value + 1 < graph.value_count(); ++value) {
    if (graph.values_[value].readers.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          value == 0 ? std::string("the graph's input") : Label(graph.nodes_[value - 1]),
          ": no node reads the value"));
    }
  }
  return graph;
}

absl::Status Graph::CheckInputs(int index) const {
  const GraphNode& node = nodes_[index];
  const OpDef& def = *defs_[index];
  const int count = static_cast<int>(node.inputs.size());
  if (count < def.min_inputs || count > def.max_inputs) {
    const std::string want = def.min_inputs == def.max_inputs
                                 ? absl::StrCat(def.min_inputs)
                                 : absl::StrCat(def.min_inputs, " to ", def.max_inputs);
    return absl::InvalidArgumentError(
        absl::StrCat(Label(node), ": ", count, " inputs, want ", want));
  }
  for (const ValueId input : node.inputs) {
    if (input < 0 || input > index) {
      return absl::InvalidArgumentError(absl::StrCat(
          Label(node), ": input value ", input, ", want one of 0 to ", index, ", made before it"));
    }
  }
  if (def.loss != (index + 1 == node_count())) {
    return absl::InvalidArgumentError(
        absl::StrCat(Label(node), ": want one SoftmaxCrossEntropyLoss, as the last of ",
                     node_count(), " nodes"));
  }
  return absl::OkStatus();
}

absl::Status Graph::AddNode(int index) {
  GraphNode& node = nodes_[index];
  const OpDef* const def = FindOp(node.op.name);
  if (def == nullptr) return UnknownOperator(node);
  defs_.push_back(def);
  const absl::Status inputs = CheckInputs(index);
  if (!inputs.ok()) return inputs;

  OpInstance instance;
  instance.index = index;
  bool needs_gradient = false;
  for (const ValueId input : node.inputs) {
    instance.x.push_back(values_[input].type);
    values_[input].readers.push_back(index);
    needs_gradient = needs_gradient || values_[input].needs_gradient;
  }
  const absl::Status attributes = node.op.attributes.Normalize(def->attributes);
  if (!attributes.ok()) return Of(node, attributes);
  absl::StatusOr<Inference> inferred = def->infer(instance.x, node.op.attributes);
  if (!inferred.ok()) return Of(node, inferred.status());
  instance.attributes = node.op.attributes;
  instance.inferred = *std::move(inferred);
  const absl::StatusOr<int64_t> elements = ElementCount(instance.inferred.output.shape, "output");
  if (!elements.ok()) return Of(node, elements.status());

  const absl::int128 flops = instance.inferred.flops;
  forward_flops_ = SaturatedAdd(forward_flops_, flops);
  training_flops_ = SaturatedAdd(training_flops_, flops * (needs_gradient ? 3 : 2));
  instances_.push_back(std::move(instance));
  const absl::Status parameters = AddParameters(index);
  if (!parameters.ok()) return parameters;
  for (const int parameter : node_parameters_[index]) {
    needs_gradient = needs_gradient || !parameters_[parameter].statistic;
  }
  Value output;
  output.type = instances_[index].inferred.output;
  output.elements = *elements;
  output.needs_gradient = needs_gradient;
  values_.push_back(std::move(output));
  return absl::OkStatus();
}

absl::Status Graph::AddParameters(int index) {
  const GraphNode& node = nodes_[index];
  node_parameters_.emplace_back();
  for (const OpParameter& of_op : instances_[index].inferred.parameters) {
    const absl::StatusOr<int64_t> elements = ElementCount(of_op.shape, of_op.suffix);
    if (!elements.ok()) return Of(node, elements.status());
    Parameter parameter;
    static_cast<OpParameter&>(parameter) = of_op;
    parameter.name = absl::StrCat(node.name, ".", of_op.suffix);
    parameter.node = index;
    parameter.elements = *elements;
    int64_t& sum = of_op.statistic ? statistic_elements_ : parameter_elements_;
    sum = SaturatedAdd(sum, *elements);
    node_parameters_[index].push_back(static_cast<int>(parameters_.size()));
    parameters_.push_back(std::move(parameter));
    const int64_t all = SaturatedAdd(parameter_elements_, statistic_elements_);
    if (all > kMaxTensorElements) {
      return absl::InvalidArgumentError(absl::StrCat(Label(node), ": the graph has ", all,
                                                     " parameters up to here, want at most ",
                                                     kMaxTensorElements));
    }
  }
  return absl::OkStatus();
}

int Graph::parameter_of(int node, absl::string_view suffix) const {
  for (const int parameter : node_parameters_[node]) {
    if (parameters_[parameter].suffix == suffix) return parameter;
  }
  return -1;
}

}  // namespace capstan::training
