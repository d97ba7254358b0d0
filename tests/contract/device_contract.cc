#include "tests/contract/device_contract.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/reference_network.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"

namespace capstan::testing {
namespace {

using engine::LaneResult;
using engine::Plan;
using engine::PlanOptions;
using engine::SampleBatch;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using training::Graph;

constexpr float kGarbage = 1234.5f;
// Limits the double loops of one comparison, since seconds add up under a sanitizer.
constexpr int64_t kReferenceFlops = 4'000'000;

Graph Model(const char* name) {
  absl::StatusOr<Graph> graph = training::MakeModel(name, 10, {1, 28, 28});
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

Doubles ToDoubles(const float* values, int64_t count) { return Doubles(values, values + count); }

std::vector<Doubles> ParametersOf(const Graph& graph, const training::FlatLayout& layout,
                                  const float* flat) {
  std::vector<Doubles> parameters;
  for (const training::Parameter& parameter : graph.parameters()) {
    parameters.push_back(ToDoubles(flat + layout.Find(parameter.name)->offset, parameter.elements));
  }
  return parameters;
}

// Every element must be within `tolerance` times the largest value of `want` and `typical`, the
// size of the summands, because sums that cancel have no accuracy of their own.
void ExpectClose(const Doubles& got, const Doubles& want, double tolerance, double typical,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = typical;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest) << what << "[" << i << "]";
  }
}

absl::StatusOr<std::unique_ptr<Plan>> Compile(engine::Device& device, const Problem& problem,
                                              int64_t max_batch, int threads = 1) {
  PlanOptions options;
  options.max_batch = max_batch;
  options.threads = threads;
  absl::StatusOr<std::unique_ptr<Plan>> plan =
      device.Compile(problem.graph, problem.layout, options);
  if (plan.ok()) {
    const absl::Status status = (*plan)->LoadWeights(problem.weights.data());
    if (!status.ok()) return status;
  }
  return plan;
}

// The result and gradient of one lane.
struct Outcome {
  LaneResult result;
  std::vector<float> gradient;
};

Outcome Compute(Plan& plan, const Problem& problem, const SampleBatch& batch, double scale) {
  Outcome outcome;
  outcome.gradient.assign(problem.layout.total_floats(), kGarbage);
  const absl::StatusOr<LaneResult> result = plan.ComputeLane(batch, scale, outcome.gradient.data());
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) outcome.result = *result;
  return outcome;
}

void ExpectSameBits(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(a.result.samples, b.result.samples) << what;
  EXPECT_EQ(a.result.correct, b.result.correct) << what;
  EXPECT_EQ(std::memcmp(&a.result.loss_sum, &b.result.loss_sum, sizeof(double)), 0) << what;
  ASSERT_EQ(a.gradient.size(), b.gradient.size());
  EXPECT_EQ(std::memcmp(a.gradient.data(), b.gradient.data(), a.gradient.size() * sizeof(float)), 0)
      << what;
}

TEST_P(DeviceContractTest, LayersAgreeWithPlainLoops) {
  for (const LayerCase& layer : LayerCases()) {
    for (const int64_t count : {1, 17, 100}) {
      if (layer.large ? count != 17 : count * layer.graph.forward_flops() > kReferenceFlops)
        continue;
      SCOPED_TRACE(layer.name + ", batch " + std::to_string(count));
      const Problem problem(layer.graph, count, /*seed=*/count);
      const double scale = 1.0 / 128;
      // Shared by all devices, because the loops take longer than the devices.
      static std::map<std::string, ReferenceResult>& cache =
          *new std::map<std::string, ReferenceResult>();
      ReferenceResult& want = cache[layer.name + std::to_string(count)];
      if (want.logits.empty()) {
        want = RunReference(
            problem.graph, ParametersOf(layer.graph, problem.layout, problem.weights.data()),
            ToDoubles(problem.images.data(), problem.images.size()), problem.labels, scale);
      }

      const absl::StatusOr<std::unique_ptr<Plan>> plan =
          Compile(*device_, problem, count, /*threads=*/2);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const Outcome got = Compute(**plan, problem, problem.batch(), scale);
      std::vector<float> logits(count * layer.graph.num_classes());
      ASSERT_TRUE((*plan)->Predict(problem.batch(), logits.data()).ok());
      const absl::StatusOr<LaneResult> evaluated = (*plan)->Evaluate(problem.batch());
      ASSERT_TRUE(evaluated.ok()) << evaluated.status();

      const double tolerance = GetParam().tolerance;
      ExpectClose(ToDoubles(logits.data(), logits.size()), want.logits, tolerance, 1.0, "logits");
      EXPECT_EQ(got.result.samples, count);
      EXPECT_NEAR(got.result.loss_sum, want.loss_sum, tolerance * (1 + want.loss_sum));
      EXPECT_EQ(got.result.correct, want.correct);
      EXPECT_EQ(evaluated->samples, count);
      EXPECT_NEAR(evaluated->loss_sum, want.loss_sum, tolerance * (1 + want.loss_sum));
      EXPECT_EQ(evaluated->correct, want.correct);
      const std::vector<Doubles> gradients =
          ParametersOf(layer.graph, problem.layout, got.gradient.data());
      for (size_t p = 0; p < gradients.size(); ++p) {
        ExpectClose(gradients[p], want.gradients[p], tolerance, scale,
                    layer.graph.parameters()[p].name);
      }
    }
  }
}

