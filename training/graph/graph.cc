#include "training/graph/graph.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::training {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

// Text of an untrusted graph, for a message.
std::string Shown(absl::string_view text) {
  constexpr size_t kMost = 80;
  return absl::StrCat(absl::CHexEscape(text.substr(0, kMost)), text.size() > kMost ? "..." : "");
}

std::string Label(const GraphNode& node) {
  return absl::StrCat("node ", Shown(node.name), " (", Shown(node.op.name), ")");
}

// Empty if the name is valid.
std::string NameProblem(const std::string& name, int index) {
  if (name.empty()) return absl::StrCat("node ", index, ": empty name");
  if (name.size() > kMaxNodeNameBytes) {
    return absl::StrCat("node ", index, ": name ", Shown(name), " of ", name.size(),
                        " bytes, want at most ", kMaxNodeNameBytes);
  }
  if (!IsNodeName(name)) {
    return absl::StrCat("node ", index, ": name \"", Shown(name),
                        "\", want letters, digits and _ . / - only");
  }
  return "";
}

// `message` after the node's name.
absl::Status Of(const GraphNode& node, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(Label(node), ": ", status.message()));
}

std::string UnknownOperator(const GraphNode& node) {
  return absl::StrCat(Label(node), ": the operator is not known, want one of ",
                      absl::StrJoin(AllOps(), ", ", [](std::string* out, const OpDef* op) {
                        out->append(op->name);
                      }));
}

// `node` is node `index` of `count`.
std::string InputProblem(const GraphNode& node, const OpDef& def, int index, int count) {
  const int inputs = static_cast<int>(node.inputs.size());
  if (inputs < def.min_inputs || inputs > def.max_inputs) {
    const std::string want = def.min_inputs == def.max_inputs
                                 ? absl::StrCat(def.min_inputs)
                                 : absl::StrCat(def.min_inputs, " to ", def.max_inputs);
    return absl::StrCat(Label(node), ": ", inputs, " inputs, want ", want);
  }
  for (const ValueId input : node.inputs) {
    if (input < 0 || input > index) {
      return absl::StrCat(Label(node), ": input value ", input, ", want one of 0 to ", index,
                          ", made before it");
    }
  }
  if (def.loss != (index + 1 == count)) {
    return absl::StrCat(Label(node), ": want one loss (SoftmaxCrossEntropyLoss, ",
                        "SequenceCrossEntropyLoss or MeanSquaredErrorLoss), as the last of ", count,
                        " nodes");
  }
  return "";
}

// Checks the rules that concern one node only. Fills in the defaults of attributes.
std::string ProblemOf(GraphNode& node, int index, int count) {
  if (std::string problem = NameProblem(node.name, index); !problem.empty()) return problem;
  const OpDef* const def = FindOp(node.op.name);
  if (def == nullptr) return UnknownOperator(node);
  if (std::string problem = InputProblem(node, *def, index, count); !problem.empty()) {
    return problem;
  }
  const absl::Status attributes = node.op.attributes.Normalize(def->attributes);
  return attributes.ok() ? "" : std::string(Of(node, attributes).message());
}

int64_t SaturatedAdd(int64_t a, absl::int128 b) {
  const absl::int128 sum = absl::int128(a) + b;
  return sum > kMaxInt64 ? kMaxInt64 : static_cast<int64_t>(sum);
}

}  // namespace

bool IsNodeName(absl::string_view name) {
  return !name.empty() && name.size() <= kMaxNodeNameBytes &&
         std::all_of(name.begin(), name.end(),
                     [](char c) { return absl::ascii_isalnum(c) || absl::StrContains("_./-", c); });
}

