// The parameters of a graph as the tensors of a FlatLayout.
#ifndef CAPSTAN_TRAINING_GRAPH_TENSORS_H_
#define CAPSTAN_TRAINING_GRAPH_TENSORS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"

namespace capstan::training {

// In forward order, for FlatLayout::Create.
std::vector<TensorSpec> TensorSpecs(const Graph& graph);

// Where each of graph.parameters() begins in the flat vector. InvalidArgument: the layout does not
// hold exactly these tensors.
absl::StatusOr<std::vector<int64_t>> ParameterOffsets(const Graph& graph, const FlatLayout& layout);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_TENSORS_H_
