// Residual networks as nodes of a graph. See models.h.
#ifndef CAPSTAN_TRAINING_GRAPH_MODELS_RESNET_H_
#define CAPSTAN_TRAINING_GRAPH_MODELS_RESNET_H_

#include <cstdint>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::training {

struct ResnetOptions {
  std::vector<int> blocks;      // per stage; the inner channels of the stages are 64, 128, ...
  bool bottleneck = false;      // 1x1, 3x3, 1x1 with four times the channels, else 3x3, 3x3
  bool pre_activation = false;  // version 2; not with bottlenecks
  bool large_stem = false;      // 7x7 with stride 2 and MaxPool, else 3x3 with stride 1
  int64_t num_classes = 0;
  double dropout = 0;  // in front of `fc`; 0 means no Dropout node
};

std::vector<GraphNode> ResnetNodes(const ResnetOptions& options);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_RESNET_H_
