// Constants and names: nodes whose result is known when the file is read, or is their input.
#include <utility>

#include "training/onnx/importer.h"
#include "training/ops/cast/cast.h"

namespace capstan::training::onnx {
namespace {

namespace v1 = capstan::onnx::v1;

void OutputTensor(NodeConversion& node, const v1::TensorProto& tensor) {
  absl::StatusOr<Constant> constant = MakeConstant(tensor, node.output_name(), node.limits());
  if (!constant.ok()) return node.Refuse(constant.status().message());
  node.Output(*std::move(constant));
}

void ConvertConstant(NodeConversion& node) {
  if (node.HasAttribute("value")) {
    const v1::TensorProto* const tensor = node.Tensor("value");
    if (tensor != nullptr) OutputTensor(node, *tensor);
    return;
  }
  v1::TensorProto& made = node.MakeTensor();
  if (node.HasAttribute("value_float")) {
    made.set_data_type(v1::DATA_TYPE_FLOAT);
    made.add_float_data(static_cast<float>(node.Float("value_float", 0)));
  } else if (node.HasAttribute("value_floats")) {
    made.set_data_type(v1::DATA_TYPE_FLOAT);
    for (const float value : node.Floats("value_floats")) made.add_float_data(value);
    made.add_dims(made.float_data_size());
  } else if (node.HasAttribute("value_int")) {
    made.set_data_type(v1::DATA_TYPE_INT64);
    made.add_int64_data(node.Int("value_int", 0));
  } else if (node.HasAttribute("value_ints")) {
    made.set_data_type(v1::DATA_TYPE_INT64);
    for (const int64_t value : node.Ints("value_ints")) made.add_int64_data(value);
    made.add_dims(made.int64_data_size());
  } else {
    return node.Refuse("no value, or one that is not of numbers");
  }
  if (node.ok()) OutputTensor(node, made);
}

void ConvertConstantOfShape(NodeConversion& node) {
  Constant constant;
  constant.dims = node.Integers(0);
  const v1::TensorProto* const value = node.Tensor("value");
  if (!node.ok()) return;
  const absl::StatusOr<int64_t> elements = CheckedElements(constant.dims, node.limits(), "output");
  if (!elements.ok()) return node.Refuse(elements.status().message());
  if (value != nullptr) {
    const absl::StatusOr<Constant> filling =
        MakeConstant(*value, node.output_name(), node.limits());
    if (!filling.ok()) return node.Refuse(filling.status().message());
    if (filling->elements != 1) return node.Refuse("attribute 'value' is not a single number");
  }
  constant.source = node.output_name();
  constant.elements = *elements;
  constant.tensor = value;
  constant.fill = value != nullptr;
  node.Output(std::move(constant));
}

void ConvertIdentity(NodeConversion& node) {
  if (!node.IsConstant(0)) return node.Output(node.GraphInput(0));
  const Constant* const constant = node.ConstantInput(0);
  if (constant != nullptr) node.Output(*constant);
}

// Everything is computed as float here. Of whole numbers, a value has those of the graph's input.
void ConvertCast(NodeConversion& node) {
  const int64_t to = node.Int("to", 0);
  node.Ignore("saturate");    // of formats of 8 bits
  node.Ignore("round_mode");  // of formats of 8 bits
  const bool to_whole = to == v1::DATA_TYPE_INT64 || to == v1::DATA_TYPE_INT32;
  if (to_whole && node.IsConstant(0)) return FoldCast(node, true);
  node.SetWhole(to_whole);
  if (to_whole) return node.Output(node.Append(Cast{"int64"}, {node.GraphInput(0)}));
  if (to != v1::DATA_TYPE_FLOAT && to != v1::DATA_TYPE_DOUBLE && to != v1::DATA_TYPE_FLOAT16 &&
      to != v1::DATA_TYPE_BFLOAT16) {
    return node.Refuse(absl::StrCat("attribute 'to' is ", to, ", want a type of floating point"));
  }
  if (node.IsConstant(0) && IsWhole(*node.ConstantInput(0))) return FoldCast(node, false);
  ConvertIdentity(node);
}

constexpr Converter kConstants[] = {
    {"Cast", ConvertCast},
    {"Constant", ConvertConstant},
    {"ConstantOfShape", ConvertConstantOfShape},
    {"Identity", ConvertIdentity},
};

}  // namespace

absl::Span<const Converter> ConstantConverters() { return kConstants; }

}  // namespace capstan::training::onnx
