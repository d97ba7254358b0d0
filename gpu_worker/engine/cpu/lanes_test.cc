// Tests that lanes computed together give the bits of lane after lane and the sums of the tree.
#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gtest/gtest.h"
#include "training/fold/test_folded_chunk.h"
#include "training/graph/case_graphs.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/init/init.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/concat/concat.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/identity/identity.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine {
namespace {

using ::testing::HasSubstr;

// Random numbers by sample, a separate pooling, a value with two readers.
absl::StatusOr<training::Graph> Others() {
  training::Conv conv;
  conv.out_channels = 7;
  conv.window.kernel_shape = {3, 3};
  training::Window half;
  half.kernel_shape = half.strides = {2, 2};
  return training::Graph::Build("others", {2, 10, 8},
                                {{"conv", conv, {0}},
                                 {"relu", training::Relu(), {1}},
                                 {"pool", training::AveragePool{half}, {2}},
                                 {"flatten", training::Flatten(), {3}},
                                 {"in", training::Gemm{37}, {4}},
                                 {"gelu", training::Gelu(), {5}},
                                 {"drop", training::Dropout(), {5}},
                                 {"concat", training::Concat{1}, {6, 7}},
                                 {"head", training::Gemm{10}, {8}},
                                 {"loss", training::SoftmaxCrossEntropyLoss(), {9}}});
}

absl::StatusOr<training::Graph> GraphOf(const std::string& name) {
  if (name == "others") return Others();
  if (name == "attention") return training::AttentionGraph({.tokens = 21, .heads = 3});
  if (name == "arithmetic") return training::ArithmeticGraph();
  if (name == "regressor") return training::MakeRegressor("mlp", 3, {1, 28, 28});
  if (name == "embedding") return training::EmbeddingGraph();
  return training::MakeModel(name, 10, {1, 28, 28});
}

struct Case {
  std::string name;
  std::vector<int64_t> lanes;  // samples
};

// Lanes with different samples.
struct Lanes {
  Lanes(const training::Graph& graph, const std::vector<int64_t>& counts) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    int64_t whole = 0;
    for (const int64_t count : counts) whole += count;
    for (int64_t i = 0; i < whole * graph.value_elements(0); ++i) images.push_back(normal(random));
    for (int64_t i = 0; i < whole; ++i) {
      labels.push_back(static_cast<int32_t>(random() % 10));
      ids.push_back((int64_t{1} << 40) + i);
    }
    for (int64_t i = 0; i < whole * graph.target_size(); ++i) targets.push_back(normal(random));
    int64_t first = 0;
    for (const int64_t count : counts) {
      SampleBatch batch;
      batch.count = count;
      if (count > 0) {
        batch.images = images.data() + first * graph.value_elements(0);
        batch.labels = labels.data() + first;
        batch.targets = targets.data() + first * graph.target_size();
        batch.ids = ids.data() + first;
      }
      batch.seed = 5;
      batch.epoch = 2;
      batches.push_back(batch);
      first += count;
    }
    scale = 1 / static_cast<double>(whole);
  }
  std::vector<float> images;
  std::vector<int32_t> labels;
  std::vector<float> targets;  // of a loss that takes numbers
  std::vector<int64_t> ids;
  std::vector<SampleBatch> batches;
  double scale = 1;
};

class LanesTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    ASSERT_TRUE(graph.ok()) << graph.status();
    layout = training::FlatLayout::Create(training::TensorSpecs(*graph));
    ASSERT_TRUE(layout.ok()) << layout.status();
    weights.resize(layout->total_floats());
    training::InitRange(*layout, {}, /*seed=*/1, 0, absl::MakeSpan(weights));
  }
  std::unique_ptr<Plan> MakePlan(int64_t max_lanes, int threads) {
    PlanOptions options;
    options.max_batch = options.max_lane = *std::max_element(of.lanes.begin(), of.lanes.end());
    options.max_lanes = max_lanes;
    options.threads = threads;
    auto plan = MakeCpuDevice({})->Compile(*graph, *layout, options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE((*plan)->LoadWeights(weights.data()).ok());
    return *std::move(plan);
  }
  // Computes lane after lane and adds them as the hosts do.
  std::vector<float> Fold(const Lanes& lanes, std::vector<LaneResult>& results) {
    const std::unique_ptr<Plan> plan = MakePlan(/*max_lanes=*/1, /*threads=*/1);
    std::vector<int32_t> empty;
    for (size_t i = 0; i < of.lanes.size(); ++i) {
      if (of.lanes[i] == 0) empty.push_back(static_cast<int32_t>(i));
    }
    const training::LaneTree all(static_cast<int32_t>(of.lanes.size()));
    training::FoldedChunk sum(all.WithEmptyLanes(empty), weights.size());
    std::vector<float> gradient(weights.size());
    results.assign(of.lanes.size(), LaneResult());
    for (size_t i = 0; i < of.lanes.size(); ++i) {
      if (of.lanes[i] == 0) continue;
      results[i] = *plan->ComputeLane(lanes.batches[i], lanes.scale, gradient.data());
      EXPECT_TRUE(sum.Add({static_cast<int32_t>(i), 1}, gradient).ok());
    }
    return {sum.Root().begin(), sum.Root().end()};
  }

  const Case& of = GetParam();
  absl::StatusOr<training::Graph> graph = GraphOf(of.name);
  absl::StatusOr<training::FlatLayout> layout = absl::UnknownError("");
  std::vector<float> weights;
};