std::vector<NodeProblem> CheckNodes(std::vector<GraphNode>& nodes) {
  if (nodes.empty()) return {{-1, "graph: no nodes, want at least the loss"}};
  if (nodes.size() > kMaxGraphNodes) {
    return {{-1, absl::StrCat("graph: ", nodes.size(), " nodes, want at most ", kMaxGraphNodes)}};
  }
  const int count = static_cast<int>(nodes.size());
  std::vector<NodeProblem> problems;
  absl::flat_hash_set<absl::string_view> names;
  for (int i = 0; i < count; ++i) {
    std::string problem = ProblemOf(nodes[i], i, count);
    if (!names.insert(nodes[i].name).second && problem.empty()) {
      problem =
          absl::StrCat("node ", i, ": the name ", nodes[i].name, " is taken by an earlier node");
    }
    if (!problem.empty()) problems.push_back({i, std::move(problem)});
  }
  if (!problems.empty()) return problems;
  std::vector<bool> read(nodes.size() + 1, false);
  for (const GraphNode& node : nodes) {
    for (const ValueId input : node.inputs) read[input] = true;
  }
  for (int value = 0; value < count; ++value) {
    if (read[value]) continue;
    problems.push_back({value - 1, absl::StrCat(value == 0 ? std::string("the graph's input")
                                                           : Label(nodes[value - 1]),
                                                ": no node reads the value")});
  }
  return problems;
}

absl::StatusOr<Graph> Graph::Build(std::string name, Shape input_shape,
                                   std::vector<GraphNode> nodes) {
  if (input_shape.size() != 1 && input_shape.size() != 3) {
    return absl::InvalidArgumentError(absl::StrCat("input: shape ", ShapeToString(input_shape),
                                                   ", want [C, H, W] or [features]"));
  }
  const absl::StatusOr<int64_t> input_elements = ElementCount(input_shape, "input");
  if (!input_elements.ok()) return input_elements.status();
  const std::vector<NodeProblem> problems = CheckNodes(nodes);
  if (!problems.empty()) return absl::InvalidArgumentError(problems[0].message);

  Graph graph;
  graph.name_ = std::move(name);
  graph.nodes_ = std::move(nodes);
  Value input;
  input.type.shape = std::move(input_shape);
  input.elements = *input_elements;
  graph.values_.push_back(std::move(input));
  for (int i = 0; i < graph.node_count(); ++i) {
    const absl::Status status = graph.AddNode(i);
    if (!status.ok()) return status;
  }
  return graph;
}

absl::Status Graph::AddNode(int index) {
  GraphNode& node = nodes_[index];
  const OpDef* const def = FindOp(node.op.name);
  defs_.push_back(def);

  OpInstance instance;
  instance.index = index;
  bool needs_gradient = false;
  for (const ValueId input : node.inputs) {
    instance.x.push_back(values_[input].type);
    values_[input].readers.push_back(index);
    needs_gradient = needs_gradient || values_[input].needs_gradient;
  }
  absl::StatusOr<Inference> inferred = def->infer(instance.x, node.op.attributes);
  if (!inferred.ok()) return Of(node, inferred.status());
  instance.attributes = node.op.attributes;
  instance.inferred = *std::move(inferred);
  if (instance.inferred.output.shape.size() > kMaxAxes) {  // axes of 1 cost no elements
    return Of(node, absl::InvalidArgumentError(
                        absl::StrCat("output: ", instance.inferred.output.shape.size(),
                                     " axes, want at most ", kMaxAxes)));
  }
  const absl::StatusOr<int64_t> elements = ElementCount(instance.inferred.output.shape, "output");
  if (!elements.ok()) return Of(node, elements.status());

  const absl::int128 flops = instance.inferred.flops;
  instances_.push_back(std::move(instance));
  const absl::Status parameters = AddParameters(index);
  if (!parameters.ok()) return parameters;
  forward_flops_ = SaturatedAdd(forward_flops_, flops);
  training_flops_ = SaturatedAdd(training_flops_, flops * (1 + gradients_of(index)));
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

int Graph::gradients_of(int node) const {
  int count = 0;
  for (const ValueId input : nodes_[node].inputs) count += values_[input].needs_gradient ? 1 : 0;
  const std::vector<int>& own = node_parameters_[node];
  const bool trained = std::any_of(own.begin(), own.end(),
                                   [this](int index) { return !parameters_[index].statistic; });
  return count + (trained ? 1 : 0);
}

int Graph::parameter_of(int node, absl::string_view suffix) const {
  for (const int parameter : node_parameters_[node]) {
    if (parameters_[parameter].suffix == suffix) return parameter;
  }
  return -1;
}

}  // namespace capstan::training
