#include "training/onnx/write_onnx.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "capstan/onnx/v1/onnx.pb.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/pool/pool.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

constexpr int64_t kFileFormat = 8;
constexpr int64_t kWriteOperatorSet = 17;
constexpr int64_t kLaterFileFormat = 9;
constexpr int64_t kLaterOperatorSet = 20;
// Protobuf's limit, with room for everything that is no weight.
constexpr int64_t kMostWeightBytes = (int64_t{1} << 31) - (int64_t{1} << 24);

void AppendLittleEndian(float value, std::string& bytes) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) {
    bytes.push_back(static_cast<char>(bits >> shift & 0xFF));
  }
}

class OnnxWriter;

using WriteFunction = void (*)(OnnxWriter& writer, int node, v1::NodeProto& to);

// One graph on its way into a message.
class OnnxWriter {
 public:
  OnnxWriter(const Graph& graph, absl::Span<const float* const> parameters)
      : graph_(graph), parameters_(parameters) {}

  absl::StatusOr<std::string> Write();

  const GraphNode& node(int index) const { return graph_.nodes()[index]; }
  const Attributes& attributes(int index) const { return graph_.instance(index).attributes; }
  // The operator needs kLaterOperatorSet.
  void NeedLater() { later_ = true; }

  void SetInt(v1::NodeProto& to, const std::string& name, int64_t value) {
    v1::AttributeProto& attribute = Add(to, name, v1::ATTRIBUTE_TYPE_INT);
    attribute.set_i(value);
  }
  void SetFloat(v1::NodeProto& to, const std::string& name, double value) {
    Add(to, name, v1::ATTRIBUTE_TYPE_FLOAT).set_f(static_cast<float>(value));
  }
  void SetInts(v1::NodeProto& to, const std::string& name, const std::vector<int64_t>& values) {
    v1::AttributeProto& attribute = Add(to, name, v1::ATTRIBUTE_TYPE_INTS);
    attribute.mutable_ints()->Add(values.begin(), values.end());
  }
  // The node's attribute of this name and type.
  void Copy(v1::NodeProto& to, int index, const std::string& name) {
    const AttributeValue& value = attributes(index).values().at(name);
    if (const auto* integer = std::get_if<int64_t>(&value)) SetInt(to, name, *integer);
    if (const auto* number = std::get_if<double>(&value)) SetFloat(to, name, *number);
    if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) {
      SetInts(to, name, *integers);
    }
    if (const auto* text = std::get_if<std::string>(&value)) {
      Add(to, name, v1::ATTRIBUTE_TYPE_STRING).set_s(*text);
    }
  }

  // An input with numbers that are not weights.
  v1::TensorProto& AddConstant(v1::NodeProto& to, int index, const std::string& what,
                               v1::DataType type) {
    v1::TensorProto& tensor = *graph_message().add_initializer();
    tensor.set_name(absl::StrCat(node(index).name, ":", what));
    tensor.set_data_type(type);
    to.add_input(tensor.name());
    return tensor;
  }

 private:
  v1::GraphProto& graph_message() { return *model_.mutable_graph(); }
  v1::AttributeProto& Add(v1::NodeProto& to, const std::string& name, v1::AttributeType type) {
    v1::AttributeProto& attribute = *to.add_attribute();
    attribute.set_name(name);
    attribute.set_type(type);
    return attribute;
  }
  // No value is called as a node, so that none is called as a parameter.
  std::string ValueName(ValueId value) const {
    if (value == 0) return "input";
    return value == graph_.logits() ? "output" : absl::StrCat(node(value - 1).name, ":0");
  }
  void WriteValue(ValueId value, v1::ValueInfoProto& to) const;
  void WriteParameters();
  absl::Status WriteNode(int index);

  const Graph& graph_;
  const absl::Span<const float* const> parameters_;
  v1::ModelProto model_;
  bool later_ = false;
};

void WriteAsItIs(OnnxWriter& writer, int node, v1::NodeProto& to) {
  for (const auto& [name, value] : writer.attributes(node).values()) writer.Copy(to, node, name);
}

