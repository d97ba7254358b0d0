// From a graph to what a device runs: the order of the backward pass, which gradient is stored and
// which is added, and which tensors share a place. It does not depend on a device's kernels or
// layouts.
//
// A value with several readers gets gradients from all of them. Backward runs the nodes in falling
// order, so the last reader stores and the others add (fixed bits).
//
// A step is a node, or a run of nodes that one kernel computes (fuse.h). Values inside a step have
// no place. Nor does the value of a Parameter whose only reader takes it from the weights.
//
// Time: forward of step i is i, its backward is 2 * steps - 1 - i.
//
// Threads: a Program is immutable once MakeProgram has returned it.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLAN_PROGRAM_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLAN_PROGRAM_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/engine/plan/fuse.h"
#include "training/graph/graph.h"

namespace capstan::engine {

// A tensor's place in memory, needed from time `first` to time `last`, both included.
struct PlannedBuffer {
  int64_t sample_elements = 0;  // per sample
  int64_t fixed_elements = 0;   // independent of the number of samples
  int first = 0, last = 0;
};

// How backward of a step handles the gradient by one of its inputs.
struct InputGradient {
  bool wanted = false;
  bool add = false;  // to the gradient that later readers have stored
};

struct ProgramStep {
  int first = 0, last = 0;               // nodes
  int pattern = -1;                      // for a run of several nodes
  std::vector<int> inputs;               // values from outside, node by node
  std::vector<int> parameters;           // by input: a Parameter without a step, or -1
  int output = 0;                        // of the last node
  bool backward = false;                 // some parameter contributes to the output
  std::vector<InputGradient> gradients;  // by input
  std::vector<int> saved;                // buffers
};

struct Program {
  std::vector<ProgramStep> steps;  // the last is the loss
  std::vector<PlannedBuffer> buffers;
  // Buffers by value. Two values share one if one is a view of the other, or if an operator works
  // in place. -1: the value lies inside a step, is read from the weights, or has no gradient. The
  // loss has no buffer for its gradient.
  std::vector<int> values;
  std::vector<int> gradients;
};

// `patterns`: the runs of nodes that the device computes as one. `reads_parameter`: null if no kernel
// does.
Program MakeProgram(const training::Graph& graph, const std::vector<FusionPattern>& patterns,
                    ReadsParameter reads_parameter = nullptr);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLAN_PROGRAM_H_
