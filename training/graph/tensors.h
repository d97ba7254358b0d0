// The parameters of a graph as the tensors of a FlatLayout.
#ifndef CAPSTAN_TRAINING_GRAPH_TENSORS_H_
#define CAPSTAN_TRAINING_GRAPH_TENSORS_H_

#include <vector>

#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"

namespace capstan::training {

// In forward order, for FlatLayout::Create.
std::vector<TensorSpec> TensorSpecs(const Graph& graph);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_TENSORS_H_
