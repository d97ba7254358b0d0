#include "gpu_worker/engine/cuda/chain.h"

#include "training/graph/models.h"
#include "training/ops/conv/conv.h"
#include "training/ops/pool/pool.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine::cuda {
namespace {

bool IsPlain(const training::Graph& graph, int index) {
  const training::GraphNode& node = graph.nodes()[index];
  if (node.inputs.size() != 1 || node.inputs[0] != index || graph.readers(index).size() != 1) {
    return false;
  }
  if (!training::IsChainOperator(node.op.name)) return false;
  const auto conv = training::As<training::Conv>(node.op);
  if (conv.has_value() && conv->group != 1) return false;
  const auto average = training::As<training::AveragePool>(node.op);
  if (average.has_value() && average->count_include_pad) return false;
  const auto loss = training::As<training::SoftmaxCrossEntropyLoss>(node.op);
  return !loss.has_value() || loss->label_smoothing == 0;
}

}  // namespace

bool IsPlainChain(const training::Graph& graph) {
  for (int i = 0; i < graph.node_count(); ++i) {
    if (!IsPlain(graph, i)) return false;
  }
  return true;
}

}  // namespace capstan::engine::cuda
