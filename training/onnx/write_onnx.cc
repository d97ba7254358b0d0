#include "training/onnx/write_onnx.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "capstan/onnx/v1/onnx.pb.h"
#include "training/onnx/onnx_model.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/cast/cast.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gather/gather.h"
#include "training/ops/linear/linear.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/pad/pad.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/pool/pool.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/squeeze/squeeze.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

constexpr int64_t kFileFormat = 8;
constexpr int64_t kWriteOperatorSet = 17;
constexpr int64_t kLaterFileFormat = 9;
constexpr int64_t kLaterOperatorSet = 20;
constexpr int64_t kMostConstantElements = int64_t{1} << 20;
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
  // The file is of kLaterOperatorSet.
  bool later() const { return later_; }

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

  // A node before `to`, with one input and the output "NODE:what", which takes the place of
  // that input.
  v1::NodeProto& AddBefore(v1::NodeProto& to, int index, int input, const std::string& what,
                           const std::string& op) {
    v1::NodeProto& node = *graph_message().add_node();
    node.set_op_type(op);
    node.set_name(absl::StrCat(to.name(), ":", what));
    node.add_input(to.input(input));
    node.add_output(node.name());
    to.set_input(input, node.output(0));
    return node;
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
  // A Constant, or a triangle of one.
  bool IsConstant(ValueId value) const {
    if (value == 0) return false;
    const GraphNode& from = node(value - 1);
    return from.op.name == ConstantOfShape::kName ||
           (from.op.name == Trilu::kName && IsConstant(from.inputs[0]));
  }
  bool IsParameter(ValueId value) const {
    return value > 0 && (node(value - 1).op.name == ParameterNode::kName || IsConstant(value));
  }
  // What a node reads: the value, or for a Parameter its tensor.
  std::string InputName(ValueId value) const {
    return value > 0 && node(value - 1).op.name == ParameterNode::kName
               ? graph_.parameters()[graph_.parameters_of(value - 1)[0]].name
               : ValueName(value);
  }
  absl::Status CheckParameters(int index) const;
  absl::Status CheckLoss() const;
  void WriteInputs(int index, v1::NodeProto& to);
  std::vector<float> ConstantNumbers(int index) const;
  void WriteConstant(int index);
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
  if (window.dilations != Window().dilations) writer.Copy(to, node, "dilations");
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

// A list of whole numbers as an input.
void AddIntegers(OnnxWriter& writer, int node, v1::NodeProto& to, const std::string& what,
                 const std::vector<int64_t>& numbers) {
  v1::TensorProto& tensor = writer.AddConstant(to, node, what, v1::DATA_TYPE_INT64);
  tensor.add_dims(static_cast<int64_t>(numbers.size()));
  tensor.mutable_int64_data()->Add(numbers.begin(), numbers.end());
}

void WriteAxes(OnnxWriter& writer, int node, v1::NodeProto& to) {
  AddIntegers(writer, node, to, "axes", writer.attributes(node).Ints("axes"));
}

// ONNX takes no axes for all axes, the batch included.
void WriteSqueeze(OnnxWriter& writer, int node, v1::NodeProto& to) {
  if (writer.attributes(node).Ints("axes").empty()) return to.set_op_type("Identity");
  WriteAxes(writer, node, to);
}

void WriteSlice(OnnxWriter& writer, int node, v1::NodeProto& to) {
  if (writer.attributes(node).Ints("axes").empty()) return to.set_op_type("Identity");
  for (const char* const name : {"starts", "ends", "axes", "steps"}) {
    AddIntegers(writer, node, to, name, writer.attributes(node).Ints(name));
  }
}

void WritePad(OnnxWriter& writer, int node, v1::NodeProto& to) {
  const Pad pad = Pad::Read(writer.attributes(node));
  const auto rank = static_cast<std::ptrdiff_t>(pad.pads.size() / 2);
  std::vector<int64_t> pads = pad.pads;
  pads.insert(pads.begin() + rank, 0);  // none around the batch
  pads.insert(pads.begin(), 0);
  AddIntegers(writer, node, to, "pads", pads);
  writer.AddConstant(to, node, "value", v1::DATA_TYPE_FLOAT)
      .add_float_data(static_cast<float>(pad.value));
}

void WriteClip(OnnxWriter& writer, int node, v1::NodeProto& to) {
  for (const char* const name : {"min", "max"}) {
    writer.AddConstant(to, node, name, v1::DATA_TYPE_FLOAT)
        .add_float_data(static_cast<float>(writer.attributes(node).Float(name)));
  }
}

// ReduceMean has its axes as an input since operator set 18, ReduceSum since 13.
void WriteReduce(OnnxWriter& writer, int node, v1::NodeProto& to) {
  writer.Copy(to, node, "keepdims");
  if (to.op_type() == ReduceMean::kName && !writer.later()) {
    writer.Copy(to, node, "axes");
  } else {
    WriteAxes(writer, node, to);
  }
}

// Whole numbers become floats again, since readers of a Cast need not take others in ONNX.
void WriteCast(OnnxWriter& writer, int node, v1::NodeProto& to) {
  const std::string type = Cast::Read(writer.attributes(node)).to;
  if (type != "float") {
    writer.SetInt(writer.AddBefore(to, node, 0, "whole", Cast::kName), "to",
                  type == "int32" ? v1::DATA_TYPE_INT32 : v1::DATA_TYPE_INT64);
  }
  writer.SetInt(to, "to", v1::DATA_TYPE_FLOAT);
}

// Indices are whole numbers in ONNX.
void WriteGather(OnnxWriter& writer, int node, v1::NodeProto& to) {
  writer.SetInt(writer.AddBefore(to, node, 1, "indices", Cast::kName), "to", v1::DATA_TYPE_INT64);
}

// ONNX has no such layer: the weights are turned, and the bias is a node.
void WriteLinear(OnnxWriter& writer, int node, v1::NodeProto& to) {
  writer.SetInts(writer.AddBefore(to, node, 1, "turned", "Transpose"), "perm", {1, 0});
  to.set_op_type(MatMul::kName);
  if (to.input_size() < 3) return;
  const std::string weight = to.input(1), bias = to.input(2);
  v1::NodeProto& product = writer.AddBefore(to, node, 0, "product", MatMul::kName);
  product.add_input(weight);
  to.set_op_type(Add::kName);
  to.mutable_input()->DeleteSubrange(1, 2);
  to.add_input(bias);
}

void WriteTranspose(OnnxWriter& writer, int node, v1::NodeProto& to) {
  std::vector<int64_t> perm = writer.attributes(node).Ints("perm");
  perm.insert(perm.begin(), 0);
  writer.SetInts(to, "perm", perm);
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
    {"Cast", WriteCast},
    {"Clip", WriteClip},
    {"Concat", WriteAsItIs},
    {"Conv", WriteConv},
    {"Div", WriteAsItIs},
    {"Dropout", WriteDropout},
    {"Flatten", WriteFlatten},
    {"Gather", WriteGather},
    {"Gelu", WriteAsItIs},
    {"Gemm", WriteGemm},
    {"GlobalAveragePool", WriteAsItIs},
    {"GlobalMaxPool", WriteAsItIs},
    {"Identity", WriteAsItIs},
    {"LRN", WriteAsItIs},
    {"LayerNormalization", WriteAsItIs},
    {"LeakyRelu", WriteAsItIs},
    {"Linear", WriteLinear},
    {"LogSoftmax", WriteAsItIs},
    {"MatMul", WriteAsItIs},
    {"MaxPool", WriteWindow},
    {"Mul", WriteAsItIs},
    {"Pad", WritePad},
    {"ReduceMean", WriteReduce},
    {"ReduceSum", WriteReduce},
    {"Relu", WriteAsItIs},
    {"Reshape", WriteReshape},
    {"Sigmoid", WriteAsItIs},
    {"Slice", WriteSlice},
    {"Softmax", WriteAsItIs},
    {"Squeeze", WriteSqueeze},
    {"Sub", WriteAsItIs},
    {"Sum", WriteAsItIs},
    {"Tanh", WriteAsItIs},
    {"Transpose", WriteTranspose},
    {"Unsqueeze", WriteAxes},
};

// Operators that broadcast, where ONNX aligns shapes by their last axes.
bool Broadcasts(const std::string& op) {
  return op == Add::kName || op == Sub::kName || op == Mul::kName || op == Div::kName ||
         op == MatMul::kName;
}

bool NeedsLater(const Graph& graph) {
  for (int i = 0; i < graph.node_count(); ++i) {
    const std::string& op = graph.nodes()[i].op.name;
    const Attributes& attributes = graph.instance(i).attributes;
    if (op == "Gelu") return true;
    if (op == "AveragePool" && ReadWindow(attributes).dilations != Window().dilations) return true;
  }
  return false;
}

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

// A Parameter and a Constant have no batch in the file. So only an operator that broadcasts may read
// one, beside a value that has the batch, and a Gather as its table. It needs one: ONNX's Gather
// looks up rows of one table for all samples.
absl::Status OnnxWriter::CheckParameters(int index) const {
  const GraphNode& from = node(index);
  const auto parameters = std::count_if(from.inputs.begin(), from.inputs.end(),
                                        [this](ValueId input) { return IsParameter(input); });
  if (from.op.name == Gather::kName) {
    if (parameters == 1 && IsParameter(from.inputs[0])) return absl::OkStatus();
    return absl::UnimplementedError(
        absl::StrCat("node ", from.name,
                     ": Gather can be exported with a Parameter or Constant as "
                     "the table and other indices only"));
  }
  if (parameters == 0 || (Broadcasts(from.op.name) && parameters == 1)) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("node ", from.name, ": ", from.op.name,
                                               " of a Parameter or Constant cannot be exported"));
}

