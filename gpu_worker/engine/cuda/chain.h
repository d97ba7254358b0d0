// The graphs that programs of cuda/ are made from: chains of seven operators.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CHAIN_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CHAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "training/graph/graph.h"

namespace capstan::engine::cuda {

// Unimplemented, naming node, operator and `who` ("GPU devices"): a node reads anything except the
// value before it, or programs do not have its operator or attribute.
absl::Status CheckChain(const training::Graph& graph, absl::string_view who);

enum class ChainOpKind { kConv, kMaxPool, kAveragePool, kGemm, kRelu, kFlatten, kLoss };

// A node of a chain: node i reads the output of node i - 1, node 0 the images.
struct ChainOp {
  ChainOpKind kind = ChainOpKind::kLoss;
  bool input_gradient = false;  // a parameter contributes to the input; backward continues
  std::string name;
  int64_t x[3] = {1, 1, 1};  // channels, height, width; features 1 1
  int64_t y[3] = {1, 1, 1};
  // Conv and pools: height, width; pads: top, left, bottom, right.
  int64_t kernel[2] = {1, 1}, strides[2] = {1, 1}, pads[4] = {0, 0, 0, 0}, dilations[2] = {1, 1};
  int64_t weight_offset = -1;  // floats from the start of the flat vector; -1: no weight
  int64_t bias_offset = -1;
};

// The chain of a graph that CheckChain has accepted.
std::vector<ChainOp> ChainOf(const ReceivedGraph& received);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CHAIN_H_
