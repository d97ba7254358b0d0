// Networks and inputs for the device contract.
#ifndef CAPSTAN_TESTS_CONTRACT_DEVICE_CASES_H_
#define CAPSTAN_TESTS_CONTRACT_DEVICE_CASES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "gpu_worker/engine/device/device.h"
#include "training/chunks/flat_layout.h"
#include "training/graph/graph.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::testing {

// A chain of `ops` over `input`, named by their places ("n0"), then Flatten if the last value is an
// image, and the loss. The graph must be valid.
training::Graph Chain(training::Shape input, std::vector<training::Operator> ops);

// Residual blocks with running statistics, and gradients of parameters on both streams of a plan.
training::Graph SmallResnet();
// A chain of so many normalized convolutions that one kernel cannot update all tensors if only
// weights are decayed.
training::Graph ManyTensors();

training::Conv MakeConv(int64_t out_channels, int64_t kernel_h, int64_t kernel_w);
template <typename Pool>
Pool MakePool(int64_t kernel, int64_t stride, int64_t pad = 0) {
  Pool pool;
  pool.window.kernel_shape = {kernel, kernel};
  pool.window.strides = {stride, stride};
  pool.window.pads = {pad, pad, pad, pad};
  return pool;
}

struct LayerCase {
  std::string name;
  training::Graph graph;
  bool large = false;  // the reference loops take long, so small batches only
};
// Every operator as a graph of its own, and also behind a 1x1 convolution, whose gradient then
// shows the operator's gradient by its input. Sizes are 1, primes, and those of the built-in
// models.
std::vector<LayerCase> LayerCases();

training::FlatLayout LayoutOf(const training::Graph& graph);

// A graph with weights and a batch, drawn by a seed. Values are normal; weights are divided by the
// root of their fan-in.
struct Problem {
  Problem(const training::Graph& graph, int64_t count, uint64_t seed);

  engine::SampleBatch batch() const {
    return {images.data(), labels.data(), count, nullptr,
            ids.data(),    draw_seed,     epoch, targets.data()};
  }

  const training::Graph& graph;
  training::FlatLayout layout;
  int64_t count;
  std::vector<float> weights;  // flat
  std::vector<float> images;
  std::vector<int32_t> labels;
  std::vector<float> targets;  // of a loss that takes numbers
  // The counters of random numbers. They are not the smallest numbers, so that a lost one shows.
  std::vector<int64_t> ids;
  uint64_t draw_seed = 11;
  uint32_t epoch = 3;
};

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_DEVICE_CASES_H_