// Gives values with fewer axes than others axes of 1 behind the batch, since ONNX would align the
// batch of one with an axis of the other.
void OnnxWriter::WriteInputs(int index, v1::NodeProto& to) {
  const std::vector<ValueId>& inputs = node(index).inputs;
  size_t rank = 0;
  if (Broadcasts(node(index).op.name)) {
    for (const ValueId input : inputs) rank = std::max(rank, graph_.value_shape(input).size());
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t axes = graph_.value_shape(inputs[i]).size();
    if (IsParameter(inputs[i]) || axes >= rank) {
      to.add_input(InputName(inputs[i]));
      continue;
    }
    v1::NodeProto& more = *graph_message().add_node();
    more.set_op_type(Unsqueeze::kName);
    more.set_name(absl::StrCat(node(index).name, ":axes", i));
    more.add_input(InputName(inputs[i]));
    v1::TensorProto& tensor =
        AddConstant(more, index, absl::StrCat("axes", i), v1::DATA_TYPE_INT64);
    tensor.add_dims(static_cast<int64_t>(rank - axes));
    for (size_t axis = 1; axis <= rank - axes; ++axis) {
      tensor.add_int64_data(static_cast<int64_t>(axis));
    }
    more.add_output(absl::StrCat(node(index).name, ":x", i));
    to.add_input(more.output(0));
  }
}

