// The graphs whose stages need no kernel of ops/: chains of seven operators. Plain loops run their
// programs without CUDA (plugin/fake).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CHAIN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CHAIN_H_

#include "training/graph/graph.h"

namespace capstan::engine::cuda {

// Whether every node reads only the value before it, and has an operator and attributes of which
// MakeCardProgram makes other stages than kOperator.
bool IsPlainChain(const training::Graph& graph);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CHAIN_H_
