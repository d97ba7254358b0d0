// Checks the reference itself against central differences and numbers computed by hand.
#include "tests/contract/reference_network.h"

#include <cmath>
#include <random>

#include "gtest/gtest.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::testing {
namespace {

using training::Graph;

Graph Everything() {
  training::Conv conv;
  conv.out_channels = 3;
  conv.window.kernel_shape = {3, 2};
  conv.window.strides = {1, 2};
  conv.window.pads = {1, 0, 0, 1};
  conv.window.dilations = {1, 2};
  training::MaxPool max_pool;
  max_pool.window.kernel_shape = {3, 2};
  max_pool.window.strides = {2, 1};
  max_pool.window.pads = {1, 0, 1, 0};
  training::AveragePool average_pool;
  average_pool.window.kernel_shape = {2, 2};
  average_pool.window.strides = {1, 1};
  average_pool.window.pads = {0, 1, 0, 0};
  const absl::StatusOr<Graph> graph =
      Graph::Build("everything", {2, 6, 9},
                   {{"conv", conv, {0}},
                    {"relu", training::Relu(), {1}},
                    {"max", max_pool, {2}},
                    {"average", average_pool, {3}},
                    {"flatten", training::Flatten(), {4}},
                    {"fc", training::Gemm{4}, {5}},
                    {"loss", training::SoftmaxCrossEntropyLoss(), {6}}});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *graph;
}

TEST(ReferenceNetworkTest, GradientsAreCentralDifferences) {
  const Graph graph = Everything();
  std::mt19937_64 random(7);
  std::normal_distribution<double> normal;
  std::vector<Doubles> parameters;
  for (const training::Parameter& parameter : graph.parameters()) {
    parameters.emplace_back(parameter.elements);
    for (double& value : parameters.back()) value = normal(random);
  }
  Doubles images(3 * graph.value_elements(0));
  for (double& value : images) value = normal(random);
  const std::vector<int32_t> labels = {2, 0, 3};
  const double scale = 0.25;
  const ReferenceResult result = RunReference(graph, parameters, images, labels, scale);

  const double step = 1e-5;
  for (size_t p = 0; p < parameters.size(); ++p) {
    for (size_t i = 0; i < parameters[p].size(); ++i) {
      std::vector<Doubles> moved = parameters;
      moved[p][i] += step;
      const double up = RunReference(graph, moved, images, labels, scale).loss_sum;
      moved[p][i] -= 2 * step;
      const double down = RunReference(graph, moved, images, labels, scale).loss_sum;
      EXPECT_NEAR(result.gradients[p][i], scale * (up - down) / (2 * step), 1e-7)
          << graph.parameters()[p].name << "[" << i << "]";
    }
  }
}

TEST(ReferenceNetworkTest, LossOfOneRowByHand) {
  const absl::StatusOr<Graph> graph = Graph::Build(
      "one", {2},
      {{"fc", training::Gemm{2}, {0}}, {"loss", training::SoftmaxCrossEntropyLoss(), {1}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  // logits = (1*3 + 2*4 + 0.5, 0*3 - 1*4 + 0) = (11.5, -4)
  const ReferenceResult result = RunReference(*graph, {{1, 2, 0, -1}, {0.5, 0}}, {3, 4}, {1}, 2.0);
  EXPECT_EQ(result.logits, (Doubles{11.5, -4}));
  EXPECT_NEAR(result.loss_sum, std::log1p(std::exp(15.5)), 1e-12);
  EXPECT_EQ(result.correct, 0);
  const double p = 1 / (1 + std::exp(-15.5));
  EXPECT_NEAR(result.gradients[1][0], 2 * p, 1e-12);
  EXPECT_NEAR(result.gradients[0][1], 2 * p * 4, 1e-12);
}

}  // namespace
}  // namespace capstan::testing