TEST_P(DeviceContractTest, GradientsOfWholeModelsAreCentralDifferences) {
  for (const char* const name : {"lenet", "lenet_d2l", "mlp"}) {
    SCOPED_TRACE(name);
    const Graph graph = Model(name);
    Problem problem(graph, 20, /*seed=*/3);
    const absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, problem.count);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Outcome got = Compute(**plan, problem, problem.batch(), 1.0);
    const std::vector<float> weights = problem.weights;
    // Steps of length 1 along the gradient of one tensor at a time: the slope is the gradient's
    // length.
    for (const training::TensorSlot& slot : problem.layout.slots()) {
      double length = 0;
      for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
        length += static_cast<double>(got.gradient[i]) * got.gradient[i];
      }
      length = std::sqrt(length);
      const double step = 0.005 / length;  // moves the loss by 0.01 in total, to meet few kinks
      double loss[2];
      for (int side = 0; side < 2; ++side) {
        problem.weights = weights;
        for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
          problem.weights[i] +=
              static_cast<float>((side == 0 ? step : -step) / length) * got.gradient[i];
        }
        ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
        const absl::StatusOr<LaneResult> result = (*plan)->Evaluate(problem.batch());
        ASSERT_TRUE(result.ok()) << result.status();
        loss[side] = result->loss_sum;
      }
      EXPECT_NEAR((loss[0] - loss[1]) / (2 * step), length, 0.01 * length) << slot.spec.name;
    }
  }
}

TEST_P(DeviceContractTest, BitsDoNotDependOnThreadsPlanOrHistory) {
  if (!GetParam().equal_bits) GTEST_SKIP() << "promised on CPUs and in deterministic plans only";
  const Graph graph = Model("lenet");
  for (const int64_t count : {1, 5, 9, 16, 17, 100}) {
    const Problem problem(graph, count, /*seed=*/count);
    absl::StatusOr<std::unique_ptr<Plan>> first = Compile(*device_, problem, count, 1);
    ASSERT_TRUE(first.ok()) << first.status();
    const Outcome want = Compute(**first, problem, problem.batch(), 1.0 / 100);
    for (const int threads : {1, 2, 3}) {
      const std::string what =
          std::to_string(count) + " samples, " + std::to_string(threads) + " threads";
      absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 128, threads);
      ASSERT_TRUE(plan.ok()) << plan.status();
      const Problem other(graph, 128, /*seed=*/99);
      Compute(**plan, other, other.batch(), 1.0);
      for (int repeat = 0; repeat < 2; ++repeat) {
        ExpectSameBits(Compute(**plan, problem, problem.batch(), 1.0 / 100), want, what);
      }
    }
  }
}

