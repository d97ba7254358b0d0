#include "training/spec/graph_message.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "training/graph/models.h"

namespace capstan::training::spec {
namespace {

constexpr char kPath[] = "model.graph";
constexpr char kInput[] = "input";
constexpr char kGraphName[] = "graph";
constexpr size_t kMaxProblems = 16;
constexpr size_t kMaxTextBytes = 64;
constexpr int kMaxIntegers = 64;

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, 80)), "'");
}

bool IsText(absl::string_view text) {
  return text.size() <= kMaxTextBytes &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isprint(c); });
}

std::string NodePath(int index) { return absl::StrCat(kPath, ".nodes[", index, "]"); }

absl::string_view InputOf(const job::v1::Graph& message) {
  return message.inputs_size() > 0 ? absl::string_view(message.inputs(0)) : kInput;
}

// Whether a node that names no inputs reads the value before it.
bool ReadsBefore(const job::v1::GraphNode& node) {
  const OpDef* const def = FindOp(node.op());
  return node.inputs_size() == 0 && (def == nullptr || def->max_inputs > 0);
}

// The name of the value before a node.
absl::string_view Before(const job::v1::Graph& message, int index) {
  return index == 0 ? InputOf(message) : absl::string_view(message.nodes(index - 1).name());
}

// Makes the nodes of a message and collects its errors.
class GraphReader {
 public:
  explicit GraphReader(const job::v1::Graph& message) : message_(message) {}

  // The nodes are valid only if there is no problem.
  std::vector<GraphNode> Read() {
    if (message_.nodes_size() > kMaxGraphNodes) {
      Refuse(
          absl::StrCat(kPath, ".nodes"),
          absl::StrCat("has ", message_.nodes_size(), " entries, want at most ", kMaxGraphNodes));
      return {};
    }
    CheckEnds();
    values_.emplace(InputOf(message_), 0);
    for (int i = 0; i < message_.nodes_size(); ++i) {
      values_.emplace(message_.nodes(i).name(), i + 1);  // the first of equal names
    }
    std::vector<GraphNode> nodes;
    for (int i = 0; i < message_.nodes_size(); ++i) nodes.push_back(NodeOf(i));
    if (!problems_.empty()) return {};
    for (NodeProblem& problem : CheckNodes(nodes)) {
      Refuse(problem.node < 0 ? kPath : NodePath(problem.node),
             absl::StrCat("is refused: ", problem.message));
    }
    return nodes;
  }

  std::vector<GraphProblem> TakeProblems() { return std::move(problems_); }

 private:
  void Refuse(std::string path, std::string message) {
    if (problems_.size() < kMaxProblems) problems_.push_back({std::move(path), std::move(message)});
  }

  // Checks inputs and outputs of the graph.
  void CheckEnds() {
    const std::string inputs = absl::StrCat(kPath, ".inputs");
    if (message_.inputs_size() > 1) {
      Refuse(inputs, absl::StrCat("has ", message_.inputs_size(),
                                  " entries, want 1: several inputs are not supported in this "
                                  "version"));
    } else if (!IsNodeName(InputOf(message_))) {
      Refuse(inputs, absl::StrCat("has ", Quoted(InputOf(message_)), ", want 1 to ",
                                  kMaxNodeNameBytes, " letters, digits and _ . / -"));
    }
    const auto& shape = message_.input_shape();
    if (!shape.empty() &&
        (shape.size() != 3 || *std::min_element(shape.begin(), shape.end()) < 1)) {
      Refuse(absl::StrCat(kPath, ".input_shape"),
             absl::StrCat("is [", absl::StrJoin(shape, ", ").substr(0, 80),
                          "], want channels, height and width, each at least 1"));
    }
    if (message_.outputs_size() == 0 || message_.nodes_size() == 0) return;
    const std::string& last = message_.nodes(message_.nodes_size() - 1).name();
    if (message_.outputs_size() > 1 || message_.outputs(0) != last) {
      Refuse(absl::StrCat(kPath, ".outputs"),
             message_.outputs_size() > 1
                 ? absl::StrCat("has ", message_.outputs_size(), " entries, want 1: the loss")
                 : absl::StrCat("is ", Quoted(message_.outputs(0)), ", want the last node, ",
                                Quoted(last)));
    }
  }

