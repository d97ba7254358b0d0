#include "tests/contract/device_cases.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "services/check/check.h"
#include "training/graph/models_resnet.h"
#include "training/graph/tensors.h"
#include "training/ops/batch_normalization/batch_normalization.h"

namespace capstan::testing {

using training::AveragePool;
using training::Conv;
using training::Flatten;
using training::Gemm;
using training::Graph;
using training::MaxPool;
using training::Operator;
using training::Relu;
using training::Shape;

Graph Chain(Shape input, std::vector<Operator> ops) {
  std::vector<training::GraphNode> nodes;
  bool image = input.size() == 3;
  for (Operator& op : ops) {
    if (op.name == Flatten::kName) image = false;
    const int i = static_cast<int>(nodes.size());
    nodes.push_back({"n" + std::to_string(i), std::move(op), {i}});
  }
  if (image) nodes.push_back({"flatten", Flatten(), {static_cast<int>(nodes.size())}});
  nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {static_cast<int>(nodes.size())}});
  absl::StatusOr<Graph> graph = Graph::Build("chain", std::move(input), std::move(nodes));
  CAPSTAN_CHECK(graph.ok());
  return *std::move(graph);
}

Graph SmallResnet() {
  absl::StatusOr<Graph> graph = Graph::Build(
      "resnet", {3, 9, 9}, training::ResnetNodes({.blocks = {1, 1}, .num_classes = 5}));
  CAPSTAN_CHECK(graph.ok());
  return *std::move(graph);
}

Graph ManyTensors() {
  std::vector<Operator> ops;
  for (int i = 0; i < 20; ++i) {
    ops.push_back(MakeConv(6, 1, 1));
    ops.push_back(training::BatchNormalization());
  }
  return Chain({3, 4, 4}, std::move(ops));
}

Conv MakeConv(int64_t out_channels, int64_t kernel_h, int64_t kernel_w) {
  Conv conv;
  conv.out_channels = out_channels;
  conv.window.kernel_shape = {kernel_h, kernel_w};
  return conv;
}

