// Any graph on the CPU device against the references in double: every case of every operator behind layers
// that have weights, so that its gradients show in theirs, and random graphs with branches.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gtest/gtest.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/reference_network.h"
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/op_cases.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/sum/sum.h"
#include "training/optim/apply.h"
#include "training/optim/sgd.h"

namespace capstan::testing {
namespace {

using engine::Plan;
using ::testing::HasSubstr;
using ::testing::Not;
using training::Graph;
using training::GraphNode;
using training::OpCase;
using training::Operator;
using training::Shape;

// Of the largest value of a tensor; of it Winograd's convolutions take at most 1e-5 each (blocked/winograd.h).
constexpr double kTolerance = 5e-5;
constexpr double kScale = 1.0 / 64;

std::unique_ptr<engine::Device> Phases() { return engine::MakeCpuDevice({}); }

absl::StatusOr<std::unique_ptr<Plan>> CompileFor(const Problem& problem, int64_t max_batch,
                                                 int threads) {
  engine::PlanOptions options;
  options.max_batch = max_batch;
  options.threads = threads;
  auto plan = Phases()->Compile(problem.graph, problem.layout, options);
  if (plan.ok()) {
    const absl::Status status = (*plan)->LoadWeights(problem.weights.data());
    if (!status.ok()) return status;
  }
  return plan;
}

struct Computed {
  engine::LaneResult result;
  std::vector<float> gradient;
};

Computed Compute(Plan& plan, const Problem& problem) {
  Computed computed;
  computed.gradient.assign(problem.layout.total_floats(), 1234.5f);
  const auto result = plan.ComputeLane(problem.batch(), kScale, computed.gradient.data());
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) computed.result = *result;
  return computed;
}

void ExpectNear(const float* got, const Doubles& want, double share, double typical,
                const std::string& what) {
  double largest = typical;
  for (const double value : want) largest = std::max(largest, std::abs(value * share));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i] * share, kTolerance * largest) << what << "[" << i << "]";
  }
}

// The seeds are such that no input of a Relu lies so near to 0 that float and double see another sign.
// Statistics of a batch that has only some of the step's samples count by their share.
void ExpectLikeReference(const Graph& graph, int64_t count, uint64_t seed = 1) {
  SCOPED_TRACE("batch " + std::to_string(count) + ", seed " + std::to_string(seed));
  const Problem problem(graph, count, seed);
  std::vector<Doubles> parameters;
  for (const training::Parameter& parameter : graph.parameters()) {
    const float* const first = problem.weights.data() + problem.layout.Find(parameter.name)->offset;
    parameters.emplace_back(first, first + parameter.elements);
  }
  training::SampleInfo draws;
  draws.ids = problem.ids.data();
  draws.seed = problem.draw_seed;
  draws.epoch = problem.epoch;
  const ReferenceResult want =
      RunReference(graph, parameters, {problem.images.begin(), problem.images.end()},
                   problem.labels, kScale, draws);
  const auto plan = CompileFor(problem, count, /*threads=*/2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Computed got = Compute(**plan, problem);
  EXPECT_NEAR(got.result.loss_sum, want.loss_sum, 1e-5 * (1 + std::abs(want.loss_sum)));
  double typical = 1e-6;
  for (const Doubles& gradient : want.gradients) {
    for (const double value : gradient) typical = std::max(typical, 0.05 * std::abs(value));
  }
  for (size_t p = 0; p < parameters.size(); ++p) {
    const training::Parameter& parameter = graph.parameters()[p];
    const double share = parameter.statistic ? kScale * static_cast<double>(count) : 1;
    ExpectNear(got.gradient.data() + problem.layout.Find(parameter.name)->offset, want.gradients[p],
               share, parameter.statistic ? 1e-3 : typical, parameter.name);
  }

  // Rule R5, and no trace of what was computed before or of a larger plan.
  const auto other = CompileFor(problem, count + 21, /*threads=*/1);
  ASSERT_TRUE(other.ok()) << other.status();
  const Problem before(graph, count + 21, /*seed=*/7);
  Compute(**other, before);
  const Computed again = Compute(**other, problem);
  EXPECT_EQ(again.result.loss_sum, got.result.loss_sum);
  EXPECT_EQ(
      std::memcmp(again.gradient.data(), got.gradient.data(), got.gradient.size() * sizeof(float)),
      0)
      << "bits with another plan";
}

// A graph under construction.
class Nodes {
 public:
  int Add(const std::string& name, Operator op, std::vector<int> inputs) {
    nodes_.push_back({name + std::to_string(nodes_.size()), std::move(op), std::move(inputs)});
    return static_cast<int>(nodes_.size());
  }
  // Flattens `value`, and the loss of `classes`.
  absl::StatusOr<Graph> Finish(Shape input, int value, int64_t classes) {
    value = Add("flatten", training::Flatten(), {value});
    value = Add("head", training::Gemm{classes}, {value});
    Add("loss", training::SoftmaxCrossEntropyLoss(), {value});
    return Graph::Build("test", std::move(input), nodes_);
  }

 private:
  std::vector<GraphNode> nodes_;
};

// The operator of a case, with a dense layer of its own behind each input.
absl::StatusOr<Graph> GraphOf(const OpCase& op_case) {
  Nodes nodes;
  std::vector<int> inputs;
  for (const training::ValueType& x : op_case.inputs) {
    const int dense = nodes.Add("in", training::Gemm{training::Elements(x.shape)}, {0});
    inputs.push_back(nodes.Add("shape", training::Reshape{x.shape}, {dense}));
  }
  const int y = nodes.Add("op", op_case.op, inputs);
  return nodes.Finish({6}, y, 5);
}

TEST(GraphContractTest, EveryCaseOfEveryOperatorIsLikeItsReference) {
  int cases = 0;
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile || training::FindOp(op_case.op.name)->loss) continue;
    SCOPED_TRACE(op_case.op.name + " " + op_case.name);
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const int64_t count : {2, 19}) ExpectLikeReference(*graph, count);
    if (::testing::Test::HasFatalFailure()) return;
    ++cases;
  }
  EXPECT_GT(cases, 60);
}