// The tokens of a loss must be the graph's input, and a reader must see that.
absl::Status OnnxWriter::CheckLoss() const {
  const GraphNode& loss = node(graph_.loss());
  if (loss.inputs.size() < 2) return absl::OkStatus();
  ValueId tokens = loss.inputs[1];
  while (tokens > 0 && graph_.def(tokens - 1).in_place == InPlace::kView) {
    tokens = node(tokens - 1).inputs[0];
  }
  if (tokens == 0 &&
      PredictsTokens(graph_.nodes(), graph_.input_shape(), graph_.value_shape(graph_.logits()))) {
    return absl::OkStatus();
  }
  // A file has no loss, and a reader would put that of a single answer there.
  return absl::UnimplementedError(absl::StrCat(
      "node ", loss.name, ": a network with a ", loss.op.name,
      " can be exported if it looks up rows by the tokens, and these are its whole input"));
}

std::vector<float> OnnxWriter::ConstantNumbers(int index) const {
  const OpInstance& op = graph_.instance(index);
  std::vector<float> numbers(static_cast<size_t>(Elements(op.inferred.output.shape)));
  std::vector<float> of_input;
  SampleInfo samples;
  samples.count = 1;
  ForwardCall<float> call{op, samples, {}, {}, numbers.data(), {}, {}};
  if (!op.x.empty()) {
    of_input = ConstantNumbers(node(index).inputs[0] - 1);
    call.x.push_back(of_input.data());
  }
  graph_.def(index).reference.forward(call);
  return numbers;
}

