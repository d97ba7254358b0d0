#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/onnx/importer.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/transpose/transpose.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

constexpr int kMostListed = 64;
constexpr size_t kMostTextBytes = 64;

bool AllEqual(const std::vector<float>& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [&numbers](float number) { return number == numbers[0]; });
}

// A triangle of each matrix, all of one number, and zeros elsewhere.
struct Triangle {
  float value = 0;
  Trilu place;
};

std::optional<Triangle> TriangleOf(const Shape& dims, const std::vector<float>& numbers) {
  if (dims.size() < 2 || numbers.empty()) return std::nullopt;
  const int64_t rows = dims.end()[-2], columns = dims.back();
  const auto diagonal = [&](size_t i) {
    const auto at = static_cast<int64_t>(i);
    return at % columns - at / columns % rows;
  };
  Triangle found;
  int64_t least = std::numeric_limits<int64_t>::max(), most = -least;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == 0) continue;
    if (found.value != 0 && numbers[i] != found.value) return std::nullopt;
    found.value = numbers[i];
    least = std::min(least, diagonal(i));
    most = std::max(most, diagonal(i));
  }
  for (const bool upper : {true, false}) {
    bool fits = true;
    for (size_t i = 0; fits && i < numbers.size(); ++i) {
      const bool inside = upper ? diagonal(i) >= least : diagonal(i) <= most;
      fits = inside == (numbers[i] != 0);
    }
    if (!fits) continue;
    found.place = {upper, upper ? least : most};
    return found;
  }
  return std::nullopt;
}

}  // namespace

NodeConversion::NodeConversion(Importer& importer, const v1::NodeProto& node, int index)
    : importer_(importer), node_(node), index_(index) {
  absl::flat_hash_set<absl::string_view> names;
  for (const v1::AttributeProto& attribute : node.attribute()) {
    const std::string shown = absl::StrCat("attribute '", Shown(attribute.name()), "'");
    if (!names.insert(attribute.name()).second) Refuse(absl::StrCat(shown, " is there twice"));
    if (!attribute.g().empty() || attribute.type() == v1::ATTRIBUTE_TYPE_GRAPH) {
      Refuse(absl::StrCat(shown, " is a graph, which is not supported"));
    }
    if (!attribute.ref_attr_name().empty()) {
      Refuse(absl::StrCat(shown, " refers to a function, which is not supported"));
    }
  }
}

void NodeConversion::Refuse(absl::string_view what) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(what);
}

const Binding* NodeConversion::Find(int input) {
  if (!Has(input)) {
    Refuse(absl::StrCat("input ", input, " is missing"));
    return nullptr;
  }
  const auto binding = importer_.bindings_.find(node_.input(input));
  CAPSTAN_CHECK(binding != importer_.bindings_.end());  // ConvertNode has looked
  return &binding->second;
}

bool NodeConversion::IsConstant(int input) const {
  if (!Has(input)) return false;
  const auto binding = importer_.bindings_.find(node_.input(input));
  return binding != importer_.bindings_.end() && binding->second.value < 0;
}

bool NodeConversion::IsOwnConstant(int input) const {
  if (!IsConstant(input)) return false;
  const Binding& binding = importer_.bindings_.find(node_.input(input))->second;
  return importer_.readers_[node_.input(input)] == 1 &&
         !importer_.constants_[binding.constant].shared;
}

bool NodeConversion::IsWholeValue(int input) const {
  if (!Has(input)) return false;
  const auto binding = importer_.bindings_.find(node_.input(input));
  return binding != importer_.bindings_.end() && binding->second.whole;
}

ValueId NodeConversion::GraphInput(int input) {
  const Binding* const binding = Find(input);
  if (binding == nullptr) return -1;
  if (binding->value < 0) {
    Refuse(absl::StrCat("input ", input, ", '", Shown(node_.input(input)),
                        "', is a constant, want a value that depends on the graph's input"));
  }
  return binding->value;
}

const Constant* NodeConversion::ConstantInput(int input) {
  const Binding* const binding = Find(input);
  if (binding == nullptr) return nullptr;
  if (binding->value >= 0) {
    Refuse(absl::StrCat("input ", input, ", '", Shown(node_.input(input)),
                        "', depends on the graph's input, want a constant"));
    return nullptr;
  }
  return &importer_.constants_[binding->constant];
}