TEST_P(LanesTest, HaveTheBitsOfLaneAfterLane) {
  const Lanes lanes(*graph, of.lanes);
  std::vector<LaneResult> want;
  const std::vector<float> gradient = Fold(lanes, want);
  // With room for exactly as many lanes, and for more; with the same plan twice.
  const auto count = static_cast<int64_t>(of.lanes.size());
  for (const auto& [max_lanes, threads] : {std::pair(count, 1), {2 * count, 2}, {count, 3}}) {
    const std::unique_ptr<Plan> plan = MakePlan(max_lanes, threads);
    ASSERT_EQ(plan->info().max_lanes, max_lanes);
    for (int again = 0; again < 2; ++again) {
      std::vector<float> got(weights.size(), std::numeric_limits<float>::quiet_NaN());
      std::vector<LaneResult> results(of.lanes.size());
      const absl::Status status =
          plan->ComputeLanes(lanes.batches, lanes.scale, got.data(), absl::MakeSpan(results));
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(std::memcmp(got.data(), gradient.data(), got.size() * sizeof(float)), 0)
          << threads << " threads, room for " << max_lanes << " lanes";
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_EQ(results[i].samples, of.lanes[i]);
        EXPECT_EQ(results[i].loss_sum, want[i].loss_sum) << "lane " << i;
        EXPECT_EQ(results[i].correct, want[i].correct) << "lane " << i;
      }
    }
  }
}

TEST_P(LanesTest, EvaluationHasTheBitsOfAPlanOfOneLane) {
  const Lanes lanes(*graph, of.lanes);
  const auto largest = std::max_element(of.lanes.begin(), of.lanes.end()) - of.lanes.begin();
  const auto want = MakePlan(1, 1)->Evaluate(lanes.batches[largest]);
  const auto got = MakePlan(8, 2)->Evaluate(lanes.batches[largest]);
  ASSERT_TRUE(want.ok() && got.ok());
  EXPECT_EQ(got->loss_sum, want->loss_sum);
  EXPECT_EQ(got->correct, want->correct);
}

INSTANTIATE_TEST_SUITE_P(
    Nets, LanesTest,
    ::testing::Values(Case{"lenet", {32, 32, 32, 32, 32, 32, 32, 32}},
                      Case{"lenet", {33, 1, 0, 17, 16}}, Case{"lenet", {0, 5, 4}},
                      Case{"lenet", {40}}, Case{"lenet_d2l", {9, 10, 10, 10, 9, 10, 10, 10}},
                      Case{"lenet_d2l", {20, 0, 0, 35, 2, 1}}, Case{"mlp", {7, 18, 1, 16}},
                      Case{"regressor", {7, 18, 0, 16}}, Case{"attention", {17, 3, 0, 16}},
                      Case{"arithmetic", {0, 18, 33, 1, 16}}, Case{"embedding", {0, 18, 33, 1, 16}},
                      Case{"others", {16, 15, 17, 0, 0, 0, 0, 3, 40}}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (const int64_t lane : info.param.lanes) name += "_" + std::to_string(lane);
      return name;
    });