void OnnxWriter::WriteConstant(int index) {
  const Shape& shape = graph_.value_shape(graph_.output_of(index));
  v1::NodeProto& to = *graph_message().add_node();
  to.set_name(node(index).name);
  to.set_op_type("Constant");
  to.add_output(ValueName(graph_.output_of(index)));
  v1::TensorProto& tensor = *Add(to, "value", v1::ATTRIBUTE_TYPE_TENSOR).mutable_t();
  tensor.set_data_type(v1::DATA_TYPE_FLOAT);
  tensor.mutable_dims()->Add(shape.begin(), shape.end());
  const std::vector<float> values = ConstantNumbers(index);
  tensor.mutable_float_data()->Add(values.begin(), values.end());
}

absl::Status OnnxWriter::WriteNode(int index) {
  const GraphNode& from = node(index);
  if (from.op.name == ParameterNode::kName) return absl::OkStatus();  // an initializer
  if (IsConstant(graph_.output_of(index))) {
    if (graph_.value_elements(graph_.output_of(index)) > kMostConstantElements) {
      return absl::UnimplementedError(absl::StrCat("node ", from.name, ": constant of more than ",
                                                   kMostConstantElements,
                                                   " elements cannot be exported"));
    }
    WriteConstant(index);
    return absl::OkStatus();
  }
  const OpWriter* const writer =
      std::find_if(std::begin(kWriters), std::end(kWriters),
                   [&from](const OpWriter& candidate) { return from.op.name == candidate.op; });
  if (writer == std::end(kWriters)) {
    return absl::UnimplementedError(
        absl::StrCat("node ", from.name, ": operator ", from.op.name, " cannot be exported"));
  }
  const absl::Status parameters = CheckParameters(index);
  if (!parameters.ok()) return parameters;
  v1::NodeProto to;
  to.set_name(from.name);
  to.set_op_type(from.op.name);
  WriteInputs(index, to);
  for (const int parameter : graph_.parameters_of(index)) {
    to.add_input(graph_.parameters()[parameter].name);
  }
  to.add_output(ValueName(graph_.output_of(index)));
  writer->write(*this, index, to);
  *graph_message().add_node() = std::move(to);
  return absl::OkStatus();
}

absl::StatusOr<std::string> OnnxWriter::Write() {
  if (parameters_.size() != graph_.parameters().size()) {
    return absl::InvalidArgumentError(absl::StrCat(parameters_.size(), " tensors, want ",
                                                   graph_.parameters().size(),
                                                   " parameters of the graph"));
  }
  if (const absl::Status loss = CheckLoss(); !loss.ok()) return loss;
  const int64_t most = kMostWeightBytes / static_cast<int64_t>(sizeof(float));
  const int64_t elements = std::max(graph_.parameter_elements(), graph_.statistic_elements()) > most
                               ? most + 1
                               : graph_.parameter_elements() + graph_.statistic_elements();
  if (elements > most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the graph has more than ", most, " parameters, which an ONNX file can hold"));
  }
  later_ = NeedsLater(graph_);
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