TEST_P(DeviceContractTest, LoadWeightsReplacesTheWeightsAndCopiesThem) {
  const Graph graph = Model("lenet_d2l");
  Problem problem(graph, 20, /*seed=*/1);
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 20);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Outcome before = Compute(**plan, problem, problem.batch(), 1.0);
  const std::vector<float> weights = problem.weights;
  std::fill(problem.weights.begin(), problem.weights.end(), 0.0f);
  ExpectSameBits(Compute(**plan, problem, problem.batch(), 1.0), before, "caller's memory changed");

  ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
  const Outcome zero = Compute(**plan, problem, problem.batch(), 1.0);
  EXPECT_NEAR(zero.result.loss_sum, 20 * std::log(10.0), 1e-5);
  ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
  ExpectSameBits(Compute(**plan, problem, problem.batch(), 1.0), before, "the first weights again");
}

TEST_P(DeviceContractTest, GradientIsOverwrittenAndZeroBetweenTheTensors) {
  const Graph graph = Model("lenet");
  const Problem problem(graph, 33, /*seed=*/5);
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 33);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Outcome outcome = Compute(**plan, problem, problem.batch(), 1.0);
  std::vector<bool> inside(outcome.gradient.size(), false);
  for (const training::TensorSlot& slot : problem.layout.slots()) {
    std::fill(inside.begin() + slot.offset, inside.begin() + slot.range().end(), true);
  }
  for (size_t i = 0; i < inside.size(); ++i) {
    if (!inside[i]) {
      ASSERT_EQ(outcome.gradient[i], 0.0f) << i;
    }
    ASSERT_NE(outcome.gradient[i], kGarbage) << i;
  }
}

TEST_P(DeviceContractTest, TakesBuffersOfAnyAlignment) {
  const Graph graph = Model("lenet");
  const Problem problem(graph, 20, /*seed=*/6);
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 20);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Outcome want = Compute(**plan, problem, problem.batch(), 1.0);

  std::vector<float> images(problem.images.size() + 1), weights(problem.weights.size() + 1);
  std::vector<float> gradient(want.gradient.size() + 1);
  std::copy(problem.images.begin(), problem.images.end(), images.begin() + 1);
  std::copy(problem.weights.begin(), problem.weights.end(), weights.begin() + 1);
  ASSERT_TRUE((*plan)->LoadWeights(weights.data() + 1).ok());
  const SampleBatch batch = {images.data() + 1, problem.labels.data(), problem.count};
  const absl::StatusOr<LaneResult> result = (*plan)->ComputeLane(batch, 1.0, gradient.data() + 1);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->loss_sum, want.result.loss_sum);
  EXPECT_TRUE(std::equal(want.gradient.begin(), want.gradient.end(), gradient.begin() + 1));
}

// Images that are already on the device, named by their indices, in another order and twice.
TEST_P(DeviceContractTest, KeptImagesGiveTheBitsOfThoseThatAreBrought) {
  for (const char* const name : {"lenet", "mlp"}) {
    const Graph graph = Model(name);
    const Problem all(graph, 7, /*seed=*/9);
    const absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, all, 7);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const int64_t size = static_cast<int64_t>(all.images.size()) / 7;
    absl::Status status = (*plan)->KeepImages(all.images.data(), 0, 3, 7);
    if (status.code() == absl::StatusCode::kUnimplemented) return;
    ASSERT_TRUE(status.ok()) << status;
    const std::vector<int32_t> places = {6, 0, 3, 3, 5};
    SampleBatch kept;
    kept.labels = all.labels.data();
    kept.count = 5;
    kept.kept = places.data();
    std::vector<float> gradient(all.layout.total_floats());
    EXPECT_EQ((*plan)->ComputeLane(kept, 1, gradient.data()).status().code(),
              absl::StatusCode::kFailedPrecondition);  // not all images are there
    EXPECT_EQ((*plan)->KeepImages(all.images.data(), 4, 3, 7).code(),
              absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE((*plan)->KeepImages(all.images.data() + 3 * size, 3, 4, 7).ok());

    std::vector<float> images;
    for (const int32_t place : places) {
      images.insert(images.end(), all.images.begin() + place * size,
                    all.images.begin() + (place + 1) * size);
    }
    for (int i = 0; i < 3; ++i) {
      const Outcome brought = Compute(**plan, all, {images.data(), all.labels.data(), 5}, 0.25);
      ExpectSameBits(Compute(**plan, all, kept, 0.25), brought, name);
    }
    const std::vector<int32_t> wrong = {0, 7, 0, 0, 0};
    kept.kept = wrong.data();
    EXPECT_THAT(std::string((*plan)->Evaluate(kept).status().message()),
                HasSubstr("place of sample 1: 7, want 0 to 6"));
  }
}

