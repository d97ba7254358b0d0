#include "gpu_worker/engine/plan/fuse.h"

#include <algorithm>

namespace capstan::engine {
namespace {

using training::Graph;

bool OpsAndEdgesFit(const Graph& graph, int first, const std::vector<std::string>& ops) {
  if (first + static_cast<int>(ops.size()) > graph.node_count()) return false;
  for (size_t k = 0; k < ops.size(); ++k) {
    const int node = first + static_cast<int>(k);
    if (graph.def(node).name != ops[k]) return false;
    if (k == 0) continue;
    const int made = graph.output_of(node - 1);
    const std::vector<int>& inputs = graph.nodes()[node].inputs;
    if (graph.readers(made).size() != 1 ||
        std::find(inputs.begin(), inputs.end(), made) == inputs.end()) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::vector<FusedRun> FindFusedRuns(const Graph& graph,
                                    const std::vector<FusionPattern>& patterns) {
  std::vector<FusedRun> runs;
  for (int node = 0; node < graph.node_count(); ++node) {
    for (size_t p = 0; p < patterns.size(); ++p) {
      if (!OpsAndEdgesFit(graph, node, patterns[p].ops) || !patterns[p].fits(graph, node)) continue;
      const int last = node + static_cast<int>(patterns[p].ops.size()) - 1;
      runs.push_back({node, last, static_cast<int>(p)});
      node = last;
      break;
    }
  }
  return runs;
}

}  // namespace capstan::engine
