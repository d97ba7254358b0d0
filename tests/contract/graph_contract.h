// Helpers for tests of graphs on a device: building graphs, and the comparison with the references.
#ifndef CAPSTAN_TESTS_CONTRACT_GRAPH_CONTRACT_H_
#define CAPSTAN_TESTS_CONTRACT_GRAPH_CONTRACT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/device/device.h"
#include "tests/contract/device_cases.h"
#include "training/graph/graph.h"
#include "training/ops/op_cases.h"

namespace capstan::testing {

// A fraction of a tensor's largest value. Winograd's convolutions use at most 1e-5 each
// (blocked/winograd.h).
inline constexpr double kTolerance = 5e-5;
inline constexpr double kScale = 1.0 / 64;

using OpenDeviceFunction = std::unique_ptr<engine::Device> (*)();

std::unique_ptr<engine::Device> Phases();
// Sets the device for which CompileFor compiles from now on. At first it is Phases. Tolerances are
// multiplied by `factor`.
void UseDevice(OpenDeviceFunction open, double factor = 1);

absl::StatusOr<std::unique_ptr<engine::Plan>> CompileFor(const Problem& problem, int64_t max_batch,
                                                         int threads);

struct Computed {
  engine::LaneResult result;
  std::vector<float> gradient;
};
Computed Compute(engine::Plan& plan, const Problem& problem);

// Compares training and evaluation of a batch of `count` samples with the references in double. New
// memory is full of NaNs, so a kernel that reads what was not written is found. The seeds are such
// that no input of a Relu is so near to 0 that float and double see different signs. Statistics of
// a batch that has only some of the step's samples count by their share.
void ExpectLikeReference(const training::Graph& graph, int64_t count, uint64_t seed = 1,
                         double tolerance = kTolerance);

// A graph under construction.
class Nodes {
 public:
  int Add(const std::string& name, training::Operator op, std::vector<int> inputs) {
    nodes_.push_back({name + std::to_string(nodes_.size()), std::move(op), std::move(inputs)});
    return static_cast<int>(nodes_.size());
  }
  // Adds Flatten, a dense layer for `classes`, and the loss.
  absl::StatusOr<training::Graph> Finish(training::Shape input, int value, int64_t classes) {
    value = Add("flatten", training::Flatten(), {value});
    value = Add("head", training::Gemm{classes}, {value});
    Add("loss", training::SoftmaxCrossEntropyLoss(), {value});
    return Build(std::move(input));
  }
  absl::StatusOr<training::Graph> Build(training::Shape input) {
    return training::Graph::Build("test", std::move(input), nodes_);
  }

 private:
  std::vector<training::GraphNode> nodes_;
};

// A graph of the case's operator "op" with a dense layer before each input, and a Sigmoid between
// the layer and a divisor. If the operator is a loss, it is the loss of the graph. If it has no inputs, a dense layer is joined to it.
absl::StatusOr<training::Graph> GraphOf(const training::OpCase& op_case);

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_GRAPH_CONTRACT_H_