std::vector<ValueId> NodeConversion::AllGraphInputs() {
  std::vector<ValueId> values;
  for (int i = 0; ok() && i < input_count(); ++i) values.push_back(GraphInput(i));
  for (size_t i = 1; ok() && i < values.size(); ++i) {
    if (RankOf(values[i]) == RankOf(values[0])) continue;
    Refuse(absl::StrCat("inputs of the shapes ", ShapeToString(ShapeOf(values[0])), " and ",
                        ShapeToString(ShapeOf(values[i])),
                        " for each sample: want as many dimensions, since a batch cannot be "
                        "broadcast"));
  }
  return values;
}

bool NodeConversion::AllConstant() const {
  for (int i = 0; i < input_count(); ++i) {
    if (!IsConstant(i)) return false;
  }
  return input_count() > 0;
}

ValueId NodeConversion::Operand(int input, int64_t rank, const char* init) {
  if (!IsConstant(input)) return GraphInput(input);
  const Constant* const constant = ConstantInput(input);
  if (constant == nullptr) return -1;
  const std::string shown = absl::StrCat("constant '", Shown(constant->source), "' of shape ",
                                         ShapeToString(constant->dims));
  Constant view = *constant;
  const int64_t dims = static_cast<int64_t>(view.dims.size());
  if (dims > rank || (dims == rank && dims > 0 && view.dims[0] != 1)) {
    Refuse(absl::StrCat(shown, ", want at most ", rank,
                        " dimensions, and 1 as the first of these: the batch"));
    return -1;
  }
  // A matrix that lost its first axis of 1 is no matrix any more, and has one order only.
  if (dims == rank && dims > 0) {
    view.dims.erase(view.dims.begin());
    view.transposed = false;
  }
  if (view.dims.empty()) view.dims = {1};
  const auto key_of = [](const Constant& of) {
    return absl::StrCat(of.transposed ? "turned " : "", ShapeToString(of.dims), of.source);
  };
  const std::string key = key_of(view);
  const auto known = importer_.operands_.find(key);
  if (known != importer_.operands_.end()) return known->second;
  if (!view.transposed || !view.trained) return AppendOperand(view, key, shown, init);
  // The Parameter keeps the layout of the file. A node that reads it as it is has the same one.
  std::swap(view.dims[0], view.dims[1]);
  view.transposed = false;
  const std::string stored_key = key_of(view);
  const auto stored = importer_.operands_.find(stored_key);
  ValueId value = stored != importer_.operands_.end()
                      ? stored->second
                      : AppendOperand(view, stored_key, shown, init);
  value = AppendAs(Transpose{{2, 1}}, {value}, {}, "", "", "");
  if (ok()) importer_.operands_.emplace(key, value);
  return value;
}

ValueId NodeConversion::AppendOperand(const Constant& view, const std::string& key,
                                      absl::string_view shown, const char* init) {
  NodeWeight weight = {"weight", view.dims, {}};
  weight.values = TakeFloats(view);
  if (!ok()) return -1;
  ValueId value = -1;
  if (!view.trained && !weight.values.empty() && AllEqual(weight.values)) {
    value = AppendAs(ConstantOfShape{view.dims, DecimalOf(weight.values[0])}, {}, {}, "", "", "");
  } else if (const auto mask = view.trained ? std::nullopt : TriangleOf(view.dims, weight.values);
             mask.has_value()) {
    value = AppendAs(ConstantOfShape{view.dims, DecimalOf(mask->value)}, {}, {}, "", "", "");
    value = AppendAs(mask->place, {value}, {}, "", "", "");
  } else if (!view.trained && for_training()) {
    Refuse(absl::StrCat(shown,
                        " has different numbers and is no initializer: want an initializer, "
                        "which is trained, or equal numbers, which are not"));
  } else {
    std::string module = ModuleOf(view.source, ".weight");
    if (module.empty()) module = ModuleOf(view.source, "");
    value = AppendAs(ParameterNode{view.dims, init}, {}, {std::move(weight)}, std::move(module), "",
                     "");
  }
  if (ok()) importer_.operands_.emplace(key, value);
  return value;
}

std::vector<ShapeNumber> NodeConversion::ShapeNumbers(int input) {
  const Constant* const constant = ConstantInput(input);
  if (constant == nullptr) return {};
  absl::StatusOr<std::vector<ShapeNumber>> numbers = ReadShapeNumbers(*constant);
  if (!numbers.ok()) {
    Refuse(numbers.status().message());
    return {};
  }
  return *std::move(numbers);
}

