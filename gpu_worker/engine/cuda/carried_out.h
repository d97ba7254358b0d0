// Which graphs the CUDA plug-in carries out, and in which order each operator reads its inputs.
// Plain host code without CUDA.
//
// Threads: stateless.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CARRIED_OUT_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CARRIED_OUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/plan/fuse.h"
#include "training/graph/graph.h"

namespace capstan::engine::cuda {

// How the stage of an operator takes its inputs.
enum class CardForm {
  kLibrary,    // a stage kind of its own (program.h), for images as NHWC
  kView,       // there is nothing to compute
  kElements,   // element by element: the output lies as the one input does
  kStrides,    // images in any order, by strides
  kCanonical,  // all inputs in the order of training::Graph
};

// Nullptr: the plug-in does not have the operator.
const CardForm* FindCardForm(absl::string_view op);

// Unimplemented, naming node, operator and `who` ("GPU devices"): a card does not have an operator
// of the graph, or not in this form or precision (capstan_precision).
absl::Status CheckCarriedOut(const training::Graph& graph, int32_t precision,
                             absl::string_view who);

// Whether the value is only read as tokens: indices of a Gather, or targets of a sequence loss.
bool IsOnlyTokens(const training::Graph& graph, training::ValueId value);

// The runs of nodes that a card computes as one.
const std::vector<FusionPattern>& CardPatterns();
// As plan/fuse.h: a Gather reads a table that is a parameter from the weights.
bool CardReadsParameter(const training::Graph& graph, int node, int input);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CARRIED_OUT_H_
