// From a graph to what a device runs: the order of the backward pass, which gradient is stored and which is
// added, and which tensors share a place. Device-neutral: knows no kernel and no layout.
//
// A value with several readers gets its gradient from all of them: backward runs the nodes in falling
// order, so the last reader stores and the others add (fixed bits).
//
// A step is a node, or a run of nodes that one kernel computes (fuse.h): values within it have no place.
// Time: forward of step i is i, its backward 2 * steps - 1 - i.
//
// Threads: a Program is immutable after MakeProgram.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLAN_PROGRAM_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLAN_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/engine/plan/fuse.h"
#include "training/graph/graph.h"

namespace capstan::engine {

// A tensor's place in memory, needed from time `first` to time `last`, both included.
struct PlannedBuffer {
  int64_t sample_elements = 0;  // for each sample
  int64_t fixed_elements = 0;   // once
  int first = 0, last = 0;
};

// What backward of a step does with the gradient by one of its inputs.
struct InputGradient {
  bool wanted = false;
  bool add = false;  // to what later readers have stored
};

struct ProgramStep {
  int first = 0, last = 0;               // nodes
  int pattern = -1;                      // of a run of several nodes
  std::vector<int> inputs;               // values from outside, node by node
  int output = 0;                        // of the last node
  bool backward = false;                 // some parameter acts on the output
  std::vector<InputGradient> gradients;  // by input
  std::vector<int> saved;                // buffers
};

struct Program {
  std::vector<ProgramStep> steps;  // the last is the loss
  std::vector<PlannedBuffer> buffers;
  // Buffers by value. Values that share one: a view and what it shows, or the output of an operator that
  // works in place and its input. -1: the value lies within a step, or it has no gradient; the loss has no
  // buffer for its gradient.
  std::vector<int> values;
  std::vector<int> gradients;
};

// `patterns`: what the device computes as one.
Program MakeProgram(const training::Graph& graph, const std::vector<FusionPattern>& patterns);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLAN_PROGRAM_H_