// Samples of a lane are normalized together, so lanes are computed one after the other.
TEST(CoupledLanesTest, ComeOneByOne) {
  const auto graph = training::MakeModel("resnet18_v1", 10, {3, 8, 8});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto layout = training::FlatLayout::Create(training::TensorSpecs(*graph));
  PlanOptions options;
  options.max_batch = 5;
  options.max_lanes = 4;
  const auto plan = MakeCpuDevice({})->Compile(*graph, *layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ((*plan)->info().max_lanes, 1);
  const std::vector<float> weights(layout->total_floats(), 0.1f);
  ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
  const Lanes lanes(*graph, {5, 3});
  std::vector<float> want(weights.size()), got(weights.size());
  const auto result = (*plan)->ComputeLane(lanes.batches[0], lanes.scale, want.data());
  std::vector<LaneResult> results(2);
  ASSERT_TRUE((*plan)
                  ->ComputeLanes({lanes.batches.data(), 1}, lanes.scale, got.data(),
                                 absl::MakeSpan(results).first(1))
                  .ok());
  EXPECT_EQ(got, want);
  EXPECT_EQ(results[0].loss_sum, result->loss_sum);
  const absl::Status two =
      (*plan)->ComputeLanes(lanes.batches, lanes.scale, got.data(), absl::MakeSpan(results));
  EXPECT_EQ(two.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(two.message()), HasSubstr("lanes: 2, want 1 to 1"));
}

// A network that looks up rows of a Parameter. If there is a view between them, each sample has a
// copy of the table.
absl::StatusOr<training::Graph> TableGraph(bool copied) {
  std::vector<training::GraphNode> nodes = {
      {"many", training::ConstantOfShape{{1}, 8}, {}},
      {"tokens", training::Mul(), {0, 1}},
      {"table", training::ParameterNode{{11, 70}, "initializer"}, {}},
      {"view", training::IdentityNode(), {3}},
      {"rows", training::Gather(), {copied ? 4 : 3, 2}},
      {"flatten", training::Flatten(), {5}},
      {"head", training::Gemm{10}, {6}},
      {"loss", training::SoftmaxCrossEntropyLoss(), {7}}};
  if (!copied) {
    nodes.erase(nodes.begin() + 3);
    for (size_t i = 3; i < nodes.size(); ++i) nodes[i].inputs[0] = static_cast<int>(i);
    nodes[3].inputs[0] = 3;
  }
  return training::Graph::Build("table", {9}, nodes);
}

TEST(TableTest, TakenFromTheWeightsHasTheBitsOfACopyForEachSample) {
  std::vector<std::vector<float>> gradients;
  for (const bool copied : {false, true}) {
    const auto graph = TableGraph(copied);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto layout = training::FlatLayout::Create(training::TensorSpecs(*graph));
    ASSERT_TRUE(layout.ok()) << layout.status();
    std::vector<float> weights(layout->total_floats());
    training::InitRange(*layout, {}, /*seed=*/1, 0, absl::MakeSpan(weights));
    PlanOptions options;
    options.max_batch = options.max_lane = 40;
    options.max_lanes = 4;
    options.threads = 2;
    const auto plan = MakeCpuDevice({})->Compile(*graph, *layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
    const Lanes lanes(*graph, {17, 0, 40, 1});
    std::vector<LaneResult> results(4);
    gradients.emplace_back(weights.size());
    ASSERT_TRUE((*plan)
                    ->ComputeLanes(lanes.batches, lanes.scale, gradients.back().data(),
                                   absl::MakeSpan(results))
                    .ok());
  }
  EXPECT_GT(std::count_if(gradients[0].begin(), gradients[0].end(),
                          [](float number) { return number != 0; }),
            1000);
  EXPECT_EQ(std::memcmp(gradients[0].data(), gradients[1].data(), gradients[0].size() * 4), 0);
}

TEST(RefusedLanesTest, LeaveTheGradientAlone) {
  const auto graph = training::MakeModel("lenet", 10, {1, 28, 28});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto layout = training::FlatLayout::Create(training::TensorSpecs(*graph));
  PlanOptions options;
  options.max_batch = 5;
  options.max_lanes = kMostLanesAtOnce + 1;
  EXPECT_THAT(std::string(MakeCpuDevice({})->Compile(*graph, *layout, options).status().message()),
              HasSubstr("max_lanes: 4097, want 1 to 4096"));
  options.max_lanes = 2;
  const auto plan = MakeCpuDevice({})->Compile(*graph, *layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> weights(layout->total_floats(), 0.1f);
  ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
  std::vector<float> gradient(weights.size(), 7);
  const auto refused = [&](const std::vector<SampleBatch>& lanes, size_t results) {
    std::vector<LaneResult> of(results);
    const absl::Status status =
        (*plan)->ComputeLanes(lanes, 1, gradient.data(), absl::MakeSpan(of));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(gradient, std::vector<float>(weights.size(), 7));
    return std::string(status.message());
  };
  Lanes lanes(*graph, {5, 3, 1});
  EXPECT_THAT(refused(lanes.batches, 3), HasSubstr("lanes: 3, want 1 to 2"));
  EXPECT_THAT(refused({lanes.batches[0]}, 2), HasSubstr("results: 2"));
  EXPECT_THAT(refused({SampleBatch(), SampleBatch()}, 2), HasSubstr("none has samples"));
  lanes.labels[7] = 10;
  EXPECT_THAT(refused({lanes.batches[0], lanes.batches[1]}, 2), HasSubstr("label of sample 2: 10"));
  lanes.batches[1].count = 6;
  EXPECT_THAT(refused({lanes.batches[0], lanes.batches[1]}, 2), HasSubstr("batch.count: 6"));
}

}  // namespace
}  // namespace capstan::engine
