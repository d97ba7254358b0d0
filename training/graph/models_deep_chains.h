// AlexNet and VGG-16 as nodes of a graph. See models.h.
#ifndef CAPSTAN_TRAINING_GRAPH_MODELS_DEEP_CHAINS_H_
#define CAPSTAN_TRAINING_GRAPH_MODELS_DEEP_CHAINS_H_

#include <cstdint>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::training {

struct DeepChainOptions {
  Shape input;               // of an image; other shapes give nodes that do not fit
  bool large_image = false;  // the layers of the papers, else those of small images
  int64_t num_classes = 0;
  double dropout = 0;  // in front of two dense layers; 0 means no Dropout nodes
};

std::vector<GraphNode> AlexnetNodes(const DeepChainOptions& options);
std::vector<GraphNode> Vgg16Nodes(const DeepChainOptions& options);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_DEEP_CHAINS_H_