void WriteWindow(OnnxWriter& writer, int node, v1::NodeProto& to) {
  for (const char* const name : {"kernel_shape", "strides", "pads", "dilations"}) {
    writer.Copy(to, node, name);
  }
}

void WriteConv(OnnxWriter& writer, int node, v1::NodeProto& to) {
  WriteWindow(writer, node, to);
  writer.Copy(to, node, "group");
}

void WriteAveragePool(OnnxWriter& writer, int node, v1::NodeProto& to) {
  const Window window = ReadWindow(writer.attributes(node));
  for (const char* const name : {"kernel_shape", "strides", "pads", "count_include_pad"}) {
    writer.Copy(to, node, name);
  }
  if (window.dilations == Window().dilations) return;
  writer.Copy(to, node, "dilations");
  writer.NeedLater();
}

void WriteGemm(OnnxWriter& writer, int node, v1::NodeProto& to) { writer.SetInt(to, "transB", 1); }

void WriteBatchNormalization(OnnxWriter& writer, int node, v1::NodeProto& to) {
  const BatchNormalization op = BatchNormalization::Read(writer.attributes(node));
  writer.SetFloat(to, "epsilon", op.epsilon);
  writer.SetFloat(to, "momentum", 1 - op.momentum);
}

void WriteDropout(OnnxWriter& writer, int node, v1::NodeProto& to) {
  writer.AddConstant(to, node, "ratio", v1::DATA_TYPE_FLOAT)
      .add_float_data(static_cast<float>(Dropout::Read(writer.attributes(node)).ratio));
}

void WriteFlatten(OnnxWriter& writer, int node, v1::NodeProto& to) { writer.SetInt(to, "axis", 1); }

void WriteReshape(OnnxWriter& writer, int node, v1::NodeProto& to) {
  const Shape shape = Reshape::Read(writer.attributes(node)).shape;
  v1::TensorProto& tensor = writer.AddConstant(to, node, "shape", v1::DATA_TYPE_INT64);
  tensor.add_dims(static_cast<int64_t>(shape.size()) + 1);
  tensor.add_int64_data(0);  // the batch stays
  for (const int64_t dim : shape) tensor.add_int64_data(dim);
}

void WriteGelu(OnnxWriter& writer, int node, v1::NodeProto& to) {
  WriteAsItIs(writer, node, to);
  writer.NeedLater();
}

struct OpWriter {
  const char* op;
  WriteFunction write;
};

// Operators with attributes of the same names and meanings need only a line here.
constexpr OpWriter kWriters[] = {
    {"Add", WriteAsItIs},
    {"AveragePool", WriteAveragePool},
    {"BatchNormalization", WriteBatchNormalization},
    {"Concat", WriteAsItIs},
    {"Conv", WriteConv},
    {"Div", WriteAsItIs},
    {"Dropout", WriteDropout},
    {"Flatten", WriteFlatten},
    {"Gelu", WriteGelu},
    {"Gemm", WriteGemm},
    {"GlobalAveragePool", WriteAsItIs},
    {"GlobalMaxPool", WriteAsItIs},
    {"LRN", WriteAsItIs},
    {"LeakyRelu", WriteAsItIs},
    {"LogSoftmax", WriteAsItIs},
    {"MaxPool", WriteWindow},
    {"Mul", WriteAsItIs},
    {"Relu", WriteAsItIs},
    {"Reshape", WriteReshape},
    {"Sigmoid", WriteAsItIs},
    {"Softmax", WriteAsItIs},
    {"Sub", WriteAsItIs},
    {"Sum", WriteAsItIs},
    {"Tanh", WriteAsItIs},
};

void OnnxWriter::WriteValue(ValueId value, v1::ValueInfoProto& to) const {
  to.set_name(ValueName(value));
  v1::TypeProto::Tensor& type = *to.mutable_type()->mutable_tensor_type();
  type.set_elem_type(v1::DATA_TYPE_FLOAT);
  type.mutable_shape()->add_dim()->set_dim_param("N");
  for (const int64_t dim : graph_.value_shape(value)) {
    type.mutable_shape()->add_dim()->set_dim_value(dim);
  }
}