bool NodeConversion::Flag(int input) {
  const Constant* const constant = ConstantInput(input);
  if (constant == nullptr) return false;
  const absl::StatusOr<std::vector<ShapeNumber>> numbers = ReadShapeNumbers(*constant);
  if (!numbers.ok()) {
    Refuse(numbers.status().message());
    return false;
  }
  if (numbers->size() != 1) Refuse(absl::StrCat("input ", input, ": want one number"));
  return ok() && (*numbers)[0].value != 0;
}

std::vector<int64_t> NodeConversion::Integers(int input) {
  const Constant* const constant = ConstantInput(input);
  if (constant == nullptr) return {};
  absl::StatusOr<std::vector<int64_t>> integers = ReadIntegers(*constant);
  if (!integers.ok()) {
    Refuse(integers.status().message());
    return {};
  }
  return *std::move(integers);
}

bool NodeConversion::Scalar(int input, double& value) {
  const Constant* const constant = ConstantInput(input);
  if (constant == nullptr) return false;
  if (constant->elements != 1) {
    Refuse(absl::StrCat("input ", input, ": shape ", ShapeToString(constant->dims),
                        ", want one number"));
    return false;
  }
  const absl::StatusOr<std::vector<float>> number = ReadFloats(*constant);
  if (!number.ok()) {
    Refuse(number.status().message());
    return false;
  }
  value = DecimalOf((*number)[0]);
  return true;
}

const v1::AttributeProto* NodeConversion::FindAttribute(absl::string_view name) const {
  for (const v1::AttributeProto& attribute : node_.attribute()) {
    if (attribute.name() == name) return &attribute;
  }
  return nullptr;
}

const v1::AttributeProto* NodeConversion::Ask(absl::string_view name, v1::AttributeType type) {
  asked_.emplace(name);
  const v1::AttributeProto* const attribute = FindAttribute(name);
  if (attribute == nullptr || attribute->type() == type) return attribute;
  Refuse(absl::StrCat("attribute '", name, "' has the type ", static_cast<int>(attribute->type()),
                      ", want ", static_cast<int>(type)));
  return nullptr;
}

int64_t NodeConversion::Int(absl::string_view name, int64_t otherwise) {
  const v1::AttributeProto* const attribute = Ask(name, v1::ATTRIBUTE_TYPE_INT);
  return attribute == nullptr ? otherwise : attribute->i();
}

double NodeConversion::Float(absl::string_view name, double otherwise) {
  const v1::AttributeProto* const attribute = Ask(name, v1::ATTRIBUTE_TYPE_FLOAT);
  return attribute == nullptr ? otherwise : DecimalOf(attribute->f());
}

std::string NodeConversion::Text(absl::string_view name, absl::string_view otherwise) {
  const v1::AttributeProto* const attribute = Ask(name, v1::ATTRIBUTE_TYPE_STRING);
  if (attribute == nullptr) return std::string(otherwise);
  if (attribute->s().size() > kMostTextBytes || Shown(attribute->s()) != attribute->s()) {
    Refuse(absl::StrCat("attribute '", name, "' is '", Shown(attribute->s()), "', want at most ",
                        kMostTextBytes, " printable bytes"));
    return std::string(otherwise);
  }
  return attribute->s();
}

std::vector<int64_t> NodeConversion::Ints(absl::string_view name) {
  const v1::AttributeProto* const attribute = Ask(name, v1::ATTRIBUTE_TYPE_INTS);
  if (attribute == nullptr) return {};
  if (attribute->ints_size() > kMostListed) {
    Refuse(absl::StrCat("attribute '", name, "' has ", attribute->ints_size(),
                        " numbers, want at most ", kMostListed));
    return {};
  }
  return {attribute->ints().begin(), attribute->ints().end()};
}

const v1::TensorProto* NodeConversion::Tensor(absl::string_view name) {
  const v1::AttributeProto* const attribute = Ask(name, v1::ATTRIBUTE_TYPE_TENSOR);
  return attribute == nullptr ? nullptr : &attribute->t();
}

