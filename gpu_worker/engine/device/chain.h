// What devices of the first form carry out: chains of seven operators.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_DEVICE_CHAIN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_DEVICE_CHAIN_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "training/graph/graph.h"

namespace capstan::engine {

// Unimplemented, naming node, operator and `who` ("CPU devices"): a node that reads anything else than
// the value before it, or an operator or attribute that no device of the first form has.
absl::Status CheckChain(const training::Graph& graph, absl::string_view who);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_DEVICE_CHAIN_H_