  GraphNode NodeOf(int index) {
    const job::v1::GraphNode& from = message_.nodes(index);
    GraphNode node;
    node.name = from.name();
    node.op.name = from.op();
    if (node.name == InputOf(message_)) {
      Refuse(NodePath(index), absl::StrCat("is named ", Quoted(node.name),
                                           ", as the graph's input is: want another name"));
    }
    if (ReadsBefore(from)) node.inputs = {index};
    for (const std::string& input : from.inputs()) {
      const auto found = values_.find(input);
      if (found == values_.end()) {
        Refuse(
            absl::StrCat(NodePath(index), ".inputs"),
            absl::StrCat("has ", Quoted(input), ", which is not the name of a node or an input"));
      } else if (found->second > index) {
        Refuse(
            absl::StrCat(NodePath(index), ".inputs"),
            absl::StrCat("has ", Quoted(input), ", ",
                         found->second == index + 1
                             ? "the node itself"
                             : absl::StrCat("which comes later, as nodes[", found->second - 1, "]"),
                         ": a node can read only earlier nodes"));
      } else {
        node.inputs.push_back(found->second);
        continue;
      }
      break;  // one error per node is enough
    }
    SetAttributes(from, index, node.op);
    return node;
  }

  void SetAttributes(const job::v1::GraphNode& from, int index, Operator& op) {
    const std::string path = absl::StrCat(NodePath(index), ".attributes");
    const OpDef* const def = FindOp(op.name);
    for (const job::v1::Attribute& attribute : from.attributes()) {
      if (!IsText(attribute.name()) || attribute.name().empty()) {
        return Refuse(path, absl::StrCat("has the name ", Quoted(attribute.name()), ", want 1 to ",
                                         kMaxTextBytes, " printable bytes"));
      }
      if (op.attributes.Has(attribute.name())) {
        return Refuse(path, absl::StrCat("has ", Quoted(attribute.name()), " twice"));
      }
      switch (attribute.value_case()) {
        case job::v1::Attribute::kInteger:
          op.attributes.Set(attribute.name(), WholeNumber(attribute, def));
          break;
        case job::v1::Attribute::kNumber:
          op.attributes.Set(attribute.name(), attribute.number());
          break;
        case job::v1::Attribute::kText:
          if (!IsText(attribute.text())) {
            return Refuse(path, absl::StrCat("has the text ", Quoted(attribute.text()), " as ",
                                             Quoted(attribute.name()), ", want at most ",
                                             kMaxTextBytes, " printable bytes"));
          }
          op.attributes.Set(attribute.name(), attribute.text());
          break;
        case job::v1::Attribute::kIntegers:
          if (attribute.integers().values_size() > kMaxIntegers) {
            return Refuse(path,
                          absl::StrCat("has ", attribute.integers().values_size(), " numbers as ",
                                       Quoted(attribute.name()), ", want at most ", kMaxIntegers));
          }
          op.attributes.Set(attribute.name(),
                            std::vector<int64_t>(attribute.integers().values().begin(),
                                                 attribute.integers().values().end()));
          break;
        case job::v1::Attribute::VALUE_NOT_SET:
          return Refuse(path, absl::StrCat("has ", Quoted(attribute.name()), " without a value"));
      }
    }
  }

  // A float if the operator's attribute is a float.
  static AttributeValue WholeNumber(const job::v1::Attribute& attribute, const OpDef* def) {
    if (def == nullptr) return attribute.integer();
    for (const AttributeDef& of_op : def->attributes) {
      if (of_op.name == attribute.name() && std::holds_alternative<double>(of_op.value)) {
        return static_cast<double>(attribute.integer());
      }
    }
    return attribute.integer();
  }