std::vector<float> NodeConversion::Floats(absl::string_view name) {
  const v1::AttributeProto* const attribute = Ask(name, v1::ATTRIBUTE_TYPE_FLOATS);
  if (attribute == nullptr) return {};
  return {attribute->floats().begin(), attribute->floats().end()};
}

void NodeConversion::CopyAttributes(Operator& op) {
  const OpDef* const def = FindOp(op.name);
  if (def == nullptr) return;  // Append refuses it
  for (const AttributeDef& attribute : def->attributes) {
    const std::string& name = attribute.name;
    if (!HasAttribute(name)) continue;
    if (std::holds_alternative<int64_t>(attribute.value)) op.attributes.Set(name, Int(name, 0));
    if (std::holds_alternative<double>(attribute.value)) op.attributes.Set(name, Float(name, 0));
    if (std::holds_alternative<std::string>(attribute.value)) {
      op.attributes.Set(name, Text(name, ""));
    }
    if (std::holds_alternative<std::vector<int64_t>>(attribute.value)) {
      op.attributes.Set(name, Ints(name));
    }
  }
}

int64_t NodeConversion::SampleAxis(int64_t axis, int64_t rank) {
  const int64_t from_front = axis < 0 ? axis + rank : axis;
  if (axis < -rank || axis >= rank) {
    Refuse(absl::StrCat("axis ", axis, ", want -", rank, " to ", rank - 1));
    return 1;
  }
  if (from_front == 0) {
    Refuse(absl::StrCat("axis ", axis, " is the batch, whose samples cannot be mixed"));
    return 1;
  }
  return from_front;
}

bool NodeConversion::CountWeights(int64_t elements) {
  const int64_t most = importer_.limits_.max_weight_elements;
  if (elements > most - importer_.weight_elements_) {
    Refuse(absl::StrCat("all weights up to here have more than ", most, " elements"));
    return false;
  }
  importer_.weight_elements_ += elements;
  return true;
}

bool NodeConversion::CountFolded(int64_t elements) {
  const int64_t most = importer_.limits_.max_folded_elements;
  if (elements > most - importer_.folded_elements_) {
    Refuse(absl::StrCat("more than ", most, " elements up to here are computed from constants"));
    return false;
  }
  importer_.folded_elements_ += elements;
  return true;
}

std::vector<float> NodeConversion::TakeFloats(const Constant& constant) {
  if (!ok() || !CountWeights(constant.elements)) return {};
  absl::StatusOr<std::vector<float>> floats = ReadFloats(constant);
  if (!floats.ok()) {
    Refuse(floats.status().message());
    return {};
  }
  ++importer_.weight_readers_[constant.source];
  return *std::move(floats);
}

std::string NodeConversion::ModuleOfInput(int input, absl::string_view suffix) const {
  if (!IsConstant(input)) return "";
  std::string module = ModuleOf(node_.input(input), suffix);
  if (!module.empty()) return module;
  const Binding& binding = importer_.bindings_.find(node_.input(input))->second;
  return ModuleOf(importer_.constants_[binding.constant].source, suffix);
}

NodeWeight NodeConversion::Weight(const std::string& suffix, const Constant& constant) {
  return {suffix, constant.dims, TakeFloats(constant)};
}

bool NodeConversion::Infer(ImportedNode& node) {
  const OpDef* const def = FindOp(node.op.name);
  if (def == nullptr) {
    Refuse(absl::StrCat("operator ", Shown(node_.op_type()), " of operator set ", operator_set(),
                        " is not supported"));
    return false;
  }
  const int inputs = static_cast<int>(node.inputs.size());
  if (inputs < def->min_inputs || inputs > def->max_inputs) {
    Refuse(absl::StrCat(inputs, " inputs, want ", def->min_inputs, " to ", def->max_inputs));
    return false;
  }
  const absl::Status attributes = node.op.attributes.Normalize(def->attributes);
  if (!attributes.ok()) Refuse(attributes.message());
  if (!ok()) return false;
  std::vector<ValueType> types;
  for (const ValueId input : node.inputs) types.push_back(importer_.values_[input]);
  absl::StatusOr<Inference> inferred = def->infer(types, node.op.attributes);
  absl::Status status = inferred.status();
  if (status.ok()) status = ElementCount(inferred->output.shape, "output").status();
  if (!status.ok()) {
    Refuse(status.message());
    return false;
  }
  node.inferred = *std::move(inferred);
  const std::vector<OpParameter>& parameters = node.inferred.parameters;
  if (parameters.size() != node.weights.size()) {
    Refuse(absl::StrCat(node.weights.size(), " constant inputs, want ", parameters.size()));
    return false;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    CAPSTAN_CHECK(parameters[i].suffix == node.weights[i].suffix);
    if (parameters[i].shape != node.weights[i].shape) {
      Refuse(absl::StrCat(parameters[i].suffix, ": shape ", ShapeToString(node.weights[i].shape),
                          ", want ", ShapeToString(parameters[i].shape)));
      return false;
    }
  }
  return true;
}

