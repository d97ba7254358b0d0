// Graphs on the CPU device: fused nodes, lanes, evaluation and random draws.
// graph_operators_test.cc compares operators and whole graphs with their references.
#include "tests/contract/graph_contract.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/case_graphs.h"
#include "training/ops/activation/activation.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/global_max_pool/global_max_pool.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/lrn/lrn.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax/softmax.h"
#include "training/ops/sum/sum.h"
#include "training/ops/transpose/transpose.h"
#include "training/optim/apply.h"
#include "training/optim/sgd.h"

namespace capstan::testing {
namespace {

using training::Graph;
using training::Shape;

// Whole blocks of 16 samples, one sample, one more than a block, and many samples.
TEST(GraphContractTest, BatchesOfEverySize) {
  Nodes nodes;
  training::Conv stem = MakeConv(17, 3, 3), point = MakeConv(6, 1, 1), wide = MakeConv(6, 7, 7);
  stem.window.strides = {2, 1};
  stem.window.pads = {1, 0, 2, 1};
  point.window.strides = {2, 2};
  wide.window.pads.fill(3);
  wide.window.strides = {2, 2};
  int x = nodes.Add("stem", stem, {0});
  const int first = nodes.Add("gelu", training::Gelu(), {x});
  const int second = nodes.Add("tanh", training::Gelu{"tanh"}, {x});
  const int left = nodes.Add("point", point, {first});
  const int right = nodes.Add("wide", wide, {second});
  x = nodes.Add("concat", training::Concat{1}, {left, right});
  x = nodes.Add("drop", training::Dropout{0.25}, {x});
  x = nodes.Add("conv", MakeConv(70, 2, 2), {x});
  x = nodes.Add("pool", training::GlobalAveragePool(), {x});
  const absl::StatusOr<Graph> graph = nodes.Finish({3, 7, 5}, x, 4);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int64_t count : {1, 17, 48, 1000}) ExpectLikeReference(*graph, count);
}

// conv - bn - relu - conv - bn, added to its input or to a smaller copy of it.
int AddBlock(Nodes& nodes, int x, int64_t channels, int64_t stride, bool project) {
  const auto conv = [](int64_t outputs, int64_t kernel, int64_t step) {
    training::Conv op = MakeConv(outputs, kernel, kernel);
    op.window.strides = {step, step};
    op.window.pads.fill(kernel / 2);
    op.bias = false;
    return op;
  };
  int y = nodes.Add("conv", conv(channels, 3, stride), {x});
  y = nodes.Add("bn", training::BatchNormalization(), {y});
  y = nodes.Add("relu", training::Relu(), {y});
  y = nodes.Add("conv", conv(channels, 3, 1), {y});
  y = nodes.Add("bn", training::BatchNormalization(), {y});
  if (project) {
    x = nodes.Add("conv", conv(channels, 1, stride), {x});
    x = nodes.Add("bn", training::BatchNormalization(), {x});
  }
  y = nodes.Add("add", training::Add(), {y, x});
  return nodes.Add("relu", training::Relu(), {y});
}

TEST(GraphContractTest, ResidualBlocks) {
  Nodes nodes;
  int x = nodes.Add("conv", MakeConv(9, 3, 3), {0});
  x = AddBlock(nodes, x, 9, 1, /*project=*/false);
  x = AddBlock(nodes, x, 17, 2, /*project=*/true);
  x = nodes.Add("pool", training::GlobalAveragePool(), {x});
  const absl::StatusOr<Graph> graph = nodes.Finish({3, 11, 9}, x, 4);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int64_t count : {1, 16, 33}) {
    for (const uint64_t seed : {1, 2}) ExpectLikeReference(*graph, count, seed);
  }
}