// Bytes instead of images, with one table or with 16 of 49 elements each, in a lane that ends
// inside a block, and in more than one lane.
TEST_P(DeviceContractTest, BytesGiveTheBitsOfTheImagesThatTheyStandFor) {
  constexpr int64_t kSamples = 37, kLane = 20;
  const Graph graph = Model("lenet");
  Problem problem(graph, kSamples, /*seed=*/12);
  PlanOptions options;
  options.max_batch = kSamples;
  options.max_lane = kLane;
  const absl::StatusOr<std::unique_ptr<Plan>> plan =
      device_->Compile(graph, problem.layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
  const int64_t size = static_cast<int64_t>(problem.images.size()) / kSamples;
  std::mt19937 random(5);
  std::vector<uint8_t> bytes(problem.images.size());
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() >> 24);
  for (const int64_t tables : {1, 16}) {
    std::vector<float> values(tables * engine::kByteValues);
    for (float& value : values) value = static_cast<float>(random() >> 8) / (1 << 22) - 2.0f;
    for (int64_t i = 0; i < kSamples * size; ++i) {
      const int64_t table = i % size / (size / tables);
      problem.images[i] = values[table * engine::kByteValues + bytes[i]];
    }
    SampleBatch images = problem.batch();
    SampleBatch batch = images;
    batch.images = nullptr;
    batch.bytes = bytes.data();
    batch.byte_values = values.data();
    batch.byte_tables = tables;
    if (!(*plan)->takes_bytes()) {
      const absl::Status status = (*plan)->Evaluate(batch).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr("batch.bytes"));
      continue;
    }
    std::vector<float> want(kSamples * 10, kGarbage), got(kSamples * 10, kGarbage);
    ASSERT_TRUE((*plan)->Predict(images, want.data()).ok());
    ASSERT_TRUE((*plan)->Predict(batch, got.data()).ok());
    EXPECT_EQ(got, want) << tables;
    const absl::StatusOr<LaneResult> wanted = (*plan)->Evaluate(images);
    const absl::StatusOr<LaneResult> given = (*plan)->Evaluate(batch);
    ASSERT_TRUE(wanted.ok() && given.ok()) << given.status();
    EXPECT_EQ(given->loss_sum, wanted->loss_sum) << tables;
    EXPECT_EQ(given->correct, wanted->correct) << tables;
    images.count = kLane;
    batch.count = kLane;
    ExpectSameBits(Compute(**plan, problem, batch, 0.25), Compute(**plan, problem, images, 0.25),
                   std::to_string(tables) + " tables");

    for (const int64_t wrong : {0, -1, 3}) {  // 784 elements
      batch.byte_tables = wrong;
      const absl::Status status = (*plan)->Evaluate(batch).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
      EXPECT_THAT(std::string(status.message()), HasSubstr("batch.byte_tables: "));
    }
  }
}