ValueId NodeConversion::Append(Operator op, std::vector<ValueId> inputs,
                               std::vector<NodeWeight> weights, std::string module) {
  return AppendAs(std::move(op), std::move(inputs), std::move(weights), std::move(module),
                  node_.name(), output_name());
}

ValueId NodeConversion::AppendAs(Operator op, std::vector<ValueId> inputs,
                                 std::vector<NodeWeight> weights, std::string module,
                                 std::string file_name, std::string output) {
  if (!ok()) return -1;
  ImportedNode node;
  node.op = std::move(op);
  node.inputs = std::move(inputs);
  node.weights = std::move(weights);
  node.module = std::move(module);
  node.file_name = std::move(file_name);
  node.output = std::move(output);
  if (!Infer(node)) return -1;
  if (importer_.nodes_.size() >= static_cast<size_t>(kMaxGraphNodes)) {
    Refuse(absl::StrCat("the graph has more than ", kMaxGraphNodes, " nodes up to here"));
    return -1;
  }
  importer_.values_.push_back(node.inferred.output);
  importer_.nodes_.push_back(std::move(node));
  return static_cast<ValueId>(importer_.nodes_.size());
}

ImportedNode* NodeConversion::OnlyReaderOf(int input) {
  const Binding* const binding = Find(input);
  if (binding == nullptr || binding->value < 1) return nullptr;
  ImportedNode& node = importer_.nodes_[binding->value - 1];
  // By another name, as Identity gives one, the value may have readers that are not counted here.
  if (node.output != node_.input(input)) return nullptr;
  return importer_.readers_[node.output] == 1 ? &node : nullptr;
}

void NodeConversion::Absorb(ImportedNode& node) {
  if (!ok() || !Infer(node)) return;
  const ValueId value = static_cast<ValueId>(&node - importer_.nodes_.data()) + 1;
  importer_.values_[value] = node.inferred.output;
  Output(value);
  if (ok()) node.output = node_.output(0);
}

void NodeConversion::OutputAt(int output, ValueId value) {
  if (!ok()) return;
  if (node_.output_size() <= output || node_.output(output).empty()) {
    return Refuse("makes no output");
  }
  importer_.bindings_[node_.output(output)] = {value, -1, whole_.value_or(IsWholeValue(0))};
  has_output_ = true;
}

void NodeConversion::OutputAt(int output, Constant constant) {
  if (!ok()) return;
  if (node_.output_size() <= output || node_.output(output).empty()) {
    return Refuse("makes no output");
  }
  for (int i = 0; i < input_count(); ++i) {
    constant.shared = constant.shared || (IsConstant(i) && !IsOwnConstant(i));
  }
  importer_.bindings_[node_.output(output)] = {-1, importer_.AddConstant(std::move(constant))};
  has_output_ = true;
}

void NodeConversion::DropFinalActivation(ValueId value) {
  if (!ok()) return;
  importer_.result_.final_activation = node_.op_type();
  Output(value);
}

absl::Status NodeConversion::Finish() {
  for (const v1::AttributeProto& attribute : node_.attribute()) {
    if (asked_.contains(attribute.name())) continue;
    Refuse(absl::StrCat("attribute '", Shown(attribute.name()), "' is not supported"));
  }
  CAPSTAN_CHECK(!ok() || has_output_);
  return status_;
}

ConvertFunction FindConverter(absl::string_view op) {
  for (const absl::Span<const Converter> table :
       {ConstantConverters(), FoldedConverters(), LayerConverters(), PointwiseConverters(),
        PoolConverters(), ShapeConverters(), SliceConverters()}) {
    for (const Converter& converter : table) {
      if (op == converter.op) return converter.convert;
    }
  }
  return nullptr;
}

}  // namespace capstan::training::onnx
