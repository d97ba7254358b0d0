#include "gpu_worker/engine/cuda/chain.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "training/graph/models.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine::cuda {
namespace {

using training::Graph;
using training::Shape;

// A request of a node that is not carried out; empty if there is none.
std::string NotCarriedOut(const Graph& graph, int index) {
  const training::GraphNode& node = graph.nodes()[index];
  if (node.inputs.size() != 1 || node.inputs[0] != index || graph.readers(index).size() != 1) {
    return "a graph that is not a chain";
  }
  if (!training::IsChainOperator(node.op.name)) return "this operator";
  const auto conv = training::As<training::Conv>(node.op);
  if (conv.has_value() && conv->group != 1) {
    return absl::StrCat("group ", conv->group);
  }
  const auto average = training::As<training::AveragePool>(node.op);
  if (average.has_value() && average->count_include_pad) return "count_include_pad 1";
  const auto loss = training::As<training::SoftmaxCrossEntropyLoss>(node.op);
  if (loss.has_value() && loss->label_smoothing != 0) {
    return absl::StrCat("label_smoothing ", loss->label_smoothing);
  }
  return "";
}

// [features] becomes features x 1 x 1.
void SetShape(const Shape& shape, int64_t (&out)[3]) {
  for (size_t i = 0; i < 3; ++i) out[i] = i < shape.size() ? shape[i] : 1;
}

void SetWindow(const training::Window& window, ChainOp& op) {
  std::copy(window.kernel_shape.begin(), window.kernel_shape.end(), op.kernel);
  std::copy(window.strides.begin(), window.strides.end(), op.strides);
  std::copy(window.pads.begin(), window.pads.end(), op.pads);
  std::copy(window.dilations.begin(), window.dilations.end(), op.dilations);
}

void SetOperator(const training::Operator& from, ChainOp& op) {
  if (const auto conv = training::As<training::Conv>(from)) {
    op.kind = ChainOpKind::kConv;
    SetWindow(conv->window, op);
  } else if (const auto max_pool = training::As<training::MaxPool>(from)) {
    op.kind = ChainOpKind::kMaxPool;
    SetWindow(max_pool->window, op);
  } else if (const auto average_pool = training::As<training::AveragePool>(from)) {
    op.kind = ChainOpKind::kAveragePool;
    SetWindow(average_pool->window, op);
  } else if (from.name == training::Gemm::kName) {
    op.kind = ChainOpKind::kGemm;
  } else if (from.name == training::Relu::kName) {
    op.kind = ChainOpKind::kRelu;
  } else if (from.name == training::Flatten::kName) {
    op.kind = ChainOpKind::kFlatten;
  }
}

}  // namespace

absl::Status CheckChain(const Graph& graph, absl::string_view who) {
  for (int i = 0; i < graph.node_count(); ++i) {
    const std::string what = NotCarriedOut(graph, i);
    if (what.empty()) continue;
    const training::GraphNode& node = graph.nodes()[i];
    return absl::UnimplementedError(absl::StrCat("node ", node.name, " (", node.op.name,
                                                 "): ", what, " is not carried out by ", who));
  }
  return absl::OkStatus();
}

std::vector<ChainOp> ChainOf(const ReceivedGraph& received) {
  const Graph& graph = received.graph;
  const auto offset_of = [&received](int parameter) {
    return parameter < 0 ? -1 : received.offsets[parameter];
  };
  std::vector<ChainOp> ops(graph.node_count());
  for (int i = 0; i < graph.node_count(); ++i) {
    const training::GraphNode& node = graph.nodes()[i];
    ChainOp& op = ops[i];
    op.name = node.name;
    op.input_gradient = graph.needs_gradient(i);
    SetShape(graph.value_shape(i), op.x);
    SetShape(graph.value_shape(i + 1), op.y);
    SetOperator(node.op, op);
    op.weight_offset = offset_of(graph.parameter_of(i, "weight"));
    op.bias_offset = offset_of(graph.parameter_of(i, "bias"));
  }
  return ops;
}

}  // namespace capstan::engine::cuda
