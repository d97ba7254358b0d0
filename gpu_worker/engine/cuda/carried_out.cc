#include "gpu_worker/engine/cuda/carried_out.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "training/ops/conv/conv.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/linear/linear.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"

namespace capstan::engine::cuda {
namespace {

using training::Graph;

// By the name of the operator.
const std::map<std::string, CardForm, std::less<>>& Forms() {
  using enum CardForm;
  static const auto& forms = *new std::map<std::string, CardForm, std::less<>>{
      {"Add", kStrides},
      {"AveragePool", kLibrary},
      {"BatchNormalization", kStrides},
      {"Cast", kElements},
      {"Clip", kElements},
      {"Concat", kStrides},
      {"ConstantOfShape", kCanonical},
      {"Conv", kLibrary},
      {"Div", kStrides},
      {"Dropout", kElements},
      {"Flatten", kView},
      {"Gather", kCanonical},
      {"Gelu", kElements},
      {"Gemm", kLibrary},
      {"GlobalAveragePool", kLibrary},
      {"GlobalMaxPool", kLibrary},
      {"Identity", kView},
      {"LRN", kStrides},
      {"LayerNormalization", kCanonical},
      {"LeakyRelu", kElements},
      {"Linear", kLibrary},
      {"LogSoftmax", kCanonical},
      {"MatMul", kStrides},
      {"MaxPool", kLibrary},
      {"MeanSquaredErrorLoss", kLibrary},
      {"Mul", kStrides},
      {"Pad", kStrides},
      {"Parameter", kCanonical},
      {"ReduceMean", kStrides},
      {"ReduceSum", kStrides},
      {"Relu", kElements},
      {"Reshape", kView},
      {"SequenceCrossEntropyLoss", kLibrary},
      {"Sigmoid", kElements},
      {"Slice", kStrides},
      {"Softmax", kCanonical},
      {"SoftmaxCrossEntropyLoss", kLibrary},
      {"Squeeze", kView},
      {"Sub", kStrides},
      {"Sum", kStrides},
      {"Tanh", kElements},
      {"Transpose", kStrides},
      {"Trilu", kCanonical},
      {"Unsqueeze", kView},
  };
  return forms;
}

// The input that `node` reads as tokens; -1: it has none.
int TokenInput(const Graph& graph, int node) {
  const std::string& name = graph.def(node).name;
  return name == training::Gather::kName || name == training::SequenceCrossEntropyLoss::kName ? 1
                                                                                              : -1;
}

// The value whose numbers `value` has in another shape.
training::ValueId SourceOf(const Graph& graph, training::ValueId value) {
  while (value > 0 && graph.def(value - 1).in_place == training::InPlace::kView) {
    value = graph.nodes()[value - 1].inputs[0];
  }
  return value;
}

// What a card does not have of a node; empty if it has all of it.
std::string NotCarriedOut(const Graph& graph, int node, int32_t precision) {
  if (FindCardForm(graph.def(node).name) == nullptr) return "this operator";
  const bool half = precision == CAPSTAN_PRECISION_BF16 || precision == CAPSTAN_PRECISION_FP16;
  const int tokens = TokenInput(graph, node);
  if (!half || tokens < 0) return "";
  const training::ValueId source = SourceOf(graph, graph.nodes()[node].inputs[tokens]);
  // Other tokens would be rounded to 16 bits on their way.
  return source == 0 && IsOnlyTokens(graph, source)
             ? ""
             : "a token that is not the network's input, in 16 bits,";
}

bool IsReluOfPool(const Graph& graph, int relu) {
  if (relu + 1 >= graph.node_count() || graph.def(relu).name != training::Relu::kName) return false;
  const std::string& next = graph.def(relu + 1).name;
  return (next == training::MaxPool::kName || next == training::AveragePool::kName) &&
         graph.nodes()[relu + 1].inputs[0] == graph.output_of(relu) &&
         graph.readers(graph.output_of(relu)).size() == 1;
}

// A Relu in front of a pooling becomes part of that.
bool TakesRelu(const Graph& graph, int first) { return !IsReluOfPool(graph, first + 1); }
bool Fits(const Graph&, int) { return true; }
// A sum of two values of one shape.
bool AddsEqualShapes(const Graph& graph, int first) {
  const std::vector<int>& inputs = graph.nodes()[first + 1].inputs;
  return graph.value_shape(inputs[0]) == graph.value_shape(inputs[1]) &&
         !IsReluOfPool(graph, first + 2);
}
std::vector<training::SavedTensor> SavesNothing(const Graph&, int) { return {}; }

}  // namespace

const CardForm* FindCardForm(absl::string_view op) {
  const auto found = Forms().find(op);
  return found == Forms().end() ? nullptr : &found->second;
}

bool IsOnlyTokens(const Graph& graph, training::ValueId value) {
  const std::vector<int>& readers = graph.readers(value);
  return std::all_of(readers.begin(), readers.end(), [&](int node) {
    if (graph.def(node).in_place == training::InPlace::kView) {
      return IsOnlyTokens(graph, graph.output_of(node));
    }
    const std::vector<int>& inputs = graph.nodes()[node].inputs;
    const int tokens = TokenInput(graph, node);
    for (int k = 0; k < static_cast<int>(inputs.size()); ++k) {
      if (inputs[k] == value && k != tokens) return false;
    }
    return true;
  });
}

absl::Status CheckCarriedOut(const Graph& graph, int32_t precision, absl::string_view who) {
  for (int i = 0; i < graph.node_count(); ++i) {
    const std::string what = NotCarriedOut(graph, i, precision);
    if (what.empty()) continue;
    const training::GraphNode& node = graph.nodes()[i];
    return absl::UnimplementedError(absl::StrCat("node ", node.name, " (", node.op.name,
                                                 "): ", what, " is not carried out by ", who));
  }
  return absl::OkStatus();
}

const std::vector<FusionPattern>& CardPatterns() {
  const auto pattern = [](const char* first, const char* second, bool y,
                          bool (*fits)(const Graph&, int)) {
    return FusionPattern{{first, second}, fits, {/*x=*/true, y}, SavesNothing, -1};
  };
  const FusionPattern residual = {
      {"BatchNormalization", "Add", "Relu"}, AddsEqualShapes, {true, true}, SavesNothing, -1};
  static const std::vector<FusionPattern>& patterns = *new std::vector<FusionPattern>{
      residual,
      pattern("BatchNormalization", "Relu", /*y=*/true, TakesRelu),
      pattern("Conv", "Relu", /*y=*/true, TakesRelu),
      pattern("Gemm", "Relu", /*y=*/true, TakesRelu),
      pattern("Linear", "Relu", /*y=*/true, TakesRelu),
      pattern("Relu", "MaxPool", /*y=*/false, Fits),
      pattern("Relu", "AveragePool", /*y=*/false, Fits),
  };
  return patterns;
}

bool CardReadsParameter(const Graph& graph, int node, int input) {
  return input == 0 && graph.def(node).name == training::Gather::kName;
}

}  // namespace capstan::engine::cuda