// An operator without a kernel runs by its reference, which allocates in a step.
TEST(GraphContractTest, EveryOperatorHasAKernel) {
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile || training::FindOp(op_case.op.name)->loss) continue;
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto plan = CompileFor(Problem(*graph, 2, /*seed=*/1), 2, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const std::string& kernel : (*plan)->info().kernels) {
      EXPECT_THAT(kernel, Not(HasSubstr("reference"))) << op_case.op.name;
    }
  }
}

// Whole blocks of 16 samples, one sample, one more than a block, and many.
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

// Convolution, Relu and pooling as one kernel, twice, so that the second hands a gradient to the first.
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
absl::StatusOr<Graph> GraphOf(const PoolingNet& net, bool bias) {
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
      const absl::StatusOr<Graph> largest = GraphOf<training::MaxPool>(net, bias);
      const absl::StatusOr<Graph> mean = GraphOf<training::AveragePool>(net, bias);
      ASSERT_TRUE(largest.ok()) << largest.status();
      ASSERT_TRUE(mean.ok()) << mean.status();
      for (const Graph* const graph : {&*largest, &*mean}) {
        EXPECT_EQ(FusedKernels(*graph, "with pooling"), 2);
        for (const int64_t count : {1, 19, 130}) ExpectLikeReference(*graph, count);
      }
    }
  }
}

// Gradients of two readers come together in what the fused kernel reads.
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

// Nobody else may read what lies within, and windows must be those of the kernel.
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

