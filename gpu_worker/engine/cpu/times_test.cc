// Tests the times of kernels (PlanOptions::time_kernels) and the measured limits of the processor.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/cpu/limits.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/init/init.h"

namespace capstan::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int64_t kSamples = 40;

double WallSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A plan of lenet with a batch and weights.
struct Timed {
  explicit Timed(bool time_kernels)
      : graph(training::MakeModel("lenet", 10, {1, 28, 28}).value()),
        layout(training::FlatLayout::Create(training::TensorSpecs(graph)).value()),
        weights(layout.total_floats()),
        gradient(layout.total_floats()),
        images(kSamples * graph.value_elements(0)),
        labels(kSamples, 3) {
    PlanOptions options;
    options.max_batch = kSamples;
    options.threads = 2;
    options.time_kernels = time_kernels;
    plan = MakeCpuDevice({})->Compile(graph, layout, options).value();
    training::InitRange(layout, {}, /*seed=*/1, 0, absl::MakeSpan(weights));
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float& pixel : images) pixel = normal(random);
    batch = {images.data(), labels.data(), kSamples};
  }

  LaneResult Step() {
    EXPECT_TRUE(plan->LoadWeights(weights.data()).ok());
    return plan->ComputeLane(batch, 0.01, gradient.data()).value();
  }

  const training::Graph graph;
  const training::FlatLayout layout;
  std::vector<float> weights, gradient, images;
  std::vector<int32_t> labels;
  SampleBatch batch;
  std::unique_ptr<Plan> plan;
};

TEST(KernelTimesTest, OffByDefaultAndWithoutInfluenceOnTheBits) {
  Timed plain(/*time_kernels=*/false), timed(/*time_kernels=*/true);
  EXPECT_FALSE(PlanOptions().time_kernels);
  const LaneResult want = plain.Step(), got = timed.Step();
  EXPECT_THAT(plain.plan->kernel_times(), IsEmpty());
  EXPECT_FALSE(timed.plan->kernel_times().empty());
  EXPECT_EQ(std::memcmp(&got.loss_sum, &want.loss_sum, sizeof(double)), 0);
  EXPECT_EQ(std::memcmp(timed.gradient.data(), plain.gradient.data(),
                        plain.gradient.size() * sizeof(float)),
            0);
}

TEST(KernelTimesTest, AnEntryForEachKernelInForwardOrder) {
  Timed timed(/*time_kernels=*/true);
  std::vector<std::string> names;
  for (const KernelTime& time : timed.plan->kernel_times()) {
    names.push_back(time.name);
    EXPECT_EQ(time.load_seconds + time.forward_seconds + time.backward_seconds, 0) << time.name;
  }
  EXPECT_THAT(names, ElementsAre("input", "conv1 to pool1", "conv2 to pool2", "flatten",
                                 "fc1 to fc1_relu", "fc2 to fc2_relu", "fc3", "loss"));
  timed.Step();
  const absl::Span<const KernelTime> times = timed.plan->kernel_times();
  ASSERT_EQ(times.size(), names.size());
  int next = 0;  // the nodes follow each other, and every node has a kernel
  for (const KernelTime& time : times) {
    const bool layer = time.kernel != "layout" && time.kernel != "loss";
    if (time.first < 0) continue;
    EXPECT_EQ(time.first, next) << time.name;
    next = time.last + 1;
    if (time.name == "flatten") {
      EXPECT_EQ(time.load_seconds + time.forward_seconds + time.backward_seconds, 0);
      continue;
    }
    EXPECT_GT(time.forward_seconds, 0) << time.name;
    EXPECT_EQ(time.backward_seconds > 0, layer) << time.name;
  }
  EXPECT_EQ(next, timed.graph.node_count());
  EXPECT_EQ(times[0].first, -1);
  EXPECT_GT(times[0].load_seconds, 0);  // the flat copy of the weights
  EXPECT_THAT(times[1].kernel, StartsWith("direct"));
}

TEST(KernelTimesTest, TheySumToTheStep) {
  Timed timed(/*time_kernels=*/true);
  double best = 0;  // other work of the machine may come between the last kernel and the return
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(timed.plan->LoadWeights(timed.weights.data()).ok());
    const double begin = WallSeconds();
    ASSERT_TRUE(timed.plan->ComputeLane(timed.batch, 0.01, timed.gradient.data()).ok());
    const double whole = WallSeconds() - begin;
    double sum = 0;
    for (const KernelTime& time : timed.plan->kernel_times()) {
      sum += time.forward_seconds + time.backward_seconds;
    }
    EXPECT_LE(sum, whole * (1 + 1e-9));
    best = std::max(best, sum / whole);
  }
  EXPECT_GT(best, 0.95);
}

TEST(KernelTimesTest, EvaluationAndPredictionLeaveThem) {
  Timed timed(/*time_kernels=*/true);
  timed.Step();
  std::vector<double> before, after;
  for (const KernelTime& time : timed.plan->kernel_times()) before.push_back(time.forward_seconds);
  std::vector<float> logits(kSamples * 10);
  ASSERT_TRUE(timed.plan->Evaluate(timed.batch).ok());
  ASSERT_TRUE(timed.plan->Predict(timed.batch, logits.data()).ok());
  for (const KernelTime& time : timed.plan->kernel_times()) after.push_back(time.forward_seconds);
  EXPECT_EQ(before, after);
}

TEST(CpuLimitsTest, NamesTheProcessor) {
  EXPECT_EQ(ProcessorName("processor\t: 0\nmodel name\t: AMD EPYC 7B13: x \nmodel name\t: other\n"),
            "AMD EPYC 7B13: x");
  EXPECT_EQ(ProcessorName("processor\t: 0\nmodel\t: 1\n"), "");
  EXPECT_EQ(ProcessorName("model name"), "");
  EXPECT_EQ(ProcessorName(""), "");
}

TEST(CpuLimitsTest, WiderRegistersComputeMore) {
  const std::vector<const BlockedMath*>& present = PresentMath();
  const absl::StatusOr<DeviceLimits> widest = MeasureCpuLimits(*present.front(), /*threads=*/1);
  ASSERT_TRUE(widest.ok()) << widest.status();
  EXPECT_EQ(widest->instruction_set, present.front()->target);
  // The slowest processor of these days does more, and none does so much on one thread.
  EXPECT_GT(widest->flops_per_second, 1e9);
  EXPECT_LT(widest->flops_per_second, 1e12);
  EXPECT_GT(widest->memory_bytes_per_second, 1e8);
  EXPECT_LT(widest->memory_bytes_per_second, 1e12);
  if (present.size() < 2) return;
  const absl::StatusOr<DeviceLimits> baseline = MeasureCpuLimits(*present.back(), /*threads=*/1);
  ASSERT_TRUE(baseline.ok()) << baseline.status();
  EXPECT_GT(widest->flops_per_second, 1.5 * baseline->flops_per_second);
}

TEST(CpuLimitsTest, RefusesNumbersOfThreads) {
  for (const int threads : {0, -1, 1025}) {
    const absl::Status status = MeasureCpuLimits(*PresentMath().front(), threads).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("threads: " + std::to_string(threads) + ", want 1 to 1024"));
  }
  EXPECT_EQ(MakeCpuDevice({})->MeasureLimits(0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace capstan::engine