TEST_P(DeviceContractTest, WrongBatchesAreNamedAndChangeNothing) {
  const Graph graph = Model("lenet");
  Problem problem(graph, 20, /*seed=*/1);
  PlanOptions options;
  options.max_batch = 20;
  absl::StatusOr<std::unique_ptr<Plan>> plan = device_->Compile(graph, problem.layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> gradient(problem.layout.total_floats(), kGarbage);
  const auto error = [&](const SampleBatch& batch) {
    return (*plan)->ComputeLane(batch, 1.0, gradient.data()).status();
  };
  EXPECT_EQ(error(problem.batch()).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());

  for (const int32_t label : {-1, 10, std::numeric_limits<int32_t>::max()}) {
    problem.labels[18] = label;
    const absl::Status status = error(problem.batch());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("sample 18"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(label)));
    EXPECT_EQ((*plan)->Evaluate(problem.batch()).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  problem.labels[18] = 0;
  for (const int64_t count : {int64_t{0}, int64_t{-1}, int64_t{21}}) {
    SampleBatch batch = problem.batch();
    batch.count = count;
    EXPECT_EQ(error(batch).code(), absl::StatusCode::kInvalidArgument) << count;
  }
  EXPECT_THAT(gradient, ::testing::Each(kGarbage));
  EXPECT_TRUE((*plan)->ComputeLane(problem.batch(), 1.0, gradient.data()).ok());
}

TEST_P(DeviceContractTest, NonFiniteNumbersAreData) {
  const Graph graph = Model("lenet");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto any_non_finite = [](const std::vector<float>& values) {
    return std::any_of(values.begin(), values.end(), [](float v) { return !std::isfinite(v); });
  };
  for (const float bad : {nan, infinity}) {
    Problem problem(graph, 20, /*seed=*/1);
    problem.images[3 * 784 + 400] = bad;
    absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 20);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Outcome outcome = Compute(**plan, problem, problem.batch(), 1.0);
    EXPECT_TRUE(any_non_finite(outcome.gradient)) << "image " << bad;
  }
  for (const char* const name : {"conv1.weight", "conv2.weight", "fc1.bias", "fc3.weight"}) {
    Problem problem(graph, 20, /*seed=*/1);
    problem.weights[problem.layout.Find(name)->offset] = nan;
    absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 20);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const Outcome outcome = Compute(**plan, problem, problem.batch(), 1.0);
    EXPECT_TRUE(std::isnan(outcome.result.loss_sum)) << name;
    EXPECT_EQ(outcome.result.correct, 0) << name;
    EXPECT_TRUE(any_non_finite(outcome.gradient)) << name;
  }
  // No NaN stays behind.
  const Problem problem(graph, 20, /*seed=*/1);
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 20);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Outcome want = Compute(**plan, problem, problem.batch(), 1.0);
  Problem poisoned = problem;
  std::fill(poisoned.images.begin(), poisoned.images.end(), nan);
  Compute(**plan, poisoned, poisoned.batch(), 1.0);
  Outcome again = Compute(**plan, problem, problem.batch(), 1.0);
  EXPECT_TRUE(std::isfinite(again.result.loss_sum));
  EXPECT_FALSE(any_non_finite(again.gradient));
  EXPECT_EQ(again.result.correct, want.result.correct);
}

TEST_P(DeviceContractTest, BackwardStagesSayHowFarTheGradientIsReady) {
  const Graph graph = Model("lenet");
  const Problem problem(graph, 16, /*seed=*/1);
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device_, problem, 16);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const engine::PlanInfo& info = (*plan)->info();
  EXPECT_GT(info.planned_bytes(), 0);
  int64_t before = 0;
  for (const engine::BackwardStage& stage : info.backward) {
    EXPECT_GE(stage.ready_floats, before) << stage.node;
    EXPECT_EQ(stage.ready_floats % 16, 0) << stage.node;
    before = stage.ready_floats;
    // A layer's own parameters are ready with it; those of the layer before are not.
    for (const training::LayerRange& layer : problem.layout.layers()) {
      if (layer.name == stage.node) {
        EXPECT_EQ(stage.ready_floats, layer.range.end()) << stage.node;
      }
    }
  }
  EXPECT_EQ(before, problem.layout.total_floats());
}

TEST_P(DeviceContractTest, CompileRefusesByName) {
  const Graph graph = Model("lenet");
  const training::FlatLayout layout = LayoutOf(graph);
  const auto error = [&](const Graph& g, const training::FlatLayout& l, PlanOptions options) {
    const absl::StatusOr<std::unique_ptr<Plan>> plan = device_->Compile(g, l, options);
    return plan.status();
  };
  PlanOptions options;
  options.max_batch = 0;
  EXPECT_THAT(std::string(error(graph, layout, options).message()), HasSubstr("max_batch: 0"));
  options.max_batch = 1;
  options.threads = 0;
  EXPECT_THAT(std::string(error(graph, layout, options).message()), HasSubstr("threads: 0"));

  const training::FlatLayout other = LayoutOf(Model("lenet_d2l"));
  EXPECT_EQ(error(graph, other, {}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(error(graph, other, {}).message()),
              AnyOf(HasSubstr("conv1.weight"), HasSubstr("fc3.weight")));

  training::Conv grouped = MakeConv(4, 3, 3);
  grouped.group = 2;
  const Graph unusual = Chain({2, 5, 5}, {grouped});
  const absl::Status status = error(unusual, LayoutOf(unusual), {});
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("n0"));
  }
}

}  // namespace
}  // namespace capstan::testing
