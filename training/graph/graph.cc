#include "training/graph/graph.h"

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
  return absl::StrCat("node ", node.name, " (", std::string(OperatorName(node.op)), ")");
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

absl::Status CheckAtLeast(const std::string& label, absl::string_view what, int64_t got,
                          int64_t want) {
  if (got < want) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": ", what, " ", got, ", want at least ", want));
  }
  return absl::OkStatus();
}

// Output height (axis 0) or width (axis 1) of a window over `size`.
absl::StatusOr<int64_t> WindowOutput(const std::string& label, const Window& window, int axis,
                                     int64_t size) {
  const char* const axis_name = axis == 0 ? "height" : "width";
  const int64_t kernel = window.kernel_shape[axis];
  const int64_t stride = window.strides[axis];
  const int64_t dilation = window.dilations[axis];
  const int64_t before = window.pads[axis];
  const int64_t after = window.pads[axis + 2];
  for (const auto& [what, got, want] : {std::make_tuple("kernel", kernel, int64_t{1}),
                                        std::make_tuple("stride", stride, int64_t{1}),
                                        std::make_tuple("dilation", dilation, int64_t{1}),
                                        std::make_tuple("padding", before, int64_t{0}),
                                        std::make_tuple("padding", after, int64_t{0})}) {
    const absl::Status status =
        CheckAtLeast(label, absl::StrCat(what, " of the ", axis_name), got, want);
    if (!status.ok()) return status;
  }
  const absl::int128 reach = absl::int128(dilation) * (kernel - 1) + 1;
  const absl::int128 padded = absl::int128(size) + before + after;
  if (padded < reach) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": ", axis_name, " ", size, " with padding ", before, " + ", after,
                     ", want at least the kernel ", kernel, " at dilation ", dilation));
  }
  const absl::int128 output = (padded - reach) / stride + 1;
  if (output > kMaxTensorElements) {
    return absl::InvalidArgumentError(absl::StrCat(
        label, ": output ", axis_name, " is too large, want at most ", kMaxTensorElements));
  }
  return static_cast<int64_t>(output);
}

absl::StatusOr<Shape> PoolShape(const std::string& label, const Window& window, const Shape& x) {
  if (x.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrCat(label, ": input ", ShapeToString(x), ", want [C, H, W]"));
  }
  Shape y = {x[0], 0, 0};
  for (int axis = 0; axis < 2; ++axis) {
    const absl::StatusOr<int64_t> output = WindowOutput(label, window, axis, x[axis + 1]);
    if (!output.ok()) return output.status();
    y[axis + 1] = *output;
    // A window that lies in the padding alone would have no maximum and no mean.
    for (const int side : {axis, axis + 2}) {
      if (window.pads[side] >= window.kernel_shape[axis]) {
        return absl::InvalidArgumentError(absl::StrCat(label, ": padding ", window.pads[side],
                                                       ", want less than the kernel ",
                                                       window.kernel_shape[axis]));
      }
    }
  }
  return y;
}

int64_t SaturatedAdd(int64_t a, absl::int128 b) {
  const absl::int128 sum = absl::int128(a) + b;
  return sum > kMaxInt64 ? kMaxInt64 : static_cast<int64_t>(sum);
}

}  // namespace

absl::string_view OperatorName(const Operator& op) {
  static constexpr absl::string_view kNames[] = {
      "Conv", "MaxPool", "AveragePool", "Gemm", "Relu", "Flatten", "SoftmaxCrossEntropyLoss"};
  static_assert(sizeof(kNames) / sizeof(kNames[0]) == std::variant_size_v<Operator>);
  return kNames[op.index()];
}