// Convolution, Relu and pooling as one kernel, twice, so that the second passes a gradient to the
// first.
struct PoolingNet {
  const char* name;
  Shape input;
  std::array<int64_t, 2> first_kernel;
  int64_t first_outputs;
  std::array<int64_t, 2> second_kernel;
  int64_t second_outputs;
};
const PoolingNet kPoolingNets[] = {
    {"as lenet", {1, 14, 14}, {5, 5}, 6, {3, 3}, 16},
    {"as lenet_d2l", {1, 16, 16}, {3, 3}, 7, {5, 5}, 11},
    {"three channels, places that the pooling drops", {3, 16, 17}, {5, 5}, 5, {3, 3}, 9},
    {"one output, one window", {2, 7, 11}, {2, 4}, 1, {2, 3}, 1},
    {"rows wider than the registers, 3", {1, 7, 60}, {1, 3}, 2, {2, 3}, 3},
    {"rows wider than the registers, 5", {2, 9, 52}, {2, 7}, 3, {3, 5}, 2},
    {"more outputs than a tile", {1, 8, 8}, {3, 1}, 23, {2, 3}, 29},
};

template <typename Pool>
absl::StatusOr<Graph> PoolingGraphOf(const PoolingNet& net, bool bias) {
  Nodes nodes;
  int x = 0;
  for (const bool first : {true, false}) {
    const std::array<int64_t, 2>& kernel = first ? net.first_kernel : net.second_kernel;
    training::Conv conv =
        MakeConv(first ? net.first_outputs : net.second_outputs, kernel[0], kernel[1]);
    conv.bias = bias;
    x = nodes.Add("conv", conv, {x});
    x = nodes.Add("relu", training::Relu(), {x});
    x = nodes.Add("pool", MakePool<Pool>(2, 2), {x});
  }
  return nodes.Finish(net.input, x, 4);
}

int FusedKernels(const Graph& graph, const std::string& word) {
  const Problem problem(graph, 2, /*seed=*/1);
  const auto plan = CompileFor(problem, 2, 1);
  EXPECT_TRUE(plan.ok()) << plan.status();
  int found = 0;
  for (const std::string& kernel : (*plan)->info().kernels) {
    found += static_cast<int>(kernel.find(word) != std::string::npos);
  }
  return found;
}

TEST(GraphContractTest, ConvolutionsWithPooling) {
  for (const PoolingNet& net : kPoolingNets) {
    SCOPED_TRACE(net.name);
    for (const bool bias : {true, false}) {
      const absl::StatusOr<Graph> largest = PoolingGraphOf<training::MaxPool>(net, bias);
      const absl::StatusOr<Graph> mean = PoolingGraphOf<training::AveragePool>(net, bias);
      ASSERT_TRUE(largest.ok()) << largest.status();
      ASSERT_TRUE(mean.ok()) << mean.status();
      for (const Graph* const graph : {&*largest, &*mean}) {
        EXPECT_EQ(FusedKernels(*graph, "with pooling"), 2);
        for (const int64_t count : {1, 19, 130}) ExpectLikeReference(*graph, count);
      }
    }
  }
}