void OnnxWriter::WriteParameters() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = graph_.parameters()[i];
    v1::TensorProto& tensor = *graph_message().add_initializer();
    tensor.set_name(parameter.name);
    tensor.set_data_type(v1::DATA_TYPE_FLOAT);
    tensor.mutable_dims()->Add(parameter.shape.begin(), parameter.shape.end());
    std::string& raw = *tensor.mutable_raw_data();
    raw.reserve(4 * static_cast<size_t>(parameter.elements));
    for (int64_t k = 0; k < parameter.elements; ++k) AppendLittleEndian(parameters_[i][k], raw);
  }
}

absl::Status OnnxWriter::WriteNode(int index) {
  const GraphNode& from = node(index);
  const OpWriter* const writer =
      std::find_if(std::begin(kWriters), std::end(kWriters),
                   [&from](const OpWriter& candidate) { return from.op.name == candidate.op; });
  if (writer == std::end(kWriters)) {
    return absl::UnimplementedError(
        absl::StrCat("node ", from.name, ": operator ", from.op.name, " cannot be exported"));
  }
  for (const ValueId input : from.inputs) {
    if (graph_.value_shape(input).size() == graph_.value_shape(from.inputs[0]).size()) continue;
    // ONNX would align the batch of one with an axis of the other.
    return absl::UnimplementedError(absl::StrCat(
        "node ", from.name, ": inputs with different numbers of dimensions cannot be exported"));
  }
  v1::NodeProto& to = *graph_message().add_node();
  to.set_name(from.name);
  to.set_op_type(from.op.name);
  for (const ValueId input : from.inputs) to.add_input(ValueName(input));
  for (const int parameter : graph_.parameters_of(index)) {
    to.add_input(graph_.parameters()[parameter].name);
  }
  to.add_output(ValueName(graph_.output_of(index)));
  writer->write(*this, index, to);
  return absl::OkStatus();
}

absl::StatusOr<std::string> OnnxWriter::Write() {
  if (parameters_.size() != graph_.parameters().size()) {
    return absl::InvalidArgumentError(absl::StrCat(parameters_.size(), " tensors, want ",
                                                   graph_.parameters().size(),
                                                   " parameters of the graph"));
  }
  if (const GraphNode& loss = node(graph_.loss()); loss.inputs.size() > 1) {
    // A file has no loss, and a reader would put that of a single answer there.
    return absl::UnimplementedError(absl::StrCat("node ", loss.name, ": a network with a ",
                                                 loss.op.name, " cannot be exported"));
  }
  const int64_t most = kMostWeightBytes / static_cast<int64_t>(sizeof(float));
  const int64_t elements = std::max(graph_.parameter_elements(), graph_.statistic_elements()) > most
                               ? most + 1
                               : graph_.parameter_elements() + graph_.statistic_elements();
  if (elements > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the graph has more than ", most, " parameters, which an ONNX file can hold"));
  }
  graph_message().set_name(graph_.name().empty() ? "graph" : graph_.name());
  for (int i = 0; i < graph_.loss(); ++i) {
    const absl::Status status = WriteNode(i);
    if (!status.ok()) return status;
  }
  WriteParameters();
  WriteValue(0, *graph_message().add_input());
  WriteValue(graph_.logits(), *graph_message().add_output());
  model_.set_ir_version(later_ ? kLaterFileFormat : kFileFormat);
  model_.set_producer_name("capstan");
  model_.add_opset_import()->set_version(later_ ? kLaterOperatorSet : kWriteOperatorSet);
  std::string bytes;
  if (!model_.SerializeToString(&bytes)) {
    return absl::ResourceExhaustedError("the model exceeds the size of an ONNX file");
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::string> WriteOnnx(const Graph& graph,
                                      absl::Span<const float* const> parameters) {
  return OnnxWriter(graph, parameters).Write();
}

}  // namespace capstan::training::onnx
