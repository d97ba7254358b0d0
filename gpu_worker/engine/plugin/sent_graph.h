// Both ends of a graph's transfer over the ABI: the worker sends it, and a plug-in builds it again.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_SENT_GRAPH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_SENT_GRAPH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/plugin/abi.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"

namespace capstan::engine {

// A graph in the form of a compile request. Borrows names and texts from the graph, which must
// outlive it.
class SentGraph {
 public:
  // InvalidArgument: `layout` does not hold exactly the parameters of `graph`.
  static absl::StatusOr<SentGraph> Of(const training::Graph& graph,
                                      const training::FlatLayout& layout);
  SentGraph(SentGraph&&) = default;
  SentGraph& operator=(SentGraph&&) = default;

  // Sets the fields that describe the graph. The request borrows them from this object.
  void Describe(capstan_compile_request& request) const;

 private:
  SentGraph() = default;

  training::Shape input_shape_;
  std::vector<std::vector<int32_t>> inputs_;
  std::vector<std::vector<capstan_attribute>> attributes_;
  std::vector<capstan_node> nodes_;
  std::vector<int64_t> offsets_;
  int64_t total_floats_ = 0;
};

struct ReceivedGraph {
  training::Graph graph;
  std::vector<int64_t> offsets;  // in the flat vector, in the order of graph.parameters()
};

// InvalidArgument: not a graph (with the reason of training::Graph::Build), or offsets whose number
// is wrong or that exceed the flat vector.
absl::StatusOr<ReceivedGraph> ReceiveGraph(const capstan_compile_request& request);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_SENT_GRAPH_H_
