// For tests: models as bytes, and the numbers that an imported model computes.
#ifndef CAPSTAN_TRAINING_ONNX_ONNX_BUILDER_H_
#define CAPSTAN_TRAINING_ONNX_ONNX_BUILDER_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "capstan/onnx/v1/onnx.pb.h"
#include "services/check/check.h"
#include "training/onnx/onnx_model.h"

namespace capstan::training::onnx {

// A model with the input "x", the output "y" and operator set 17.
class OnnxBuilder {
 public:
  // `input` and `output` are of one sample; the batch is "N". An empty output states no shape.
  explicit OnnxBuilder(const Shape& input, const Shape& output = {}) {
    model.set_ir_version(8);
    SetOperatorSet(17);
    *graph().add_input() = Value("x", input);
    *graph().add_output() = output.empty() ? Value("y") : Value("y", output);
  }

  capstan::onnx::v1::GraphProto& graph() { return *model.mutable_graph(); }
  void SetOperatorSet(int64_t version) {
    model.clear_opset_import();
    model.add_opset_import()->set_version(version);
  }

  static capstan::onnx::v1::ValueInfoProto Value(const std::string& name) {
    capstan::onnx::v1::ValueInfoProto value;
    value.set_name(name);
    value.mutable_type()->mutable_tensor_type()->set_elem_type(capstan::onnx::v1::DATA_TYPE_FLOAT);
    return value;
  }
  static capstan::onnx::v1::ValueInfoProto Value(const std::string& name, const Shape& sample) {
    capstan::onnx::v1::ValueInfoProto value = Value(name);
    auto& shape = *value.mutable_type()->mutable_tensor_type()->mutable_shape();
    shape.add_dim()->set_dim_param("N");
    for (const int64_t dim : sample) shape.add_dim()->set_dim_value(dim);
    return value;
  }

  capstan::onnx::v1::TensorProto& Tensor(const std::string& name, const Shape& dims, int32_t type) {
    capstan::onnx::v1::TensorProto& tensor = *graph().add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(type);
    tensor.mutable_dims()->Add(dims.begin(), dims.end());
    return tensor;
  }
  void Floats(const std::string& name, const Shape& dims, const std::vector<float>& values) {
    Tensor(name, dims, capstan::onnx::v1::DATA_TYPE_FLOAT)
        .mutable_float_data()
        ->Add(values.begin(), values.end());
  }
  // Values first, first + 1, ...
  void Count(const std::string& name, const Shape& dims, float first = 1) {
    std::vector<float> values(static_cast<size_t>(Elements(dims)));
    for (float& value : values) value = first++;
    Floats(name, dims, values);
  }
  void Integers(const std::string& name, const std::vector<int64_t>& values) {
    Tensor(name, {static_cast<int64_t>(values.size())}, capstan::onnx::v1::DATA_TYPE_INT64)
        .mutable_int64_data()
        ->Add(values.begin(), values.end());
  }

  capstan::onnx::v1::NodeProto& Node(const std::string& op, const std::vector<std::string>& inputs,
                                     const std::string& output, const std::string& name = "") {
    capstan::onnx::v1::NodeProto& node = *graph().add_node();
    node.set_op_type(op);
    node.set_name(name);
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(output);
    return node;
  }

  static capstan::onnx::v1::AttributeProto& Set(capstan::onnx::v1::NodeProto& node,
                                                const std::string& name) {
    capstan::onnx::v1::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    return attribute;
  }
  static void SetInt(capstan::onnx::v1::NodeProto& node, const std::string& name, int64_t value) {
    auto& attribute = Set(node, name);
    attribute.set_type(capstan::onnx::v1::ATTRIBUTE_TYPE_INT);
    attribute.set_i(value);
  }
  static void SetFloat(capstan::onnx::v1::NodeProto& node, const std::string& name, float value) {
    auto& attribute = Set(node, name);
    attribute.set_type(capstan::onnx::v1::ATTRIBUTE_TYPE_FLOAT);
    attribute.set_f(value);
  }
  static void SetText(capstan::onnx::v1::NodeProto& node, const std::string& name,
                      const std::string& value) {
    auto& attribute = Set(node, name);
    attribute.set_type(capstan::onnx::v1::ATTRIBUTE_TYPE_STRING);
    attribute.set_s(value);
  }
  static void SetInts(capstan::onnx::v1::NodeProto& node, const std::string& name,
                      const std::vector<int64_t>& values) {
    auto& attribute = Set(node, name);
    attribute.set_type(capstan::onnx::v1::ATTRIBUTE_TYPE_INTS);
    attribute.mutable_ints()->Add(values.begin(), values.end());
  }

  std::string Bytes() const { return model.SerializeAsString(); }
  absl::StatusOr<OnnxModel> Read(const OnnxLimits& limits = {}) const {
    return ReadOnnx(Bytes(), limits);
  }
  // The message of InvalidArgument, or the text of any other status.
  std::string Error(const OnnxLimits& limits = {}) const {
    const absl::Status status = Read(limits).status();
    return absl::IsInvalidArgument(status) ? std::string(status.message()) : status.ToString();
  }

  capstan::onnx::v1::ModelProto model;
};

// "conv1 Conv(0), relu1 Relu(1)": names, operators and the values that they read.
inline std::string NodesOf(const OnnxModel& model) {
  std::string text;
  for (const GraphNode& node : model.nodes) {
    text += (text.empty() ? "" : ", ") + node.name + " " + node.op.name + "(";
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      text += (i == 0 ? "" : " ") + std::to_string(node.inputs[i]);
    }
    text += ")";
  }
  return text;
}

// "conv1.weight [2, 1, 3, 3], conv1.bias [2]".
inline std::string WeightsOf(const OnnxModel& model) {
  std::string text;
  for (const OnnxWeight& weight : model.weights) {
    text += (text.empty() ? "" : ", ") + weight.name + " " + ShapeToString(weight.shape);
  }
  return text;
}

// The output of the model for one sample, by the references of the operators, as in evaluation.
inline std::vector<float> Compute(const OnnxModel& model, const std::vector<float>& input) {
  const absl::StatusOr<Graph> graph = WithLoss(model, "test");
  CAPSTAN_CHECK(graph.ok());
  std::vector<std::vector<float>> values = {input};
  SampleInfo samples;
  samples.count = 1;
  size_t weight = 0;
  for (size_t i = 0; i < model.nodes.size(); ++i) {
    const int node = static_cast<int>(i);
    std::vector<float> y(static_cast<size_t>(graph->value_elements(graph->output_of(node))));
    ForwardCall<float> call{graph->instance(node), samples, {}, {}, y.data(), {}, {}};
    for (const ValueId value : graph->nodes()[i].inputs) call.x.push_back(values[value].data());
    for (const OpParameter& parameter : graph->instance(node).inferred.parameters) {
      CAPSTAN_CHECK(model.weights[weight].shape == parameter.shape);
      call.parameters.push_back(model.weights[weight++].values.data());
      call.statistics.push_back(nullptr);
    }
    call.saved.resize(graph->instance(node).inferred.saved.size());
    graph->def(node).reference.forward(call);
    values.push_back(std::move(y));
  }
  return values.back();
}

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_ONNX_BUILDER_H_