  const job::v1::Graph& message_;
  absl::flat_hash_map<absl::string_view, int> values_;  // by name
  std::vector<GraphProblem> problems_;
};

void WriteAttributes(const Attributes& from, job::v1::GraphNode& node) {
  node.clear_attributes();
  for (const auto& [name, value] : from.values()) {
    job::v1::Attribute& attribute = *node.add_attributes();
    attribute.set_name(name);
    if (const auto* integer = std::get_if<int64_t>(&value)) attribute.set_integer(*integer);
    if (const auto* number = std::get_if<double>(&value)) attribute.set_number(*number);
    if (const auto* text = std::get_if<std::string>(&value)) attribute.set_text(*text);
    if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
      attribute.mutable_integers()->mutable_values()->Add(integers->begin(), integers->end());
    }
  }
}

}  // namespace

std::vector<GraphProblem> CheckGraph(const job::v1::Graph& message) {
  GraphReader reader(message);
  reader.Read();
  return reader.TakeProblems();
}

void FillGraphDefaults(job::v1::Graph& message) {
  const std::vector<GraphNode> nodes = GraphReader(message).Read();
  if (message.inputs_size() == 0) message.add_inputs(kInput);
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    job::v1::GraphNode& node = *message.mutable_nodes(i);
    if (ReadsBefore(node)) node.add_inputs(std::string(Before(message, i)));
    WriteAttributes(nodes[i].op.attributes, node);
  }
  if (message.outputs_size() == 0 && !nodes.empty()) message.add_outputs(nodes.back().name);
}

absl::StatusOr<Graph> GraphOf(const job::v1::Graph& message, const Shape& input_shape) {
  GraphReader reader(message);
  std::vector<GraphNode> nodes = reader.Read();
  const std::vector<GraphProblem> problems = reader.TakeProblems();
  if (!problems.empty()) {
    return absl::InvalidArgumentError(
        absl::StrJoin(problems, "; ", [](std::string* out, const GraphProblem& problem) {
          absl::StrAppend(out, "'", problem.path, "' ", problem.message);
        }));
  }
  const Shape made_for(message.input_shape().begin(), message.input_shape().end());
  if (!made_for.empty() && made_for != input_shape) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", kPath, "' is refused: it is made for images of ", ShapeToString(made_for),
                     ", the data set has ", ShapeToString(input_shape)));
  }
  absl::StatusOr<Graph> graph = Graph::Build(kGraphName, input_shape, std::move(nodes));
  if (graph.ok()) return graph;
  return absl::InvalidArgumentError(
      absl::StrCat("'", kPath, "' is refused: ", graph.status().message()));
}

job::v1::Graph ToMessage(const Graph& graph) {
  job::v1::Graph message;
  absl::flat_hash_set<absl::string_view> names;
  for (const GraphNode& node : graph.nodes()) names.insert(node.name);
  std::string input = kInput;
  for (int i = 1; names.contains(input); ++i) input = absl::StrCat(kInput, i);
  message.add_inputs(input);
  for (const GraphNode& node : graph.nodes()) {
    job::v1::GraphNode& to = *message.add_nodes();
    to.set_name(node.name);
    to.set_op(node.op.name);
    for (const ValueId value : node.inputs) {
      to.add_inputs(value == 0 ? input : graph.nodes()[value - 1].name);
    }
    WriteAttributes(node.op.attributes, to);
  }
  message.add_outputs(graph.nodes().back().name);
  return message;
}

std::string SampleCoupling(const job::v1::Model& model) {
  if (!model.has_graph()) return ModelCouplesSamples(model.name()) ? model.name() : "";
  for (const job::v1::GraphNode& node : model.graph().nodes()) {
    const OpDef* const def = FindOp(node.op());
    if (def != nullptr && def->couples_samples) {
      return absl::StrCat("node ", node.name(), " (", node.op(), ")");
    }
  }
  return "";
}

}  // namespace capstan::training::spec
