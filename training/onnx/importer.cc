#include "training/onnx/importer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/onnx/scan.h"
#include "training/ops/concat/concat.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

absl::Status OfFile(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("file: ", what));
}

absl::Status OfValue(absl::string_view name, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("value '", Shown(name), "': ", what));
}

absl::Status OfNode(absl::string_view label, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(label, ": ", what));
}

bool IsOnnxDomain(absl::string_view domain) { return domain.empty() || domain == "ai.onnx"; }

bool IsFloatingPoint(int32_t type) {
  return type == v1::DATA_TYPE_FLOAT || type == v1::DATA_TYPE_DOUBLE ||
         type == v1::DATA_TYPE_FLOAT16 || type == v1::DATA_TYPE_BFLOAT16;
}

// Whole numbers, as the tokens of a text have them, become floats.
bool IsInputType(int32_t type) {
  return IsFloatingPoint(type) || type == v1::DATA_TYPE_INT64 || type == v1::DATA_TYPE_INT32;
}

// "[N, 3, 224, 224]", with ? for an unknown dimension.
std::string ShapeText(const v1::TensorShapeProto& shape) {
  std::string text = "[";
  for (const v1::TensorShapeProto::Dimension& dim : shape.dim()) {
    if (text.size() > 200) return absl::StrCat(text, "...]");
    if (text.size() > 1) text.append(", ");
    if (dim.has_dim_value()) {
      absl::StrAppend(&text, dim.dim_value());
    } else {
      absl::StrAppend(&text, dim.dim_param().empty() ? "?" : Shown(dim.dim_param()));
    }
  }
  return absl::StrCat(text, "]");
}

// A name that no node of the model has.
std::string FreeName(const OnnxModel& model, const std::string& stem) {
  absl::flat_hash_set<absl::string_view> names;
  for (const GraphNode& node : model.nodes) names.insert(node.name);
  std::string name = stem;
  for (int i = 1; names.contains(name); ++i) name = absl::StrCat(stem, i);
  return name;
}