std::string ShapeToString(const Shape& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> ElementCount(const Shape& shape, absl::string_view what) {
  absl::int128 count = 1;
  for (const int64_t dimension : shape) {
    if (dimension < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": shape ", ShapeToString(shape), ", want dimensions of at least 1"));
    }
    count *= dimension;
    if (count > kMaxTensorElements) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": shape ", ShapeToString(shape),
                                                     ", want at most ", kMaxTensorElements,
                                                     " elements"));
    }
  }
  return static_cast<int64_t>(count);
}

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
  graph.value_shapes_.push_back(std::move(input_shape));
  graph.value_elements_.push_back(*input_elements);
  graph.needs_gradient_.push_back(false);
  absl::flat_hash_set<std::string> names;
  const int node_count = static_cast<int>(graph.nodes_.size());
  std::vector<bool> read(node_count + 1, false);
  for (int i = 0; i < node_count; ++i) {
    const GraphNode& node = graph.nodes_[i];
    const absl::Status name_status = CheckName(node.name, i);
    if (!name_status.ok()) return name_status;
    if (!names.insert(node.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("node ", i, ": the name ", node.name, " is taken by an earlier node"));
    }
    if (node.inputs.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(Label(node), ": ", node.inputs.size(), " inputs, want 1"));
    }
    for (const ValueId input : node.inputs) {
      if (input < 0 || input > i) {
        return absl::InvalidArgumentError(absl::StrCat(
            Label(node), ": input value ", input, ", want one of 0 to ", i, ", made before it"));
      }
      read[input] = true;
    }
    const bool is_loss = std::holds_alternative<SoftmaxCrossEntropyLoss>(node.op);
    if (is_loss != (i + 1 == node_count)) {
      return absl::InvalidArgumentError(
          absl::StrCat(Label(node), ": want one SoftmaxCrossEntropyLoss, as the last of ",
                       node_count, " nodes"));
    }
    const absl::Status status = graph.Infer(i);
    if (!status.ok()) return status;
  }
  for (int value = 0; value < node_count; ++value) {
    if (!read[value]) {
      return absl::InvalidArgumentError(absl::StrCat(
          value == 0 ? std::string("the graph's input") : Label(graph.nodes_[value - 1]),
          ": no node reads the value"));
    }
  }
  return graph;
}

absl::Status Graph::Infer(int index) {
  const GraphNode& node = nodes_[index];
  const std::string label = Label(node);
  const ValueId input = node.inputs[0];
  const Shape x = value_shapes_[input];
  weight_of_.push_back(-1);
  bias_of_.push_back(-1);

  Shape y;
  bool has_parameters = false;
  Shape weight_shape;
  bool bias = false;
  int64_t positions = 1;  // outputs that share the weights
  if (const auto* conv = std::get_if<Conv>(&node.op)) {
    if (x.size() != 3) {
      return absl::InvalidArgumentError(
          absl::StrCat(label, ": input ", ShapeToString(x), ", want [C, H, W]"));
    }
    absl::Status status = CheckAtLeast(label, "out_channels", conv->out_channels, 1);
    if (status.ok()) status = CheckAtLeast(label, "group", conv->group, 1);
    if (!status.ok()) return status;
    if (x[0] % conv->group != 0 || conv->out_channels % conv->group != 0) {
      return absl::InvalidArgumentError(absl::StrCat(label, ": group ", conv->group,
                                                     ", want a divisor of ", x[0], " and ",
                                                     conv->out_channels, " channels"));
    }
    y = {conv->out_channels, 0, 0};
    for (int axis = 0; axis < 2; ++axis) {
      const absl::StatusOr<int64_t> output = WindowOutput(label, conv->window, axis, x[axis + 1]);
      if (!output.ok()) return output.status();
      y[axis + 1] = *output;
    }
    has_parameters = true;
    bias = conv->bias;
    weight_shape = {conv->out_channels, x[0] / conv->group, conv->window.kernel_shape[0],
                    conv->window.kernel_shape[1]};
  } else if (const auto* max_pool = std::get_if<MaxPool>(&node.op)) {
    absl::StatusOr<Shape> shape = PoolShape(label, max_pool->window, x);
    if (!shape.ok()) return shape.status();
    y = *std::move(shape);
  } else if (const auto* average_pool = std::get_if<AveragePool>(&node.op)) {
    absl::StatusOr<Shape> shape = PoolShape(label, average_pool->window, x);
    if (!shape.ok()) return shape.status();
    y = *std::move(shape);
  } else if (const auto* gemm = std::get_if<Gemm>(&node.op)) {
    if (x.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          label, ": input ", ShapeToString(x), ", want [features] (put a Flatten before it)"));
    }
    const absl::Status status = CheckAtLeast(label, "out_features", gemm->out_features, 1);
    if (!status.ok()) return status;
    y = {gemm->out_features};
    has_parameters = true;
    bias = gemm->bias;
    weight_shape = {gemm->out_features, x[0]};
  } else if (std::holds_alternative<Relu>(node.op)) {
    y = x;
  } else if (std::holds_alternative<Flatten>(node.op)) {
    y = {value_elements_[input]};
  } else {
    if (x.size() != 1 || x[0] > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat(label, ": input ", ShapeToString(x), ", want [classes], at most ",
                       std::numeric_limits<int32_t>::max(), " of them"));
    }
    num_classes_ = x[0];
    y = {1};
  }

  const absl::StatusOr<int64_t> elements = ElementCount(y, absl::StrCat(label, ": output"));
  if (!elements.ok()) return elements.status();
  value_shapes_.push_back(y);
  value_elements_.push_back(*elements);
  if (has_parameters) {
    positions = *elements / y[0];
    const absl::Status status = AddParameters(index, std::move(weight_shape), bias, positions);
    if (!status.ok()) return status;
  }
  needs_gradient_.push_back(has_parameters || needs_gradient_[input]);
  return absl::OkStatus();
}

