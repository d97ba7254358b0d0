// Operators with parameters.
//
// ONNX gives parameters as inputs. Those must be constants here. A bias may also be a constant that
// is added right after the product. Arithmetic with other constants is here, too.
//
// ONNX has no dense layer over the last axis of a sequence: exporters write a MatMul and an Add. They
// become a Linear again, which needs no value between product and sum.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/onnx/importer.h"
#include "training/onnx/window_attributes.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/cast/cast.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/conv/conv.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/linear/linear.h"
#include "training/ops/mat_mul/mat_mul.h"

namespace capstan::training::onnx {
namespace {

constexpr size_t kBiasOfProduct = 1;  // the place of the bias among the parameters

std::string ModuleByWeight(const NodeConversion& node, int weight, int bias) {
  std::string module = node.ModuleOfInput(weight, ".weight");
  return module.empty() ? node.ModuleOfInput(bias, ".bias") : module;
}

void Scale(NodeConversion& node, double factor, std::vector<float>& values) {
  if (factor == 1) return;
  for (float& value : values) {
    value = static_cast<float>(value * factor);
    if (!std::isfinite(value)) return node.Refuse("a scaled weight is not finite");
  }
}

// The axis of a bias in a value of `rank` dimensions.
struct ChannelAxis {
  int64_t rank = 0;
  int64_t axis = 1;  // of [N, channels, ...]; a Linear has its features last
  int64_t channels = 0;
};

// Whether a constant has one number for each channel, or one for all, when it is broadcast to such a
// value. `dims` are those of the constant, or with ones behind them.
bool IsByChannel(const Shape& dims, const ChannelAxis& value) {
  const int64_t ahead = value.rank - static_cast<int64_t>(dims.size());
  bool fits = ahead >= 0;
  for (int64_t i = 0; fits && i < static_cast<int64_t>(dims.size()); ++i) {
    fits = dims[i] == 1 || (ahead + i == value.axis && dims[i] == value.channels);
  }
  return fits;
}

// These numbers.
std::vector<float> ByChannel(NodeConversion& node, const Constant& constant, const Shape& dims,
                             const ChannelAxis& value) {
  if (!IsByChannel(dims, value)) {
    node.Refuse(absl::StrCat("constant '", Shown(constant.source), "' of shape ",
                             ShapeToString(constant.dims), ", want one number for each of ",
                             value.channels, " channels"));
    return {};
  }
  std::vector<float> numbers = node.TakeFloats(constant);
  if (node.ok() && numbers.size() == 1) {
    if (!node.CountWeights(value.channels - 1)) return {};
    numbers.resize(value.channels, numbers[0]);
  }
  return numbers;
}

void ConvertConv(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  const Constant* const weight = node.ConstantInput(1);
  const Constant* const bias = node.Has(2) ? node.ConstantInput(2) : nullptr;
  if (!node.ok()) return;
  if (weight->dims.size() < 3) {
    return node.Refuse(absl::StrCat("weight: shape ", ShapeToString(weight->dims),
                                    ", want [out, in, height, width]"));
  }
  Operator op{Conv::kName, {}};
  op.attributes.Set("out_channels", weight->dims[0]);
  op.attributes.Set("kernel_shape",
                    std::vector<int64_t>(weight->dims.begin() + 2, weight->dims.end()));
  op.attributes.Set("group", node.Int("group", 1));
  op.attributes.Set("bias", int64_t{bias != nullptr});
  CopyWindow(node, op);
  std::vector<NodeWeight> weights = {node.Weight("weight", *weight)};
  if (bias != nullptr) weights.push_back(node.Weight("bias", *bias));
  node.Output(node.Append(std::move(op), {x}, std::move(weights), ModuleByWeight(node, 1, 2)));
}

// A matrix [in, out], or [out, in] if it is transposed in the file, as a weight [out, in].
ValueId AppendProduct(NodeConversion& node, bool transposed, double alpha, const Constant* bias,
                      double beta) {
  const ValueId x = node.GraphInput(0);
  const Constant* const matrix = node.ConstantInput(1);
  if (!node.ok()) return -1;
  if (matrix->dims.size() != 2) {
    node.Refuse(absl::StrCat("weight: shape ", ShapeToString(matrix->dims), ", want a matrix"));
    return -1;
  }
  Constant view = *matrix;
  if (!transposed) {
    std::swap(view.dims[0], view.dims[1]);
    view.transposed = !view.transposed;
  }
  std::vector<NodeWeight> weights = {node.Weight("weight", view)};
  Scale(node, alpha, weights[0].values);
  const int64_t features = view.dims[0];
  if (bias != nullptr) {
    NodeWeight of_bias = {"bias", {features}, {}};
    of_bias.values = ByChannel(node, *bias, bias->dims, {2, 1, features});
    Scale(node, beta, of_bias.values);
    weights.push_back(std::move(of_bias));
  }
  const bool sequence = node.RankOf(x) > 2;
  return node.Append(sequence ? Operator(Linear{features, bias != nullptr})
                              : Operator(Gemm{features, bias != nullptr}),
                     {x}, std::move(weights), ModuleByWeight(node, 1, 2));
}

void ConvertGemm(NodeConversion& node) {
  const double alpha = node.Float("alpha", 1);
  const double beta = node.Float("beta", 1);
  if (node.Int("transA", 0) != 0) node.Refuse("attribute 'transA' mixes the samples of a batch");
  const bool transposed = node.Int("transB", 0) != 0;
  if (node.operator_set() < 7) node.Ignore("broadcast");  // follows from the shape of the bias
  if (!node.Has(2) || node.IsConstant(2)) {
    const Constant* const bias = node.Has(2) ? node.ConstantInput(2) : nullptr;
    return node.Output(AppendProduct(node, transposed, alpha, bias, beta));
  }
  // A value that is added.
  const ValueId product = AppendProduct(node, transposed, alpha, nullptr, 1);
  ValueId added = node.GraphInput(2);
  if (!node.ok()) return;
  if (node.RankOf(added) != 2) return node.Refuse("input 2: want [N, features]");
  if (beta != 1) {
    const ValueId factor = node.AppendAs(ConstantOfShape{{1}, beta}, {}, {}, "", "", "");
    added = node.AppendAs(Mul(), {added, factor}, {}, "", "", "");
  }
  node.Output(node.AppendAs(Add(), {product, added}, {}, "", "", node.output_name()));
}

// Whether the second factor is the weight of a dense layer. A matrix that several nodes read stays
// one Parameter, as tied weights. So does a matrix [in, out] with the name of a weight, whose name
// and layout stay, because that of a layer is [out, in].
bool IsWeightOfLayer(NodeConversion& node, int input) {
  const Constant& matrix = *node.ConstantInput(input);
  return matrix.dims.size() == 2 && matrix.trained && node.IsOwnConstant(input) &&
         (matrix.transposed || ModuleOf(matrix.source, ".weight").empty());
}

void ConvertMatMul(NodeConversion& node) {
  if (node.input_count() != 2) {
    return node.Refuse(absl::StrCat(node.input_count(), " inputs, want 2"));
  }
  if (node.IsConstant(0) == node.IsConstant(1)) {
    std::vector<ValueId> inputs = node.AllGraphInputs();
    if (node.ok() && node.ShapeOf(inputs[0]).size() < 2) {
      return node.Refuse("the product of two values mixes the samples of a batch");
    }
    return node.Output(node.Append(MatMul(), std::move(inputs)));
  }
  const int at = node.IsConstant(1) ? 1 : 0;
  const ValueId x = node.GraphInput(1 - at);
  if (!node.ok()) return;
  const int64_t rank = node.RankOf(x);
  if (rank == 2 && at == 0) return node.Refuse("a constant times a value mixes the samples");
  if (rank == 2 || (at == 1 && IsWeightOfLayer(node, at))) {
    return node.Output(AppendProduct(node, /*transposed=*/false, 1, nullptr, 1));
  }
  if (node.ConstantInput(at)->dims.size() < 2) return node.Refuse("a product with a vector");
  const ValueId weight = node.Operand(at, rank, "initializer");
  node.Output(node.Append(
      MatMul(), at == 1 ? std::vector<ValueId>{x, weight} : std::vector<ValueId>{weight, x}));
}

// Shape of the constant of an Add, for broadcasting. Before operator set 7 an attribute says with
// which axis it begins.
Shape DimsFromAxis(NodeConversion& node, const Constant& constant, int64_t rank) {
  Shape dims = constant.dims;
  if (node.operator_set() >= 7) return dims;
  node.Ignore("broadcast");
  const int64_t rest = rank - static_cast<int64_t>(dims.size());
  const int64_t axis = node.Int("axis", rest);
  if (axis < 0 || axis > rest) {
    node.Refuse(absl::StrCat("attribute 'axis' is ", axis, ", want 0 to ", rest));
    return dims;
  }
  dims.resize(rank - axis, 1);
  return dims;
}

// Adds a constant to the bias of the Conv, Gemm or Linear that makes the other input, or gives it
// one. Returns false if there is no such node, or if the constant has other numbers than a bias.
bool AddToBias(NodeConversion& node, const Constant& constant, int at, const Shape& dims) {
  const ValueId x = node.GraphInput(1 - at);
  ImportedNode* const product = node.OnlyReaderOf(1 - at);
  if (product == nullptr) return false;
  const bool linear = product->op.name == Linear::kName;
  if (!linear && product->op.name != Conv::kName && product->op.name != Gemm::kName) return false;
  const Shape& shape = node.ShapeOf(x);
  const ChannelAxis value = {node.RankOf(x), linear ? node.RankOf(x) - 1 : 1,
                             linear ? shape.back() : shape[0]};
  if (!IsByChannel(dims, value)) return false;
  if (linear && !node.IsOwnConstant(at)) return false;
  const bool has_bias = product->weights.size() > kBiasOfProduct;
  // A new bias is trained, with a number of its own for each column.
  if (linear && !has_bias && (!constant.trained || constant.elements != value.channels)) {
    return false;
  }
  // One number of the network is not trained, which a new bias would be.
  if (!has_bias && !constant.trained && constant.elements == 1) return false;
  std::vector<float> numbers = ByChannel(node, constant, dims, value);
  if (!node.ok()) return true;
  if (has_bias) {
    std::vector<float>& bias = product->weights[kBiasOfProduct].values;
    for (size_t i = 0; i < bias.size(); ++i) {
      bias[i] += numbers[i];
      if (!std::isfinite(bias[i])) node.Refuse("a sum of biases is not finite");
    }
  } else {
    product->weights.push_back({"bias", {value.channels}, std::move(numbers)});
    product->op.attributes.Set("bias", int64_t{1});
  }
  if (product->module.empty()) product->module = node.ModuleOfInput(at, ".bias");
  node.Absorb(*product);
  return true;
}

// Add, Div, Mul and Sub.
void ConvertArithmetic(NodeConversion& node) {
  if (node.input_count() != 2) {
    return node.Refuse(absl::StrCat(node.input_count(), " inputs, want 2"));
  }
  if (node.AllConstant()) return FoldArithmetic(node);
  if (!node.IsConstant(0) && !node.IsConstant(1)) {
    if (node.op() != Div::kName || !node.IsWholeValue(0)) {
      return node.Output(node.Append({node.op(), {}}, node.AllGraphInputs()));
    }
    // ONNX cuts off what follows the point of a quotient of whole numbers.
    const ValueId quotient = node.AppendAs(Div(), node.AllGraphInputs(), {}, "", "", "");
    return node.Output(node.Append(Cast{"int64"}, {quotient}));
  }
  const int at = node.IsConstant(1) ? 1 : 0;
  const Constant* const constant = node.ConstantInput(at);
  const ValueId x = node.GraphInput(1 - at);
  if (!node.ok()) return;
  const Shape dims = DimsFromAxis(node, *constant, node.RankOf(x));
  if (!node.ok()) return;
  if (node.op() == Add::kName && AddToBias(node, *constant, at, dims)) return;
  if (dims != constant->dims) {
    return node.Refuse("attribute 'axis' is supported for a bias only");
  }
  const char* const init = node.op() == Add::kName || node.op() == Sub::kName ? "zeros" : "ones";
  const ValueId operand = node.Operand(at, node.RankOf(x), init);
  node.Output(node.Append({node.op(), {}}, at == 1 ? std::vector<ValueId>{x, operand}
                                                   : std::vector<ValueId>{operand, x}));
}

void ConvertBatchNormalization(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  static constexpr const char* kSuffixes[] = {"weight", "bias", "running_mean", "running_var"};
  std::vector<NodeWeight> weights;
  for (int i = 0; i < 4; ++i) {
    const Constant* const constant = node.ConstantInput(i + 1);
    if (constant == nullptr) return;
    weights.push_back(node.Weight(kSuffixes[i], *constant));
  }
  const std::vector<float>& variances = weights[BatchNormalization::kRunningVar].values;
  if (std::any_of(variances.begin(), variances.end(), [](float v) { return v < 0; })) {
    return node.Refuse("a running variance is negative");
  }
  BatchNormalization op;
  op.epsilon = node.Float("epsilon", 1e-5);
  // ONNX's momentum is the share of the old value, ours that of the new one.
  op.momentum = DecimalOf(static_cast<float>(1 - node.Float("momentum", 0.9)));
  if (node.Int("spatial", 1) != 1) node.Refuse("attribute 'spatial' is not 1");
  // Both only say whether the file is meant for training.
  node.Ignore("is_test");
  if (node.Int("training_mode", 0) != 0 && !node.for_training()) {
    return node.Refuse("attribute 'training_mode' is 1: the file is meant for training");
  }
  node.Output(node.Append(op, {x}, std::move(weights), ModuleByWeight(node, 1, 2)));
}

void ConvertLayerNormalization(NodeConversion& node) {
  const ValueId x = node.GraphInput(0);
  const Constant* const scale = node.ConstantInput(1);
  const Constant* const bias = node.Has(2) ? node.ConstantInput(2) : nullptr;
  const int64_t stated = node.Int("axis", -1);
  LayerNormalization op;
  op.epsilon = node.Float("epsilon", 1e-5);
  node.Ignore("stash_type");  // of the sums, which are at least float here
  if (!node.ok()) return;
  op.axis = node.SampleAxis(stated, node.RankOf(x));
  std::vector<NodeWeight> weights = {node.Weight("weight", *scale)};
  if (bias != nullptr) {
    weights.push_back(node.Weight("bias", *bias));
  } else if (node.CountWeights(scale->elements)) {
    weights.push_back(
        {"bias", scale->dims, std::vector<float>(static_cast<size_t>(scale->elements), 0.0f)});
  }
  node.Output(node.Append(op, {x}, std::move(weights), ModuleByWeight(node, 1, 2)));
}

constexpr Converter kLayers[] = {
    {"Add", ConvertArithmetic}, {"BatchNormalization", ConvertBatchNormalization},
    {"Conv", ConvertConv},      {"Div", ConvertArithmetic},
    {"Gemm", ConvertGemm},      {"LayerNormalization", ConvertLayerNormalization},
    {"MatMul", ConvertMatMul},  {"Mul", ConvertArithmetic},
    {"Sub", ConvertArithmetic},
};

}  // namespace

absl::Span<const Converter> LayerConverters() { return kLayers; }

}  // namespace capstan::training::onnx