// InvalidArgument: too many bytes or fields, or no model.
absl::Status ParseModel(absl::string_view bytes, const OnnxLimits& limits, v1::ModelProto& model) {
  const int64_t most = std::min<int64_t>(limits.max_bytes, std::numeric_limits<int32_t>::max());
  if (bytes.size() > static_cast<size_t>(most)) {
    return OfFile(absl::StrCat(bytes.size(), " bytes, want at most ", most));
  }
  const absl::Status scanned = ScanFields(bytes, limits.max_fields);
  if (!scanned.ok()) return scanned;
  if (!model.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return OfFile("not an ONNX model: a message cannot be parsed");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OnnxModel> ReadOnnx(absl::string_view bytes, const OnnxLimits& limits,
                                   OnnxLoss loss) {
  v1::ModelProto model;
  const absl::Status parsed = ParseModel(bytes, limits, model);
  if (!parsed.ok()) return parsed;
  const bool classes = loss == OnnxLoss::kSoftmaxCrossEntropy;
  return Importer(model, classes ? ImportPurpose::kTraining : ImportPurpose::kRegression, limits)
      .Import();
}

absl::StatusOr<OnnxNetwork> ReadOnnxNetwork(absl::string_view bytes, std::string name,
                                            const OnnxLimits& limits) {
  v1::ModelProto model;
  const absl::Status parsed = ParseModel(bytes, limits, model);
  if (!parsed.ok()) return parsed;
  return Importer(model, ImportPurpose::kPrediction, limits).ImportNetwork(std::move(name));
}

bool PredictsTokens(absl::Span<const GraphNode> nodes, const Shape& input, const Shape& output) {
  return output.size() == 2 && output[0] == Elements(input) &&
         std::any_of(nodes.begin(), nodes.end(),
                     [](const GraphNode& node) { return node.op.name == Gather::kName; });
}

absl::StatusOr<Graph> WithLoss(const OnnxModel& model, std::string name) {
  std::vector<GraphNode> nodes = model.nodes;
  if (model.loss == OnnxLoss::kSoftmaxCrossEntropy &&
      PredictsTokens(model.nodes, model.input_shape, model.output_shape)) {
    nodes.push_back(
        {FreeName(model, "loss"), SequenceCrossEntropyLoss(), {static_cast<int>(nodes.size()), 0}});
    return Graph::Build(std::move(name), model.input_shape, std::move(nodes));
  }
  if (model.output_shape.size() != 1) {
    nodes.push_back({FreeName(model, "flatten"), Flatten(), {static_cast<int>(nodes.size())}});
  }
  const Operator loss = model.loss == OnnxLoss::kMeanSquaredError
                            ? Operator(MeanSquaredErrorLoss())
                            : Operator(SoftmaxCrossEntropyLoss());
  nodes.push_back({FreeName(model, "loss"), loss, {static_cast<int>(nodes.size())}});
  return Graph::Build(std::move(name), model.input_shape, std::move(nodes));
}

std::string Importer::Label(const v1::NodeProto& node) const {
  if (!node.name().empty()) return absl::StrCat("node '", Shown(node.name()), "'");
  return absl::StrCat("node that makes '", node.output_size() > 0 ? Shown(node.output(0)) : "",
                      "'");
}

absl::StatusOr<OnnxModel> Importer::Import() {
  const absl::Status status = ImportNodes();
  if (!status.ok()) return status;
  return Finish();
}

absl::StatusOr<OnnxNetwork> Importer::ImportNetwork(std::string name) {
  const absl::Status status = ImportNodes();
  if (!status.ok()) return status;
  return FinishNetwork(std::move(name));
}

absl::Status Importer::ImportNodes() {
  absl::Status status = CheckFile();
  if (status.ok()) status = FindOperatorSet();
  if (status.ok()) status = CheckNames();
  if (status.ok()) status = BindInitializers();
  if (status.ok()) status = BindInputs();
  if (status.ok()) status = FindMakers();
  if (!status.ok()) return status;
  FindNeeded();
  for (int i = 0; i < file_.node_size(); ++i) {
    if (!needed_[i]) continue;
    status = ConvertNode(i);
    if (!status.ok()) return status;
  }
  return CheckShapes();
}

absl::Status Importer::CheckFile() {
  if (!model_.has_graph()) return OfFile("no graph, want an ONNX model");
  if (model_.functions_size() > 0) return OfFile("functions are not supported");
  if (file_.sparse_initializer_size() > 0) return OfFile("sparse initializers are not supported");
  if (file_.node_size() > limits_.max_nodes) {
    return OfFile(absl::StrCat(file_.node_size(), " nodes, want at most ", limits_.max_nodes));
  }
  if (file_.initializer_size() > limits_.max_tensors) {
    return OfFile(absl::StrCat(file_.initializer_size(), " initializers, want at most ",
                               limits_.max_tensors));
  }
  const int64_t most = purpose_ != ImportPurpose::kPrediction ? 1 : limits_.max_values;
  if (file_.output_size() < 1 || file_.output_size() > most) {
    return OfFile(
        absl::StrCat(file_.output_size(), " outputs, want ", most == 1 ? "" : "1 to ", most));
  }
  absl::flat_hash_set<absl::string_view> outputs;
  for (const v1::ValueInfoProto& output : file_.output()) {
    if (!outputs.insert(output.name()).second) {
      return OfValue(output.name(), "is an output twice");
    }
  }
  result_.output_name = file_.output(0).name();
  return absl::OkStatus();
}

absl::Status Importer::FindOperatorSet() {
  for (const v1::OperatorSetIdProto& set : model_.opset_import()) {
    if (!IsOnnxDomain(set.domain())) continue;
    if (operator_set_ != 0 && set.version() != operator_set_) {
      return OfFile(absl::StrCat("operator sets ", operator_set_, " and ", set.version(),
                                 ", want one of them"));
    }
    operator_set_ = set.version();
    if (operator_set_ < kOldestOperatorSet || operator_set_ > kNewestOperatorSet) {
      return OfFile(absl::StrCat("operator set ", operator_set_, ", want ", kOldestOperatorSet,
                                 " to ", kNewestOperatorSet));
    }
  }
  if (operator_set_ == 0) {
    return OfFile(absl::StrCat("names no operator set, want one of ", kOldestOperatorSet, " to ",
                               kNewestOperatorSet));
  }
  return absl::OkStatus();
}

absl::Status Importer::CheckNames() const {
  const auto check = [this](const std::string& name) {
    if (static_cast<int64_t>(name.size()) <= limits_.max_name_bytes) return absl::OkStatus();
    return OfFile(absl::StrCat("name '", Shown(name), "' of ", name.size(), " bytes, want at most ",
                               limits_.max_name_bytes));
  };
  absl::Status status;
  for (const v1::NodeProto& node : file_.node()) {
    status.Update(check(node.name()));
    status.Update(check(node.op_type()));
    status.Update(check(node.domain()));
    for (const std::string& name : node.input()) status.Update(check(name));
    for (const std::string& name : node.output()) status.Update(check(name));
    for (const v1::AttributeProto& attribute : node.attribute()) {
      status.Update(check(attribute.name()));
    }
    if (!status.ok()) return status;
  }
  for (const v1::TensorProto& tensor : file_.initializer()) status.Update(check(tensor.name()));
  for (const v1::ValueInfoProto& input : file_.input()) status.Update(check(input.name()));
  for (const v1::ValueInfoProto& output : file_.output()) status.Update(check(output.name()));
  return status;
}

absl::Status Importer::BindInitializers() {
  for (const v1::TensorProto& tensor : file_.initializer()) {
    if (tensor.name().empty()) return OfFile("an initializer has no name");
    absl::StatusOr<Constant> constant = MakeConstant(tensor, tensor.name(), limits_);
    if (!constant.ok()) return constant.status();
    constant->trained = !constant->dims.empty() && IsFloatingPoint(tensor.data_type());
    if (!bindings_.try_emplace(tensor.name(), Binding{-1, AddConstant(*std::move(constant))})
             .second) {
      return OfValue(tensor.name(), "two initializers have this name");
    }
  }
  return absl::OkStatus();
}

absl::Status Importer::BindInputs() {
  std::vector<const v1::ValueInfoProto*> inputs;
  for (const v1::ValueInfoProto& candidate : file_.input()) {
    if (!bindings_.contains(candidate.name())) inputs.push_back(&candidate);
  }
  const int64_t most = purpose_ != ImportPurpose::kPrediction ? 1 : limits_.max_values;
  if (inputs.empty() || static_cast<int64_t>(inputs.size()) > most) {
    return OfFile(absl::StrCat(inputs.size(), " inputs that are not initializers, want ",
                               most == 1 ? "" : "1 to ", most));
  }
  for (const v1::ValueInfoProto* const input : inputs) {
    OnnxValue value;
    value.name = input->name();
    const absl::Status status = CheckInput(*input, value.shape);
    if (!status.ok()) return status;
    if (!IsFloatingPoint(input->type().tensor_type().elem_type())) whole_inputs_.insert(value.name);
    inputs_.push_back(std::move(value));
  }
  if (purpose_ == ImportPurpose::kPrediction) return BindRow();
  bindings_.emplace(inputs_[0].name, Binding{0, -1, whole_inputs_.contains(inputs_[0].name)});
  values_.push_back({inputs_[0].shape, DType::kFloat32});
  result_.input_name = inputs_[0].name;
  result_.input_shape = inputs_[0].shape;
  return absl::OkStatus();
}

absl::Status Importer::CheckInput(const v1::ValueInfoProto& input, Shape& sample) {
  const std::string& name = input.name();
  const bool training = purpose_ != ImportPurpose::kPrediction;
  const char* const want = training ? "[N, C, H, W] or [N, features]" : "[N, ...]";
  if (name.empty()) return OfFile("the input has no name");
  if (!input.type().has_tensor_type() || !input.type().tensor_type().has_shape()) {
    return OfValue(name, absl::StrCat("the input has no shape, want a tensor ", want));
  }
  const v1::TypeProto::Tensor& type = input.type().tensor_type();
  if (!IsInputType(type.elem_type())) {
    return OfValue(name, absl::StrCat("the input has elements of type ", type.elem_type(),
                                      ", want a type of floating point, int32 or int64"));
  }
  const auto error = [&](absl::string_view wanted) {
    return OfValue(
        name, absl::StrCat("the input has the shape ", ShapeText(type.shape()), ", want ", wanted));
  };
  const int rank = type.shape().dim_size();
  if (training ? rank != 2 && rank != 4 : rank < 2 || rank > limits_.max_dims) return error(want);
  // Some files write an unknown dimension as -1 or 0.
  const v1::TensorShapeProto::Dimension& first = type.shape().dim(0);
  const int64_t batch = first.has_dim_value() ? first.dim_value() : -1;
  if (batch < -1 || (training && batch > 1)) {
    return error("a batch of 1, -1 or a name as the first dimension");
  }
  if (batch >= 1) {
    if (batch_ >= 1 && batch != batch_) {
      return error(absl::StrCat("a batch of ", batch_, ", as the input before it"));
    }
    batch_ = batch;
  }
  for (int i = 1; i < rank; ++i) {
    const v1::TensorShapeProto::Dimension& dim = type.shape().dim(i);
    if (!dim.has_dim_value() || dim.dim_value() < 1) {
      return error("known dimensions of at least 1 after the batch");
    }
    sample.push_back(dim.dim_value());
  }
  const absl::StatusOr<int64_t> elements = ElementCount(sample, "input");
  return elements.ok() ? absl::OkStatus() : OfValue(name, elements.status().message());
}

absl::Status Importer::BindRow() {
  const auto add = [this](Operator op, ValueId from, Shape shape) {
    ImportedNode node;
    node.op = std::move(op);
    node.inputs = {from};
    node.inferred.output.shape = shape;
    values_.push_back({std::move(shape), DType::kFloat32});
    nodes_.push_back(std::move(node));
    return static_cast<ValueId>(nodes_.size());
  };
  int64_t total = 0;
  for (const OnnxValue& input : inputs_) total += Elements(input.shape);
  const absl::StatusOr<int64_t> elements = ElementCount({total}, "all inputs");
  if (!elements.ok()) return OfFile(elements.status().message());
  const size_t rank = inputs_[0].shape.size();
  const bool alone = inputs_.size() == 1;
  values_.push_back({alone && (rank == 1 || rank == 3) ? inputs_[0].shape : Shape{total}});
  int64_t first = 0;
  for (const OnnxValue& input : inputs_) {
    const int64_t size = Elements(input.shape);
    ValueId value = 0;
    if (!alone) value = add(SliceNode{{first}, {first + size}, {1}, {1}}, 0, {size});
    if (input.shape != values_[value].shape) value = add(Reshape{input.shape}, value, input.shape);
    const bool whole = whole_inputs_.contains(input.name);
    if (!bindings_.emplace(input.name, Binding{value, -1, whole}).second) {
      return OfValue(input.name, "is an input twice");
    }
    first += size;
  }
  return absl::OkStatus();
}

absl::Status Importer::FindMakers() {
  for (int i = 0; i < file_.node_size(); ++i) {
    for (const std::string& output : file_.node(i).output()) {
      if (output.empty()) continue;
      const auto [maker, is_new] = makers_.try_emplace(output, i);
      if (!is_new) {
        return OfValue(output,
                       absl::StrCat("is made by two nodes, ", Label(file_.node(maker->second)),
                                    " and ", Label(file_.node(i))));
      }
      if (bindings_.contains(output)) {
        return OfValue(output, absl::StrCat("is made by ", Label(file_.node(i)),
                                            ", but an initializer or the input has this name"));
      }
    }
  }
  return absl::OkStatus();
}

void Importer::FindNeeded() {
  needed_.resize(file_.node_size());
  for (const v1::ValueInfoProto& output : file_.output()) ++readers_[output.name()];
  for (int i = file_.node_size() - 1; i >= 0; --i) {
    for (const std::string& output : file_.node(i).output()) {
      if (!output.empty() && readers_.contains(output)) needed_[i] = true;
    }
    if (!needed_[i]) continue;
    last_needed_ = std::max(last_needed_, i);
    for (const std::string& input : file_.node(i).input()) ++readers_[input];
  }
}

absl::Status Importer::ConvertNode(int index) {
  const v1::NodeProto& node = file_.node(index);
  const std::string label = Label(node);
  const ConvertFunction convert =
      IsOnnxDomain(node.domain()) ? FindConverter(node.op_type()) : nullptr;
  if (convert == nullptr) {
    return OfNode(label, IsOnnxDomain(node.domain())
                             ? absl::StrCat("operator ", Shown(node.op_type()), " of operator set ",
                                            operator_set_, " is not supported")
                             : absl::StrCat("operator ", Shown(node.op_type()), " of domain '",
                                            Shown(node.domain()), "' is not supported"));
  }
  for (const std::string& input : node.input()) {
    if (input.empty() || bindings_.contains(input)) continue;
    const auto maker = makers_.find(input);
    if (maker == makers_.end()) {
      return OfNode(label, absl::StrCat("reads '", Shown(input), "', which nothing makes"));
    }
    return OfNode(
        label,
        absl::StrCat("reads '", Shown(input), "', ",
                     maker->second < index
                         ? "an output that is not supported"
                         : "which is made later or by itself: want nodes in their order, and no "
                           "cycle",
                     ", of ", Label(file_.node(maker->second))));
  }
  NodeConversion conversion(*this, node, index);
  convert(conversion);
  const absl::Status status = conversion.Finish();
  return status.ok() ? status : OfNode(label, status.message());
}

absl::Status Importer::CheckShapes() const {
  for (const v1::ValueInfoProto& value : file_.value_info()) {
    const absl::Status status = CheckShape(value);
    if (!status.ok()) return status;
  }
  for (const v1::ValueInfoProto& output : file_.output()) {
    const absl::Status status = CheckShape(output);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Importer::CheckShape(const v1::ValueInfoProto& value) const {
  const auto binding = bindings_.find(value.name());
  if (binding == bindings_.end() || binding->second.value < 0) return absl::OkStatus();
  const Shape& found = values_[binding->second.value].shape;
  if (!value.type().has_tensor_type() || !value.type().tensor_type().has_shape()) {
    return absl::OkStatus();
  }
  const v1::TensorShapeProto& stated = value.type().tensor_type().shape();
  if (stated.dim_size() == 0) return absl::OkStatus();  // how some files say that it is unknown
  bool equal = stated.dim_size() == static_cast<int>(found.size()) + 1;
  for (int i = 0; equal && i < stated.dim_size(); ++i) {
    const int64_t size = stated.dim(i).has_dim_value() ? stated.dim(i).dim_value() : -1;
    // The batch is 1 where the file knows it, unless its input has another one.
    const int64_t want = i == 0 ? std::max<int64_t>(batch_, 1) : found[static_cast<size_t>(i) - 1];
    equal = size < 1 || size == want;
  }
  if (equal) return absl::OkStatus();
  return OfValue(value.name(),
                 absl::StrCat("the file states the shape ", ShapeText(stated),
                              ", but its nodes make ", ShapeToString(found), " for each sample"));
}

int Importer::AddConstant(Constant constant) {
  constants_.push_back(std::move(constant));
  return static_cast<int>(constants_.size()) - 1;
}

// Whether the softmax is over all elements of a sample, or over the classes of each token where the
// network predicts tokens: the loss contains it.
bool Importer::LossContains(const ImportedNode& softmax) const {
  const Shape& shape = softmax.inferred.output.shape;
  const int64_t axis = softmax.op.attributes.Int("axis");
  if (shape[axis - 1] == Elements(shape)) return true;
  const Shape& output = nodes_.back().inferred.output.shape;
  return axis == static_cast<int64_t>(shape.size()) && shape.back() == output.back() &&
         PredictsTokens(NamedNodes(), result_.input_shape, output);
}

// Drops a softmax that the loss contains, whose output reaches the end only through nodes that
// change the shape.
void Importer::DropSoftmaxBeforeViews() {
  size_t at = nodes_.size() - 1;
  while (at > 0 && (nodes_[at].op.name == "Flatten" || nodes_[at].op.name == "Reshape") &&
         nodes_[at].inputs[0] == static_cast<ValueId>(at)) {
    --at;
  }
  const ImportedNode& node = nodes_[at];
  if (node.op.name != "Softmax" && node.op.name != "LogSoftmax") return;
  if (!LossContains(node)) return;
  const ValueId input = node.inputs[0];
  result_.final_activation = node.op.name;
  nodes_.erase(nodes_.begin() + static_cast<std::ptrdiff_t>(at));
  // The views behind it move up by one. The first reads what the softmax has read.
  for (size_t i = at; i < nodes_.size(); ++i) {
    nodes_[i].inputs[0] = i == at ? input : static_cast<ValueId>(i);
  }
}

void Importer::DropUnread(std::vector<ValueId>& ends) {
  std::vector<bool> read(nodes_.size() + 1, false);
  for (const ValueId end : ends) read[end] = true;
  for (size_t i = nodes_.size(); i > 0; --i) {
    if (!read[i]) continue;
    for (const ValueId input : nodes_[i - 1].inputs) read[input] = true;
  }
  std::vector<ValueId> moved(nodes_.size() + 1, 0);
  std::vector<ImportedNode> kept;
  for (size_t i = 1; i <= nodes_.size(); ++i) {
    if (!read[i]) continue;
    ImportedNode& node = nodes_[i - 1];
    for (ValueId& input : node.inputs) input = moved[input];
    kept.push_back(std::move(node));
    moved[i] = static_cast<ValueId>(kept.size());
  }
  nodes_ = std::move(kept);
  for (ValueId& end : ends) end = moved[end];
}

absl::StatusOr<ValueId> Importer::OutputValue(const std::string& name) const {
  const auto output = bindings_.find(name);
  if (output == bindings_.end()) {
    return OfValue(name,
                   makers_.contains(name)
                       ? "is the output, but its node makes only the first of its outputs here"
                       : "is the output, but nothing makes it");
  }
  if (output->second.value < 0) return OfValue(name, "the output does not depend on the input");
  return output->second.value;
}

std::vector<GraphNode> Importer::NamedNodes() const {
  const std::vector<std::string> names = NodeNames(nodes_);
  std::vector<GraphNode> named;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    named.push_back({names[i], nodes_[i].op, nodes_[i].inputs});
  }
  return named;
}

std::vector<OnnxWeight> Importer::TakeWeights(const Graph& graph) {
  std::vector<OnnxWeight> weights;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::vector<int>& of_node = graph.parameters_of(static_cast<int>(i));
    CAPSTAN_CHECK(of_node.size() == nodes_[i].weights.size());  // Infer has compared them
    for (size_t k = 0; k < of_node.size(); ++k) {
      const Parameter& parameter = graph.parameters()[of_node[k]];
      weights.push_back({parameter.name, parameter.shape, std::move(nodes_[i].weights[k].values)});
    }
  }
  return weights;
}

absl::StatusOr<OnnxModel> Importer::Finish() {
  const absl::StatusOr<ValueId> output = OutputValue(result_.output_name);
  if (!output.ok()) return output.status();
  std::vector<ValueId> ends = {*output};
  DropUnread(ends);
  // What is left contributes to the output, so the last node makes it.
  if (purpose_ == ImportPurpose::kRegression) result_.loss = OnnxLoss::kMeanSquaredError;
  if (!nodes_.empty() && purpose_ == ImportPurpose::kTraining) DropSoftmaxBeforeViews();
  if (nodes_.empty()) {
    return OfValue(result_.output_name, "no operator is between the input and the output");
  }
  result_.output_shape = nodes_.back().inferred.output.shape;
  result_.nodes = NamedNodes();
  const absl::StatusOr<Graph> graph = WithLoss(result_, "onnx");
  if (!graph.ok()) return graph.status();
  result_.weights = TakeWeights(*graph);
  for (const v1::TensorProto& tensor : file_.initializer()) {
    const auto readers = weight_readers_.find(tensor.name());
    if (readers != weight_readers_.end() && readers->second > 1) {
      result_.shared_weights.push_back(tensor.name());
    }
  }
  return std::move(result_);
}

absl::StatusOr<OnnxNetwork> Importer::FinishNetwork(std::string name) {
  std::vector<ValueId> ends;
  std::vector<OnnxValue> outputs;
  std::vector<std::string> left_out;
  absl::Status none;
  for (const v1::ValueInfoProto& output : file_.output()) {
    const absl::StatusOr<ValueId> value = OutputValue(output.name());
    if (!value.ok()) {
      none.Update(value.status());
      left_out.push_back(output.name());
      continue;
    }
    ends.push_back(*value);
    outputs.push_back({output.name(), values_[*value].shape});
  }
  if (ends.empty()) return none;
  DropUnread(ends);
  std::vector<GraphNode> nodes = NamedNodes();
  absl::flat_hash_set<std::string> names;
  for (const GraphNode& node : nodes) names.insert(node.name);
  const auto add = [&](const char* stem, Operator op, std::vector<ValueId> inputs) {
    std::string free = stem;
    for (int i = 1; !names.insert(free).second; ++i) free = absl::StrCat(stem, i);
    nodes.push_back({std::move(free), std::move(op), std::move(inputs)});
    return static_cast<ValueId>(nodes.size());
  };
  std::vector<ValueId> rows;
  for (const ValueId end : ends) rows.push_back(add("row", Flatten(), {end}));
  const bool weights = std::any_of(nodes_.begin(), nodes_.end(),
                                   [](const ImportedNode& node) { return !node.weights.empty(); });
  // A plan needs a parameter.
  if (!weights) rows.push_back(add("unused", ParameterNode{{1}}, {}));
  const ValueId logits = rows.size() == 1 ? rows[0] : add("rows", Concat{1}, rows);
  add("loss", SoftmaxCrossEntropyLoss(), {logits});
  absl::StatusOr<Graph> graph = Graph::Build(std::move(name), values_[0].shape, std::move(nodes));
  if (!graph.ok()) return graph.status();
  std::vector<OnnxWeight> taken = TakeWeights(*graph);
  if (!weights) taken.push_back({graph->parameters()[0].name, {1}, {0.0f}});
  return OnnxNetwork{std::move(inputs_), std::move(outputs), std::move(left_out), *std::move(graph),
                     std::move(taken)};
}

}  // namespace capstan::training::onnx