// The gradients of two readers are added in the value that the fused kernel reads.
TEST(GraphContractTest, ConvolutionWithPoolingAddsToAGradient) {
  Nodes nodes;
  const int x = nodes.Add("conv", MakeConv(4, 3, 3), {0});
  int left = nodes.Add("conv", MakeConv(6, 3, 3), {x});
  left = nodes.Add("relu", training::Relu(), {left});
  left = nodes.Add("pool", MakePool<training::MaxPool>(2, 2), {left});
  left = nodes.Add("mean", training::GlobalAveragePool(), {left});
  const int right = nodes.Add("mean", training::GlobalAveragePool(), {x});
  const absl::StatusOr<Graph> graph =
      nodes.Finish({1, 11, 12}, nodes.Add("concat", training::Concat{1}, {left, right}), 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(FusedKernels(*graph, "with pooling"), 1);
  for (const int64_t count : {3, 40}) ExpectLikeReference(*graph, count);
}

// Fusion needs that nobody else reads the values inside, and that the windows are those of the
// kernel.
TEST(GraphContractTest, WhatDoesNotFitRunsByItsOwnKernels) {
  const auto graph = [](const training::Conv& conv, const training::MaxPool& pool, bool read_relu) {
    Nodes nodes;
    const int x = nodes.Add("conv", conv, {0});
    const int relu = nodes.Add("relu", training::Relu(), {x});
    int y = nodes.Add("pool", pool, {relu});
    y = nodes.Add("mean", training::GlobalAveragePool(), {y});
    if (read_relu) {
      const int mean = nodes.Add("mean", training::GlobalAveragePool(), {relu});
      y = nodes.Add("add", training::Add(), {y, mean});
    }
    return *nodes.Finish({2, 12, 12}, y, 3);
  };
  const training::Conv conv = MakeConv(4, 3, 3);
  training::Conv padded = conv, wide = conv, grouped = conv, apart = conv;
  padded.window.pads = {1, 1, 1, 1};
  wide.window.strides = {2, 2};
  grouped.group = 2;
  apart.window.dilations = {2, 1};
  const auto pool = MakePool<training::MaxPool>(2, 2);
  EXPECT_EQ(FusedKernels(graph(conv, pool, false), "with pooling"), 1);
  const std::vector<Graph> others = {graph(conv, pool, true),
                                     graph(padded, pool, false),
                                     graph(wide, pool, false),
                                     graph(grouped, pool, false),
                                     graph(apart, pool, false),
                                     graph(conv, MakePool<training::MaxPool>(3, 2), false),
                                     graph(conv, MakePool<training::MaxPool>(2, 1), false),
                                     graph(conv, MakePool<training::MaxPool>(2, 2, 1), false)};
  for (const Graph& other : others) {
    EXPECT_EQ(FusedKernels(other, "with pooling"), 0);
    ExpectLikeReference(other, 19);
  }
}

// As in the reference, a NaN passes no gradient back, and every value it reaches is NaN.
TEST(GraphContractTest, ANaNGoesThroughPooling) {
  for (const bool largest : {true, false}) {
    const absl::StatusOr<Graph> graph =
        largest ? PoolingGraphOf<training::MaxPool>(kPoolingNets[0], true)
                : PoolingGraphOf<training::AveragePool>(kPoolingNets[0], true);
    ASSERT_TRUE(graph.ok()) << graph.status();
    Problem problem(*graph, 20, /*seed=*/3);
    const int64_t pixels = graph->value_elements(0);
    problem.images[17 * pixels] =
        std::numeric_limits<float>::quiet_NaN();  // only in the first window
    const auto plan = CompileFor(problem, 20, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<float> logits(20 * 4);
    ASSERT_TRUE((*plan)->Predict(problem.batch(), logits.data()).ok());
    for (int n = 0; n < 20; ++n) EXPECT_EQ(std::isnan(logits[4 * n]), n == 17) << n;
    EXPECT_TRUE(std::isnan(Compute(**plan, problem).result.loss_sum));
  }
}

// The summand may be the value that is normalized, may come first, or may have other readers.
TEST(GraphContractTest, NormsWithAddAndRelu) {
  for (const bool itself : {true, false}) {
    SCOPED_TRACE(itself);
    Nodes nodes;
    const int x = nodes.Add("conv", MakeConv(5, 3, 3), {0});
    const int other = itself ? x : nodes.Add("conv", MakeConv(5, 3, 3), {0});
    int y = nodes.Add("bn", training::BatchNormalization(), {x});
    y = nodes.Add("add", training::Add(), {other, y});
    y = nodes.Add("relu", training::Relu(), {y});
    y = nodes.Add("bn", training::BatchNormalization(), {y});
    y = nodes.Add("relu", training::Relu(), {y});
    y = nodes.Add("add", training::Add(), {y, other});
    const absl::StatusOr<Graph> graph = nodes.Finish({2, 7, 6}, y, 3);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(FusedKernels(*graph, "by channel, with Add, with Relu"), 1);
    EXPECT_EQ(FusedKernels(*graph, "by channel, with Relu"), 1);
    for (const int64_t count : {2, 16, 37}) ExpectLikeReference(*graph, count);
  }
}

// The sum is larger than the norm, or its other summand is smaller.
TEST(GraphContractTest, NormsWithABroadcastSumRunAlone) {
  for (const bool larger : {true, false}) {
    SCOPED_TRACE(larger);
    Nodes nodes;
    int x = nodes.Add("conv", MakeConv(5, 3, 3), {0});
    int other = nodes.Add("mean", training::GlobalAveragePool(), {x});
    if (larger) std::swap(x, other);
    int y = nodes.Add("bn", training::BatchNormalization(), {x});
    y = nodes.Add("add", training::Add(), {y, other});
    y = nodes.Add("relu", training::Relu(), {y});
    const absl::StatusOr<Graph> graph = nodes.Finish({2, 7, 6}, y, 3);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(FusedKernels(*graph, "with Add"), 0);
    for (const int64_t count : {2, 37}) ExpectLikeReference(*graph, count);
  }
}

// If others read the norm's result or the value added to it, the nodes are not fused.
TEST(GraphContractTest, NormsThatOthersReadRunAlone) {
  Nodes nodes;
  const int x = nodes.Add("conv", MakeConv(5, 3, 3), {0});
  const int norm = nodes.Add("bn", training::BatchNormalization(), {x});
  const int relu = nodes.Add("relu", training::Relu(), {norm});
  const int sum = nodes.Add("add", training::Add(), {relu, norm});
  const absl::StatusOr<Graph> graph = nodes.Finish({2, 7, 6}, sum, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(FusedKernels(*graph, "with Relu"), 0);
  for (const int64_t count : {2, 37}) ExpectLikeReference(*graph, count);
}

// Attention: several tokens a row, one token, and more columns and rows than the tiles of a product.
TEST(GraphContractTest, Attention) {
  const training::AttentionOptions all[] = {
      {.layers = 2, .tokens = 7, .inputs = 5, .heads = 3, .head_width = 5},
      {.tokens = 1, .inputs = 1, .heads = 1, .head_width = 1},
      {.tokens = 100, .inputs = 9, .heads = 1, .head_width = 30, .classes = 3},
      {.tokens = 3, .inputs = 40, .heads = 1, .head_width = 130, .classes = 3}};
  for (const training::AttentionOptions& options : all) {
    const absl::StatusOr<Graph> graph = training::AttentionGraph(options);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(FusedKernels(*graph, "reference"), 0);
    for (const int64_t count : {1, 17}) ExpectLikeReference(*graph, count);
  }
}

TEST(GraphContractTest, ParametersOfArithmetic) {
  const absl::StatusOr<Graph> graph = training::ArithmeticGraph();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(FusedKernels(*graph, "reference"), 0);
  EXPECT_EQ(FusedKernels(*graph, "parameter"), 1) << "only that with two readers has a step";
  for (const int64_t count : {1, 17, 1000}) ExpectLikeReference(*graph, count);
}

// A matrix that is a Parameter, in front or behind, with axes in front of it, and for all rows.
TEST(GraphContractTest, ProductsWithParameters) {
  struct Product {
    Shape parameter, value;
    bool behind;
    const char* kernel;
  };
  const Product products[] = {{{5, 33}, {3, 5}, true, "direct"},
                              {{1, 1, 6, 2}, {3, 4, 6}, true, "direct"},
                              {{65, 17}, {65}, true, "direct"},
                              {{2, 6, 3}, {2, 4, 6}, true, "by sample"},
                              {{3, 2, 6, 3}, {1, 5, 6}, true, "by sample"},
                              {{4, 5}, {2, 5, 3}, false, "by sample"}};
  for (const Product& of : products) {
    SCOPED_TRACE(training::ShapeToString(of.parameter));
    Nodes nodes;
    Shape shape = of.value;
    if (shape.size() == 1) shape.insert(shape.begin(), 1);
    int x = nodes.Add("in", training::Gemm{training::Elements(shape)}, {0});
    x = nodes.Add("shape", training::Reshape{shape}, {x});
    const int parameter =
        nodes.Add("weights", training::ParameterNode{of.parameter, "initializer"}, {});
    const int y =
        nodes.Add("op", training::MatMul(),
                  of.behind ? std::vector<int>{x, parameter} : std::vector<int>{parameter, x});
    const absl::StatusOr<Graph> graph = nodes.Finish({6}, y, 3);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(FusedKernels(*graph, std::string("op3: ") + of.kernel), 1);
    for (const int64_t count : {1, 37}) ExpectLikeReference(*graph, count);
  }
}

// Rows that are longer than the runs in which gradients by parameters are summed, and blocks that are
// cut into several pieces.
TEST(GraphContractTest, LongRows) {
  Nodes nodes;
  int x = nodes.Add("in", training::Gemm{2400}, {0});
  x = nodes.Add("shape", training::Reshape{{3, 20, 40}}, {x});
  x = nodes.Add("lrn", training::LRN{3, 0.3, 0.75, 1}, {x});
  x = nodes.Add("flatten", training::Flatten(), {x});
  x = nodes.Add("norm", training::LayerNormalization(), {x});
  x = nodes.Add("scale", training::Mul(),
                {x, nodes.Add("number", training::ParameterNode{{1}, "initializer"}, {})});
  x = nodes.Add("shift", training::Sub(),
                {nodes.Add("row", training::ParameterNode{{2400}, "initializer"}, {}), x});
  x = nodes.Add("softmax", training::Softmax(), {x});
  const absl::StatusOr<Graph> graph = nodes.Finish({6}, x, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int64_t count : {1, 17}) ExpectLikeReference(*graph, count);
}

// The images of missing samples are zeros, so the layer without a bias divides by 0 there.
TEST(GraphContractTest, QuotientsOfMissingSamplesAddNothing) {
  Nodes nodes;
  const int x = nodes.Add("in", training::Gemm{6, /*bias=*/false}, {0});
  const int same = nodes.Add("same", training::Div(), {x, x});
  const int parameter = nodes.Add("top", training::ParameterNode{{6}, "initializer"}, {});
  const int over = nodes.Add("over", training::Div(), {parameter, x});
  int y = nodes.Add("sum", training::Add(), {same, over});
  y = nodes.Add("shape", training::Reshape{{2, 3}}, {y});
  const int matrix = nodes.Add("matrix", training::ParameterNode{{3, 4}, "initializer"}, {});
  y = nodes.Add("product", training::MatMul(), {y, matrix});
  const absl::StatusOr<Graph> graph = nodes.Finish({5}, y, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int64_t count : {1, 17}) ExpectLikeReference(*graph, count);
}

// Evaluation uses the running statistics, so samples do not affect each other's results.
TEST(GraphContractTest, EvaluationReadsRunningStatistics) {
  Nodes nodes;
  const int y = nodes.Add("bn", training::BatchNormalization(), {0});
  const absl::StatusOr<Graph> graph = nodes.Finish({3}, y, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  Problem problem(*graph, 20, /*seed=*/3);
  const auto set = [&problem](const std::string& name, std::vector<float> values) {
    const training::TensorSlot* const slot = problem.layout.Find(name);
    ASSERT_NE(slot, nullptr) << name;
    std::copy(values.begin(), values.end(), problem.weights.begin() + slot->offset);
  };
  set("bn0.running_mean", {1, 2, 3});
  set("bn0.running_var", {4 - 1e-5f, 1 - 1e-5f, 0.25f - 1e-5f});
  set("bn0.weight", {1, 1, 2});
  set("bn0.bias", {0, 1, 0});
  set("head2.weight", {1, 0, 0, 0, 1, 0, 0, 0, 1});
  set("head2.bias", {0, 0, 0});
  const auto plan = CompileFor(problem, 20, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> logits(60);
  ASSERT_TRUE((*plan)->Predict(problem.batch(), logits.data()).ok());
  for (int n = 0; n < 20; ++n) {
    const float* const x = problem.images.data() + 3 * n;
    EXPECT_NEAR(logits[3 * n], (x[0] - 1) / 2, 1e-5);
    EXPECT_NEAR(logits[3 * n + 1], (x[1] - 2) + 1, 1e-5);
    EXPECT_NEAR(logits[3 * n + 2], 2 * (x[2] - 3) / 0.5, 1e-4);
  }
}

// Rules R2 and R3: what two lanes send contains the dynamic loss scale, also in statistics, and the
// update takes it out of both. A power of two does not change any bit.
TEST(GraphContractTest, TheLossScaleIsInNeitherWeightsNorStatistics) {
  Nodes nodes;
  int y = nodes.Add("conv", MakeConv(4, 3, 3), {0});
  y = nodes.Add("bn", training::BatchNormalization(), {y});
  y = nodes.Add("relu", training::Relu(), {y});
  const absl::StatusOr<Graph> graph = nodes.Finish({2, 7, 6}, y, 3);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Problem wide(*graph, 20, /*seed=*/5), narrow(*graph, 17, /*seed=*/6);
  ASSERT_TRUE(wide.layout.has_statistics());
  const training::Sgd sgd = *training::Sgd::Create({.weight_decay = 0.01});
  const auto updated = [&](double dynamic) {
    const auto plan = CompileFor(wide, 20, /*threads=*/1);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::vector<float> sum(wide.layout.total_floats(), 0.0f), lane(sum.size()), out(sum.size());
    for (const Problem* const problem : {&wide, &narrow}) {
      const auto result = (*plan)->ComputeLane(problem->batch(), dynamic / 37, lane.data());
      EXPECT_TRUE(result.ok()) << result.status();
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += lane[i];
    }
    training::ApplyVersion(
        wide.layout, {0, wide.layout.total_floats()}, sgd, {0.1, /*gradient_scale=*/1 / dynamic},
        {.out = out.data(), .in = wide.weights.data(), .sum = sum.data(), .state = nullptr});
    return out;
  };
  const std::vector<float> plain = updated(1);
  for (const double dynamic : {65536.0, 0.25}) {
    const std::vector<float> scaled = updated(dynamic);
    for (const training::TensorSlot& slot : wide.layout.slots()) {
      EXPECT_EQ(std::memcmp(scaled.data() + slot.offset, plain.data() + slot.offset,
                            slot.range().size * sizeof(float)),
                0)
          << slot.spec.name << " with a loss scale of " << dynamic;
    }
  }
}

// Attention over the pixels of an image, gated by channel: operators that run by their references
// among those with kernels.
absl::StatusOr<Graph> AttentionGraph() {
  Nodes nodes;
  const int image = nodes.Add("embed", MakeConv(4, 3, 3), {0});
  const int gate = nodes.Add("gate", training::Sigmoid(),
                             {nodes.Add("largest", training::GlobalMaxPool(), {image})});
  const int gated = nodes.Add("gated", training::Mul(), {image, gate});
  const auto pixels = [&](const std::string& name, bool last) {
    int x = nodes.Add(name, MakeConv(4, 1, 1), {gated});
    x = nodes.Add("pixels", training::Reshape{{0, -1}}, {x});
    return last ? x : nodes.Add("turn", training::Transpose{{2, 1}}, {x});
  };
  const int query = pixels("query", false), key = pixels("key", true), of = pixels("of", false);
  int scores = nodes.Add("scores", training::MatMul(), {query, key});
  scores = nodes.Add("softmax", training::Softmax(), {scores});
  int y = nodes.Add("attended", training::MatMul(), {scores, of});
  const int place = nodes.Add("place", training::ParameterNode{{12, 4}, "initializer"}, {});
  y = nodes.Add("add", training::Sum(), {y, query, place});
  y = nodes.Add("norm", training::LayerNormalization(), {y});
  const int left = nodes.Add("left", training::SliceNode{{0}, {2}, {2}, {}}, {y});
  const int right = nodes.Add("right", training::SliceNode{{2}, {4}, {2}, {}}, {y});
  y = nodes.Add("sub", training::Sub(), {nodes.Add("tanh", training::Tanh(), {left}), right});
  const int mean = nodes.Add("mean", training::ReduceMean{{1}, true}, {y});
  y = nodes.Add("centred", training::Sub(), {y, mean});
  y = nodes.Add("leaky", training::LeakyRelu(), {y});
  return nodes.Finish({1, 6, 5}, y, 3);
}

TEST(GraphContractTest, AttentionIsLikeItsReferenceAndTrains) {
  const absl::StatusOr<Graph> graph = AttentionGraph();
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const int64_t count : {1, 19}) ExpectLikeReference(*graph, count);
  constexpr int kSteps = 60;
  Problem problem(*graph, 24, /*seed=*/2);
  const auto plan = CompileFor(problem, 24, /*threads=*/2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  double first = 0, last = 0;
  for (int step = 0; step < kSteps; ++step) {
    ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
    const Computed computed = Compute(**plan, problem);
    (step == 0 ? first : last) = computed.result.loss_sum;
    for (size_t i = 0; i < problem.weights.size(); ++i) {
      problem.weights[i] -= 0.5f * computed.gradient[i];
    }
  }
  EXPECT_LT(last, 0.3 * first) << "after " << kSteps << " steps";
}

// A plan with memory for lanes of 5 samples evaluates 100 at once, with the same bits.
TEST(GraphContractTest, EvaluationOfMoreThanALane) {
  Nodes nodes;
  int x = nodes.Add("conv", MakeConv(9, 3, 3), {0});
  x = AddBlock(nodes, x, 9, 1, /*project=*/false);
  const absl::StatusOr<Graph> graph = nodes.Finish({3, 7, 7}, x, 4);
  ASSERT_TRUE(graph.ok()) << graph.status();
  Problem problem(*graph, 100, /*seed=*/3);
  for (const training::TensorSlot& slot : problem.layout.slots()) {
    if (slot.spec.kind != training::TensorKind::kStat) continue;
    std::fill_n(problem.weights.begin() + slot.offset, slot.size, 0.5f);
  }
  std::vector<engine::LaneResult> results;
  std::vector<std::vector<float>> logits;
  std::vector<int64_t> bytes;
  engine::PlanOptions options;
  options.max_batch = options.max_lane = 5;
  const auto training_alone = Phases()->Compile(problem.graph, problem.layout, options);
  ASSERT_TRUE(training_alone.ok()) << training_alone.status();
  for (const int64_t lane : {5, 100}) {
    options.max_batch = 100;
    options.max_lane = lane;
    const auto plan = Phases()->Compile(problem.graph, problem.layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
    const auto result = (*plan)->Evaluate(problem.batch());
    ASSERT_TRUE(result.ok()) << result.status();
    results.push_back(*result);
    logits.emplace_back(400);
    ASSERT_TRUE((*plan)->Predict(problem.batch(), logits.back().data()).ok());
    bytes.push_back((*plan)->info().planned_bytes());
    std::vector<float> gradient(problem.layout.total_floats());
    EXPECT_EQ((*plan)->ComputeLane(problem.batch(), 1, gradient.data()).ok(), lane == 100);
  }
  EXPECT_EQ(results[0].samples, 100);
  EXPECT_EQ(results[0].loss_sum, results[1].loss_sum);
  EXPECT_EQ(results[0].correct, results[1].correct);
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_EQ(bytes[0], (*training_alone)->info().planned_bytes()) << "evaluation asks for more";
  EXPECT_LT(bytes[0], bytes[1] / 4);
}

// Two Dropouts of one value side by side, each visible in its own half of the head's gradient.
constexpr int64_t kWide = 64;  // two nodes have equal masks by chance once in 2^64
absl::StatusOr<Graph> TwoDropouts(double ratio) {
  Nodes nodes;
  const int x = nodes.Add("in", training::Gemm{kWide}, {0});
  const int first = nodes.Add("drop", training::Dropout{ratio}, {x});
  const int second = nodes.Add("drop", training::Dropout{ratio}, {x});
  return nodes.Finish({6}, nodes.Add("concat", training::Concat{1}, {first, second}), 3);
}

std::vector<float> GradientOf(const Problem& problem, const Computed& computed,
                              const std::string& parameter) {
  const training::TensorSlot* const slot = problem.layout.Find(parameter);
  EXPECT_NE(slot, nullptr) << parameter;
  const auto first = computed.gradient.begin() + slot->offset;
  return {first, first + slot->size};
}

// Rule R4. Only one sample of each batch has an image other than 0. So the gradient of in0.weight
// is that sample's, because the others add exactly 0.
TEST(GraphContractTest, DrawsFollowTheSampleWhereverItIsComputed) {
  const absl::StatusOr<Graph> graph = TwoDropouts(0.5);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Problem alone(*graph, 1, /*seed=*/5);
  const auto gradient = [&](int64_t count, int64_t place, int64_t max_batch, int threads,
                            int64_t id, uint64_t draw_seed, uint32_t epoch) {
    Problem problem(*graph, count, /*seed=*/5);
    problem.weights = alone.weights;
    std::fill(problem.images.begin(), problem.images.end(), 0.0f);
    std::copy(alone.images.begin(), alone.images.end(), problem.images.begin() + 6 * place);
    problem.labels[place] = alone.labels[0];
    for (int64_t i = 0; i < count; ++i) problem.ids[i] = 1000 + i;
    problem.ids[place] = id;
    problem.draw_seed = draw_seed;
    problem.epoch = epoch;
    const auto plan = CompileFor(problem, max_batch, threads);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return GradientOf(problem, Compute(**plan, problem), "in0.weight");
  };
  const std::vector<float> want = gradient(1, 0, 1, 1, 77, 11, 3);
  for (const int64_t count : {1, 5, 16, 17, 40}) {
    for (const int64_t place : {int64_t{0}, count / 2, count - 1}) {
      for (const int threads : {1, 2}) {
        EXPECT_EQ(gradient(count, place, count + 30 * (threads - 1), threads, 77, 11, 3), want)
            << "sample " << place << " of " << count << ", threads " << threads;
      }
    }
  }
  EXPECT_NE(gradient(1, 0, 1, 1, 78, 11, 3), want) << "another sample";
  EXPECT_NE(gradient(1, 0, 1, 1, 77 + (int64_t{1} << 32), 11, 3), want) << "another sample";
  EXPECT_NE(gradient(1, 0, 1, 1, 77, 12, 3), want) << "another seed";
  EXPECT_NE(gradient(1, 0, 1, 1, 77, 11, 4), want) << "another epoch";
}

TEST(GraphContractTest, NodesDrawForThemselves) {
  const absl::StatusOr<Graph> graph = TwoDropouts(0.5);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Problem problem(*graph, 1, /*seed=*/5);
  const auto plan = CompileFor(problem, 1, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // weight [3, 2 * kWide]: the gradient by a dropped number is 0.
  const std::vector<float> head = GradientOf(problem, Compute(**plan, problem), "head5.weight");
  std::vector<bool> first, second;
  for (int64_t e = 0; e < kWide; ++e) {
    first.push_back(head[e] != 0);
    second.push_back(head[kWide + e] != 0);
  }
  EXPECT_NE(first, second);
  for (const std::vector<bool>& kept : {first, second}) {
    const auto count = std::count(kept.begin(), kept.end(), true);
    EXPECT_GT(count, kWide / 4);  // 4 standard deviations of 64 draws, around 32
    EXPECT_LT(count, 3 * kWide / 4);
  }
}

TEST(GraphContractTest, EvaluationDrawsNothing) {
  const absl::StatusOr<Graph> drops = TwoDropouts(0.5), keeps = TwoDropouts(0);
  ASSERT_TRUE(drops.ok() && keeps.ok());
  std::vector<engine::LaneResult> results;
  std::vector<std::vector<float>> logits;
  for (const Graph* const graph : {&*drops, &*keeps}) {
    const Problem problem(*graph, 20, /*seed=*/5);
    engine::SampleBatch batch = problem.batch();
    batch.ids = nullptr;  // must not be read
    const auto plan = CompileFor(problem, 20, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto result = (*plan)->Evaluate(batch);
    ASSERT_TRUE(result.ok()) << result.status();
    results.push_back(*result);
    logits.emplace_back(20 * 3);
    ASSERT_TRUE((*plan)->Predict(batch, logits.back().data()).ok());
  }
  EXPECT_EQ(results[0].loss_sum, results[1].loss_sum);
  EXPECT_EQ(results[0].correct, results[1].correct);
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(GraphContractTest, AGraphThatDrawsWantsIds) {
  const absl::StatusOr<Graph> graph = TwoDropouts(0.5);
  ASSERT_TRUE(graph.ok()) << graph.status();
  Problem problem(*graph, 5, /*seed=*/5);
  const auto plan = CompileFor(problem, 5, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> gradient(problem.layout.total_floats(), 1234.5f);
  const auto error = [&](const engine::SampleBatch& batch) {
    const absl::Status status = (*plan)->ComputeLane(batch, kScale, gradient.data()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  engine::SampleBatch batch = problem.batch();
  batch.ids = nullptr;
  EXPECT_EQ(error(batch), "batch.ids: none, want 5 for graph test, which draws");
  for (const int64_t id : {int64_t{-1}, int64_t{1} << 48}) {
    problem.ids[3] = id;
    EXPECT_EQ(error(problem.batch()),
              "id of sample 3: " + std::to_string(id) + ", want 0 to 281474976710655");
  }
  EXPECT_THAT(gradient, ::testing::Each(1234.5f));
}

}  // namespace
}  // namespace capstan::testing
