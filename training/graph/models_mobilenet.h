// MobileNet as nodes of a graph. See models.h.
#ifndef CAPSTAN_TRAINING_GRAPH_MODELS_MOBILENET_H_
#define CAPSTAN_TRAINING_GRAPH_MODELS_MOBILENET_H_

#include <cstdint>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::training {

struct MobilenetOptions {
  bool large_stem = false;  // the first convolution halves the image
  int64_t num_classes = 0;
  double dropout = 0;  // in front of `classifier`; 0 means no Dropout node
};

std::vector<GraphNode> MobilenetV1Nodes(const MobilenetOptions& options);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_MOBILENET_H_