// Of a NaN no gradient comes, as the reference has it; what it meets is NaN.
TEST(GraphContractTest, ANaNGoesThroughPooling) {
  for (const bool largest : {true, false}) {
    const absl::StatusOr<Graph> graph = largest
                                            ? GraphOf<training::MaxPool>(kPoolingNets[0], true)
                                            : GraphOf<training::AveragePool>(kPoolingNets[0], true);
    ASSERT_TRUE(graph.ok()) << graph.status();
    Problem problem(*graph, 20, /*seed=*/3);
    const int64_t pixels = graph->value_elements(0);
    problem.images[17 * pixels] =
        std::numeric_limits<float>::quiet_NaN();  // the first window alone
    const auto plan = CompileFor(problem, 20, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    std::vector<float> logits(20 * 4);
    ASSERT_TRUE((*plan)->Predict(problem.batch(), logits.data()).ok());
    for (int n = 0; n < 20; ++n) EXPECT_EQ(std::isnan(logits[4 * n]), n == 17) << n;
    EXPECT_TRUE(std::isnan(Compute(**plan, problem).result.loss_sum));
  }
}

// The summand may be what is normalized, or come first, or be read by others too.
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

// Others read what the norm makes, or what is added to it: they stay apart.
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

// Evaluation takes the running statistics: then samples do not show in each other's results.
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

// Rules R2 and R3: what two lanes send has the dynamic loss scale, in statistics too, and the update
// takes it out of both. A power of two leaves no trace in the bits.
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

// A plan that has memory for lanes of 5 samples evaluates 100 at once, with the same bits.
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
  for (const int64_t lane : {5, 100}) {
    engine::PlanOptions options;
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
    bytes.push_back((*plan)->info().arena_bytes);
    std::vector<float> gradient(problem.layout.total_floats());
    EXPECT_EQ((*plan)->ComputeLane(problem.batch(), 1, gradient.data()).ok(), lane == 100);
  }
  EXPECT_EQ(results[0].samples, 100);
  EXPECT_EQ(results[0].loss_sum, results[1].loss_sum);
  EXPECT_EQ(results[0].correct, results[1].correct);
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_LT(bytes[0], bytes[1] / 4);
}

// Two Dropouts of one value, side by side, so that each shows in its own half of the head's gradient.
constexpr int64_t kWide = 64;  // equal masks of two nodes by chance: once in 2^64
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

// Rule R4. Only one sample of each batch has an image that is not 0, so the gradient of in0.weight is its
// own: others add 0 exactly.
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
  // weight [3, 2 * kWide]: the gradient by a number that was dropped is 0.
  const std::vector<float> head = GradientOf(problem, Compute(**plan, problem), "head5.weight");
  std::vector<bool> first, second;
  for (int64_t e = 0; e < kWide; ++e) {
    first.push_back(head[e] != 0);
    second.push_back(head[kWide + e] != 0);
  }
  EXPECT_NE(first, second);
  for (const std::vector<bool>& kept : {first, second}) {
    const auto count = std::count(kept.begin(), kept.end(), true);
    EXPECT_GT(count, kWide / 4);  // 4 standard deviations of 64 draws around 32
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
    batch.ids = nullptr;  // not read
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

// Random graphs: each node reads one or two of the last values that fit.
TEST(GraphContractTest, RandomGraphs) {
  constexpr int kGraphs = 40;
  for (int seed = 0; seed < kGraphs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto draw = [&random](int64_t n) { return static_cast<int64_t>(random() % n); };
    Nodes nodes;
    const int64_t channels = 2 + draw(9);
    std::vector<int> values = {nodes.Add("conv", MakeConv(channels, 1, 1), {0})};  // of one shape
    std::vector<bool> read = {false};
    const auto pick = [&] {
      const int64_t at = std::max<int64_t>(0, static_cast<int64_t>(values.size()) - 1 - draw(3));
      read[at] = true;
      return values[at];
    };
    for (int64_t i = 3 + draw(6); i > 0; --i) {
      int value = 0;
      training::Conv conv = MakeConv(channels, 3, 3);
      conv.window.pads = {1, 1, 1, 1};
      conv.bias = draw(2) == 0;
      switch (draw(6)) {
        case 0:
          value = nodes.Add("conv", conv, {pick()});
          break;
        case 1:
          value = nodes.Add("relu", training::Relu(), {pick()});
          break;
        case 2:
          value = nodes.Add("add", training::Add(), {pick(), pick()});
          break;
        case 3:
          value = nodes.Add("bn", training::BatchNormalization(), {pick()});
          break;
        case 4:
          value = nodes.Add("sum", training::Sum(), {pick(), pick(), pick()});
          break;
        default:
          value = nodes.Add("gelu", training::Gelu(), {pick()});
          break;
      }
      values.push_back(value);
      read.push_back(false);
    }
    std::vector<int> unread;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!read[i]) unread.push_back(values[i]);
    }
    const int joined = nodes.Add("concat", training::Concat{1}, unread);
    const absl::StatusOr<Graph> graph = nodes.Finish({2, 5, 4}, joined, 3);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectLikeReference(*graph, 1 + draw(20));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace capstan::testing
