#include "gpu_worker/engine/device/chain.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "training/graph/models.h"
#include "training/ops/conv/conv.h"
#include "training/ops/pool/pool.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine {
namespace {

// What a node asks for that is not carried out; empty: nothing.
std::string NotCarriedOut(const training::Graph& graph, int index) {
  const training::GraphNode& node = graph.nodes()[index];
  if (node.inputs.size() != 1 || node.inputs[0] != index || graph.readers(index).size() != 1) {
    return "a graph that is no chain";
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

}  // namespace

absl::Status CheckChain(const training::Graph& graph, absl::string_view who) {
  for (int i = 0; i < graph.node_count(); ++i) {
    const std::string what = NotCarriedOut(graph, i);
    if (what.empty()) continue;
    const training::GraphNode& node = graph.nodes()[i];
    return absl::UnimplementedError(absl::StrCat("node ", node.name, " (", node.op.name,
                                                 "): ", what, " is not carried out by ", who));
  }
  return absl::OkStatus();
}

}  // namespace capstan::engine