absl::Status Graph::AddParameters(int index, Shape weight_shape, bool bias, int64_t positions) {
  const GraphNode& node = nodes_[index];
  const std::string label = Label(node);
  const absl::StatusOr<int64_t> elements =
      ElementCount(weight_shape, absl::StrCat(label, ": weight"));
  if (!elements.ok()) return elements.status();
  int64_t window = 1;  // cannot overflow: a part of the product above
  for (size_t i = 2; i < weight_shape.size(); ++i) window *= weight_shape[i];
  const int64_t outputs = weight_shape[0];

  Parameter weight;
  weight.name = absl::StrCat(node.name, ".weight");
  weight.kind = ParameterKind::kWeight;
  weight.node = index;
  weight.fan_in = *elements / outputs;
  weight.fan_out = outputs * window;
  weight.elements = *elements;
  weight.shape = std::move(weight_shape);
  Parameter bias_parameter = weight;
  weight_of_[index] = static_cast<int>(parameters_.size());
  parameters_.push_back(std::move(weight));
  parameter_elements_ = SaturatedAdd(parameter_elements_, *elements);
  if (bias) {
    bias_parameter.name = absl::StrCat(node.name, ".bias");
    bias_parameter.kind = ParameterKind::kBias;
    bias_parameter.shape = {outputs};
    bias_parameter.elements = outputs;
    bias_of_[index] = static_cast<int>(parameters_.size());
    parameters_.push_back(std::move(bias_parameter));
    parameter_elements_ = SaturatedAdd(parameter_elements_, outputs);
  }
  if (parameter_elements_ > kMaxTensorElements) {
    return absl::InvalidArgumentError(absl::StrCat(label, ": the graph has ", parameter_elements_,
                                                   " parameters up to here, want at most ",
                                                   kMaxTensorElements));
  }
  const absl::int128 flops = absl::int128(2) * *elements * positions;
  forward_flops_ = SaturatedAdd(forward_flops_, flops);
  training_flops_ =
      SaturatedAdd(training_flops_, flops * (needs_gradient_[node.inputs[0]] ? 3 : 2));
  return absl::OkStatus();
}

}  // namespace capstan::training