std::vector<LayerCase> LayerCases() {
  std::vector<LayerCase> cases;
  const auto add = [&cases](std::string name, Shape input, std::vector<Operator> ops,
                            bool large = false) {
    cases.push_back({std::move(name), Chain(std::move(input), std::move(ops)), large});
  };
  // Alone, and with a gradient by its input.
  const auto add_both = [&add](const std::string& name, const Shape& input,
                               const std::vector<Operator>& ops, bool large = false) {
    add(name, input, ops, large);
    std::vector<Operator> behind = {MakeConv(input[0], 1, 1)};
    behind.insert(behind.end(), ops.begin(), ops.end());
    add(name + " behind 1x1", input, behind, large);
  };

  add_both("conv 1x1 of one pixel", {1, 1, 1}, {MakeConv(3, 1, 1)});
  add_both("conv primes", {7, 13, 11}, {MakeConv(5, 5, 3)});
  add_both("conv over the whole image", {3, 5, 7}, {MakeConv(11, 5, 7)});
  Conv odd = MakeConv(5, 3, 2);
  odd.window.strides = {2, 3};
  odd.window.pads = {1, 0, 2, 1};
  odd.window.dilations = {2, 1};
  add_both("conv stride, padding, dilation", {3, 11, 13}, {odd});
  Conv no_bias = MakeConv(4, 3, 3);
  no_bias.bias = false;
  add_both("conv without bias", {2, 6, 6}, {no_bias});
  add_both("conv of lenet", {1, 28, 28}, {MakeConv(6, 5, 5)}, true);
  add_both("conv 2 of lenet", {6, 12, 12}, {MakeConv(16, 3, 3)}, true);
  add_both("conv of lenet_d2l", {1, 28, 28}, {MakeConv(20, 3, 3)}, true);
  add_both("conv 2 of lenet_d2l", {20, 13, 13}, {MakeConv(50, 5, 5)}, true);
  for (const int64_t channels : {1, 3, 6, 16, 20, 50}) {
    const Shape input = {channels, 7, 6};
    const std::string of = " of " + std::to_string(channels) + " channels";
    const Conv conv = MakeConv(channels, 1, 1);
    add("max pool" + of, input, {conv, MakePool<MaxPool>(2, 2)});
    add("average pool" + of, input, {conv, MakePool<AveragePool>(2, 2)});
    add("relu, max pool" + of, input, {conv, Relu(), MakePool<MaxPool>(2, 2)});
    add("relu, average pool" + of, input, {conv, Relu(), MakePool<AveragePool>(2, 2)});
  }
  Conv strided = MakeConv(5, 3, 2);
  strided.window.strides = {2, 1};
  strided.window.pads = {1, 0, 1, 1};
  for (const Shape& input : {Shape{2, 9, 9}, Shape{2, 10, 9}, Shape{2, 9, 10}}) {
    const std::string of = " of " + training::ShapeToString(input);
    add_both("conv and average pool" + of, input,
             {MakeConv(20, 5, 5), Relu(), MakePool<AveragePool>(2, 2)});
    add_both("conv 1x1 and max pool" + of, input, {MakeConv(4, 1, 1), MakePool<MaxPool>(2, 2)});
    add_both("strided conv and max pool" + of, input, {strided, Relu(), MakePool<MaxPool>(2, 2)});
  }
  add_both("conv and pool of lenet_d2l", {20, 13, 13},
           {MakeConv(50, 5, 5), Relu(), MakePool<AveragePool>(2, 2)}, true);
  const Conv conv = MakeConv(3, 1, 1);
  for (const bool relu : {false, true}) {
    const std::string name = relu ? "relu, " : "";
    for (const auto& [what, kernel, stride, pad] :
         {std::make_tuple("overlapping", 3, 2, 1), std::make_tuple("gaps", 2, 3, 0),
          std::make_tuple("one pixel", 1, 1, 0), std::make_tuple("shifted", 3, 1, 2)}) {
      std::vector<Operator> max = {conv}, average = {conv};
      if (relu) max.push_back(Relu()), average.push_back(Relu());
      max.push_back(MakePool<MaxPool>(kernel, stride, pad));
      average.push_back(MakePool<AveragePool>(kernel, stride, pad));
      add(name + "max pool " + what, {2, 7, 5}, max);
      add(name + "average pool " + what, {2, 7, 5}, average);
    }
  }
  add("relu twice before a pool", {2, 6, 6}, {conv, Relu(), Relu(), MakePool<MaxPool>(2, 2)});
  add("pool, then relu", {2, 6, 6}, {conv, MakePool<AveragePool>(2, 2), Relu(), conv});
  add("pool of the input", {3, 6, 6}, {MakePool<MaxPool>(2, 2), Flatten(), Gemm{5}});
  add("relu of the input", {3, 3, 3}, {Relu(), conv});
  add("relu before the loss", {7}, {Gemm{5}, Relu()});
  add("dense one by one", {1}, {Gemm{2}});
  add("dense primes", {13}, {Gemm{7}});
  add("dense without bias", {13}, {Gemm{7, false}});
  add("dense behind dense", {13}, {Gemm{31}, Gemm{7}});
  add("dense of mlp", {784}, {Gemm{128}, Relu(), Gemm{64}, Relu(), Gemm{10}}, true);
  add("dense of a grey image", {1, 5, 7}, {Flatten(), Gemm{3}});
  add("dense of a colour image", {3, 5, 7}, {Flatten(), Gemm{11}, Gemm{3}});
  add("dense behind a convolution", {3, 5, 7}, {conv, Flatten(), Gemm{17}, Relu(), Gemm{3}});
  add("flatten, relu, dense", {3, 5, 7}, {conv, Flatten(), Relu(), Gemm{3}});
  add("flatten twice", {3, 2, 3}, {conv, Flatten(), Flatten(), Gemm{3}});
  add("nothing to train before the loss", {3, 2, 2}, {MakePool<MaxPool>(2, 2), Flatten(), Gemm{2}});
  return cases;
}

training::FlatLayout LayoutOf(const Graph& graph) {
  absl::StatusOr<training::FlatLayout> layout =
      training::FlatLayout::Create(training::TensorSpecs(graph));
  CAPSTAN_CHECK(layout.ok());
  return *std::move(layout);
}

Problem::Problem(const Graph& g, int64_t n, uint64_t seed)
    : graph(g),
      layout(LayoutOf(g)),
      count(n),
      weights(layout.total_floats()),
      images(n * g.value_elements(0)),
      labels(n),
      targets(n * g.target_size()),
      ids(n) {
  for (int64_t i = 0; i < n; ++i) ids[i] = (int64_t{1} << 33) + 7919 * i;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (const training::Parameter& parameter : graph.parameters()) {
    const int64_t offset = layout.Find(parameter.name)->offset;
    const float scale =
        1.0f / std::sqrt(static_cast<float>(std::max<int64_t>(parameter.fan_in, 1)));
    const bool variance = parameter.statistic && parameter.init == training::ParameterInit::kOnes;
    for (int64_t i = 0; i < parameter.elements; ++i) {
      const float value = scale * normal(random);
      weights[offset + i] = variance ? 0.5f + std::abs(value) : value;
    }
  }
  for (float& value : images) value = normal(random);
  for (float& target : targets) target = normal(random);
  for (int32_t& label : labels) label = static_cast<int32_t>(random() % graph.num_classes());
}

}  // namespace capstan::testing
