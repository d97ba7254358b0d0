// Runs of nodes that a device carries out as one. The values between them are never stored.
//
// A device offers patterns. The nodes of a run follow each other in the graph. Each node except the
// first reads the output of the one before it, once, and no other node reads that output.
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
  // Whether the device's kernel accepts the run that begins at node `first`, i.e. its operators and
  // edges fit.
  bool (*fits)(const training::Graph& graph, int first) = nullptr;
  // The values of the run that backward reads: the inputs from outside, and the last output.
  training::BackwardReads reads;
  // The tensors that forward leaves for backward. They replace those of the single operators.
  std::vector<training::SavedTensor> (*saved)(const training::Graph& graph, int first) = nullptr;
  // An input from outside that backward does not read. The last output may take its place, and the
  // gradient by it may take the place of the gradient by the output. -1: none.
  int in_place_input = -1;
};

// Whether a device's kernel of `node` reads input number `input`, the value of a Parameter, from the
// weights, and adds up the gradient by it. Then the value has no place, and the Parameter no step.
// Asked only if no other node reads the value.
using ReadsParameter = bool (*)(const training::Graph& graph, int node, int input);

struct FusedRun {
  int first = 0, last = 0;  // nodes
  int pattern = 0;          // index
};

// In rising order. The first pattern that fits at a node is used, and the next run begins after it.
std::vector<FusedRun> FindFusedRuns(const training::Graph& graph,
                                    const std::vector<FusionPattern>& patterns);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLAN_FUSE_H_
