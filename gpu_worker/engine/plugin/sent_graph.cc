#include "gpu_worker/engine/plugin/sent_graph.h"

#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "training/graph/tensors.h"

namespace capstan::engine {
namespace {

using training::AttributeValue;
using training::FlatLayout;
using training::Graph;
using training::GraphNode;
using training::Parameter;

capstan_attribute Sent(const std::string& name, const AttributeValue& value) {
  capstan_attribute sent = {};
  sent.name = name.c_str();
  if (const auto* const integer = std::get_if<int64_t>(&value)) {
    sent.type = CAPSTAN_ATTRIBUTE_INT;
    sent.integer = *integer;
  } else if (const auto* const number = std::get_if<double>(&value)) {
    sent.type = CAPSTAN_ATTRIBUTE_FLOAT;
    sent.number = *number;
  } else if (const auto* const text = std::get_if<std::string>(&value)) {
    sent.type = CAPSTAN_ATTRIBUTE_TEXT;
    sent.text = text->c_str();
  } else {
    const auto& integers = std::get<std::vector<int64_t>>(value);
    sent.type = CAPSTAN_ATTRIBUTE_INTS;
    sent.count = static_cast<int32_t>(integers.size());
    sent.integers = integers.data();
  }
  return sent;
}

absl::StatusOr<AttributeValue> Received(const capstan_attribute& sent) {
  switch (sent.type) {
    case CAPSTAN_ATTRIBUTE_INT:
      return AttributeValue(sent.integer);
    case CAPSTAN_ATTRIBUTE_FLOAT:
      return AttributeValue(sent.number);
    case CAPSTAN_ATTRIBUTE_TEXT:
      return AttributeValue(std::string(sent.text));
    case CAPSTAN_ATTRIBUTE_INTS:
      return AttributeValue(std::vector<int64_t>(sent.integers, sent.integers + sent.count));
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("attribute ", sent.name, ": type ", sent.type, ", want 0 to 3"));
  }
}

}  // namespace

absl::StatusOr<SentGraph> SentGraph::Of(const Graph& graph, const FlatLayout& layout) {
  absl::StatusOr<std::vector<int64_t>> offsets = training::ParameterOffsets(graph, layout);
  if (!offsets.ok()) return offsets.status();
  SentGraph sent;
  sent.offsets_ = *std::move(offsets);
  sent.total_floats_ = layout.total_floats();
  sent.input_shape_ = graph.input_shape();
  for (const GraphNode& node : graph.nodes()) {
    sent.inputs_.emplace_back(node.inputs.begin(), node.inputs.end());
    std::vector<capstan_attribute>& attributes = sent.attributes_.emplace_back();
    for (const auto& [name, value] : node.op.attributes.values()) {
      attributes.push_back(Sent(name, value));
    }
    capstan_node of_node = {};
    of_node.name = node.name.c_str();
    of_node.op = node.op.name.c_str();
    of_node.inputs = sent.inputs_.back().data();
    of_node.input_count = static_cast<int32_t>(node.inputs.size());
    of_node.attributes = attributes.data();
    of_node.attribute_count = static_cast<int32_t>(attributes.size());
    sent.nodes_.push_back(of_node);
  }
  return sent;
}

void SentGraph::Describe(capstan_compile_request& request) const {
  request.input_rank = static_cast<int32_t>(input_shape_.size());
  request.input_shape = input_shape_.data();
  request.node_count = static_cast<int32_t>(nodes_.size());
  request.nodes = nodes_.data();
  request.parameter_count = static_cast<int32_t>(offsets_.size());
  request.parameter_offsets = offsets_.data();
  request.total_floats = total_floats_;
}

absl::StatusOr<ReceivedGraph> ReceiveGraph(const capstan_compile_request& request) {
  std::vector<GraphNode> nodes;
  for (int i = 0; i < request.node_count; ++i) {
    const capstan_node& sent = request.nodes[i];
    GraphNode node;
    node.name = sent.name;
    node.op.name = sent.op;
    node.inputs.assign(sent.inputs, sent.inputs + sent.input_count);
    for (int a = 0; a < sent.attribute_count; ++a) {
      absl::StatusOr<AttributeValue> value = Received(sent.attributes[a]);
      if (!value.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("node ", sent.name, ": ", value.status().message()));
      }
      node.op.attributes.Set(sent.attributes[a].name, *std::move(value));
    }
    nodes.push_back(std::move(node));
  }
  absl::StatusOr<Graph> graph =
      Graph::Build("received", {request.input_shape, request.input_shape + request.input_rank},
                   std::move(nodes));
  if (!graph.ok()) return graph.status();
  if (request.parameter_count != static_cast<int32_t>(graph->parameters().size())) {
    return absl::InvalidArgumentError(absl::StrCat("parameters: ", request.parameter_count,
                                                   ", want ", graph->parameters().size()));
  }
  ReceivedGraph received{
      *std::move(graph),
      {request.parameter_offsets, request.parameter_offsets + request.parameter_count}};
  for (size_t p = 0; p < received.offsets.size(); ++p) {
    const Parameter& parameter = received.graph.parameters()[p];
    if (received.offsets[p] < 0 ||
        received.offsets[p] > request.total_floats - parameter.elements) {
      return absl::InvalidArgumentError(
          absl::StrCat("parameter ", parameter.name, ": ", parameter.elements, " floats from ",
                       received.offsets[p], " on, of ", request.total_floats));
    }
  }
  return received;
}

}  // namespace capstan::engine
