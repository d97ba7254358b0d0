// Runs of nodes that a device carries out as one: what lies between them is never stored.
//
// A device offers patterns. The nodes of a run follow each other in the graph, each but the first reads what
// the one before it made, once, and nobody else reads that.
//
// Threads: stateless.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLAN_FUSE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLAN_FUSE_H_

#include <string>
#include <vector>

#include "training/graph/graph.h"

namespace capstan::engine {

struct FusionPattern {
  std::vector<std::string> ops;  // two or more, by name
  // Whether the device's kernel takes the run that begins at node `first`: its operators and edges fit.
  bool (*fits)(const training::Graph& graph, int first) = nullptr;
  // Which values of the run backward reads: the inputs from outside, and the last output.
  training::BackwardReads reads;
  // What forward leaves for backward; it stands for what the single operators save.
  std::vector<training::SavedTensor> (*saved)(const training::Graph& graph, int first) = nullptr;
  // An input from outside that backward does not read: the last output may take its place, and the gradient by
  // it that of the gradient by the output. -1: none.
  int in_place_input = -1;
};

struct FusedRun {
  int first = 0, last = 0;  // nodes
  int pattern = 0;          // index
};

// In rising order; of patterns that fit at a node the first is taken, and the next run begins behind it.
std::vector<FusedRun> FindFusedRuns(const training::Graph& graph,
                                    const std::vector<FusionPattern>& patterns);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLAN_FUSE_H_
