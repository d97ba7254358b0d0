// The same bits on every processor. Trains nets for a few steps with the loops of each instruction
// set that this processor has. The results must have one recorded hash, so that a host with only
// some of the instruction sets is compared with all others.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/blocked/math.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/device/open.h"
#include "gtest/gtest.h"
#include "tests/contract/device_cases.h"
#include "training/codec/sha256.h"
#include "training/graph/case_graphs.h"
#include "training/graph/models.h"
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/global_average_pool/global_average_pool.h"

namespace capstan::testing {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using training::Graph;

constexpr char kVariable[] = "CAPSTAN_CPU_TARGET";
constexpr const char* kWords[] = {"avx512", "avx2", "emulated"};
constexpr int64_t kSamples = 19;  // a block of 16 and one with 3
constexpr int kSteps = 3;

// In [-1, 1), and the same with every library, unlike std::normal_distribution.
class Numbers {
 public:
  float Next() { return static_cast<float>(static_cast<int64_t>(random_() >> 40)) * 0x1p-23f - 1; }
  int32_t Below(int64_t n) { return static_cast<int32_t>(random_() % n); }

 private:
  std::mt19937_64 random_{1};
};

// A stem of stride 2, a block added to its input, and a block added to a smaller copy of it. Has
// both forms of Gelu.
absl::StatusOr<Graph> ResidualGraph() {
  std::vector<training::GraphNode> nodes;
  const auto add = [&nodes](const std::string& name, training::Operator op,
                            std::vector<int> inputs) {
    nodes.push_back({name, std::move(op), std::move(inputs)});
    return static_cast<int>(nodes.size());
  };
  const auto conv = [](int64_t outputs, int64_t kernel, int64_t step) {
    training::Conv op = MakeConv(outputs, kernel, kernel);
    op.window.strides = {step, step};
    op.window.pads.fill(kernel / 2);
    op.bias = false;
    return op;
  };
  const int stem = add("stem", conv(9, 3, 2), {0});
  int y = add("bn1", training::BatchNormalization(), {stem});
  y = add("relu1", training::Relu(), {y});
  y = add("conv2", conv(9, 3, 1), {y});
  y = add("bn2", training::BatchNormalization(), {y});
  y = add("add2", training::Add(), {y, stem});
  const int first = add("gelu2", training::Gelu(), {y});
  y = add("conv3", conv(17, 3, 2), {first});
  y = add("bn3", training::BatchNormalization(), {y});
  const int copy = add("conv4", conv(17, 1, 2), {first});
  y = add("add3", training::Add(), {y, copy});
  y = add("gelu3", training::Gelu{"tanh"}, {y});
  y = add("concat", training::Concat{1}, {y, copy});
  y = add("pool", training::GlobalAveragePool(), {y});
  y = add("flatten", training::Flatten(), {y});
  y = add("head", training::Gemm{5}, {y});
  add("loss", training::SoftmaxCrossEntropyLoss{0.1}, {y});
  return Graph::Build("residual", {3, 13, 11}, nodes);
}

struct Net {
  const char* name;
  const char* hash;  // of the result of Train
};
// Computed once with all three. Only a kernel change that changes its bits may change these.
constexpr Net kNets[] = {
    {"attention", "32f76fb4dd445ac33f61e9bdd634c5fd83100ad8f6d2109e6c92711269cb93f1"},
    {"arithmetic", "89358cc37b0b0fbdc244dc3ec625c54254ad1f1f68354dd0ec72e8a60bc0984e"},
    {"embedding", "d386122a3df5679ef9d6434b456af7747f905fde03235854c55844808ec1374c"},
    {"residual", "cfa8d8eac26505b23c6daa71eb2f749a9db97f8bd4b22a60f8f0717072fd34ad"},
    {"regressor", "f86afd2587407d4e354c9bd6c4fcdac1d1639c0df117b2b3e5dcccafc8d1ae99"},
    {"lenet", "4cd091f779d2d1bb6c38420ba83f732375ee6980a49f8ff406139e0bcd9636bf"},
    {"lenet_d2l", "cc5e79f507c281c8c8863d6bda4cc2093d30879df38a218324c8ff2901d77036"},
};

absl::StatusOr<Graph> MakeNet(const std::string& name) {
  if (name == "attention") return training::AttentionGraph({.layers = 2, .tokens = 11});
  if (name == "arithmetic") return training::ArithmeticGraph();
  if (name == "regressor") return training::MakeRegressor("mlp", 3, {1, 1, 7});
  if (name == "embedding") return training::EmbeddingGraph();
  return name == "residual" ? ResidualGraph() : training::MakeModel(name, 10, {1, 28, 28});
}

// The hash of gradients, losses and weights of kSteps steps of plain SGD and of one evaluation.
std::string Train(engine::Device& device, const Graph& graph, int threads) {
  const training::FlatLayout layout = LayoutOf(graph);
  Numbers numbers;
  std::vector<float> weights(layout.total_floats());
  for (const training::Parameter& parameter : graph.parameters()) {
    float* const to = weights.data() + layout.Find(parameter.name)->offset;
    const float scale = 1 / std::sqrt(static_cast<float>(std::max<int64_t>(parameter.fan_in, 1)));
    for (int64_t i = 0; i < parameter.elements; ++i) {
      to[i] = parameter.statistic ? 1 : scale * numbers.Next();
    }
  }
  std::vector<float> images(kSamples * graph.value_elements(0));
  std::vector<int32_t> labels(kSamples);
  std::vector<float> targets(kSamples * graph.target_size());
  engine::PlanOptions options;
  options.max_batch = kSamples;
  options.threads = threads;
  const auto plan = device.Compile(graph, layout, options);
  if (!plan.ok()) return plan.status().ToString();
  training::Sha256 hash;
  const auto update = [&hash](const std::vector<float>& vector) {
    hash.Update(vector.data(), vector.size() * sizeof(float));
  };
  std::vector<float> gradient(weights.size());
  engine::SampleBatch batch = {images.data(), labels.data(), kSamples};
  batch.targets = targets.data();
  for (int step = 0; step <= kSteps; ++step) {
    for (float& value : images) value = numbers.Next();
    for (float& target : targets) target = numbers.Next();
    for (int32_t& label : labels) label = numbers.Below(graph.num_classes());
    absl::Status status = (*plan)->LoadWeights(weights.data());
    if (!status.ok()) return status.ToString();
    const auto result = step < kSteps ? (*plan)->ComputeLane(batch, 1.0 / kSamples, gradient.data())
                                      : (*plan)->Evaluate(batch);
    if (!result.ok()) return result.status().ToString();
    EXPECT_TRUE(std::isfinite(result->loss_sum)) << result->loss_sum;
    hash.Update(&result->loss_sum, sizeof(result->loss_sum));
    if (step == kSteps) break;
    update(gradient);
    for (const training::Parameter& parameter : graph.parameters()) {
      const int64_t first = layout.Find(parameter.name)->offset;
      for (int64_t i = first; i < first + parameter.elements; ++i) {
        // The gradient of a statistic is the batch's own value.
        weights[i] -= 0.1f * (parameter.statistic ? weights[i] - gradient[i] : gradient[i]);
      }
    }
    update(weights);
  }
  return hash.FinishHex();
}

class CpuTargetTest : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(All, CpuTargetTest, ::testing::ValuesIn(kWords),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CpuTargetTest, TrainsToTheSameBits) {
  const auto target = engine::CpuTarget(GetParam());
  if (target.status().code() == absl::StatusCode::kFailedPrecondition) {
    GTEST_SKIP() << "NOT TESTED HERE: " << target.status().message();
  }
  ASSERT_TRUE(target.ok()) << target.status();
  engine::CpuDeviceOptions options;
  options.target = *target;
  const auto device = engine::MakeCpuDevice(options);
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    const absl::StatusOr<Graph> graph = MakeNet(net.name);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(Train(*device, *graph, /*threads=*/2), net.hash);
  }
}

// If the variable is not set, the widest loops run, with the same bits.
TEST(CpuDeviceTest, WithoutAWordTheWidestLoopsRun) {
  const auto device = engine::MakeCpuDevice({});
  EXPECT_EQ(device->description(),
            std::string("own kernels, ") + std::string(engine::PresentMath().front()->target));
  for (const Net& net : kNets) {
    SCOPED_TRACE(net.name);
    const absl::StatusOr<Graph> graph = MakeNet(net.name);
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_EQ(Train(*device, *graph, /*threads=*/1), net.hash);
  }
}

// Sets the variable for the duration of a test.
class CpuTargetVariableTest : public ::testing::Test {
 protected:
  ~CpuTargetVariableTest() override { unsetenv(kVariable); }
  static void Set(const char* word) { ASSERT_EQ(setenv(kVariable, word, /*overwrite=*/1), 0); }
};

TEST_F(CpuTargetVariableTest, ChoosesTheLoopsOfAllGraphs) {
  const absl::StatusOr<Graph> graph = MakeNet("lenet");
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (const char* const word : kWords) {
    if (!engine::CpuTarget(word).ok()) continue;
    Set(word);
    const auto device = engine::OpenDevice("cpu:1");
    ASSERT_TRUE(device.ok()) << device.status();
    EXPECT_EQ((*device)->description(), std::string("own kernels, ") + word);
    const auto plan = (*device)->Compile(*graph, LayoutOf(*graph), engine::PlanOptions());
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_FALSE((*plan)->info().kernels.empty());
    for (const std::string& kernel : (*plan)->info().kernels) {
      EXPECT_THAT(kernel, EndsWith(std::string(", ") + word));
    }
  }
}

TEST_F(CpuTargetVariableTest, EmptyIsUnset) {
  const std::string without = (*engine::OpenDevice("cpu"))->description();
  Set("");
  const auto device = engine::OpenDevice("cpu");
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->description(), without);
}

TEST_F(CpuTargetVariableTest, RefusesAnUnknownWord) {
  for (const char* const word : {"AVX2", "avx", "neon", " avx2"}) {
    Set(word);
    const absl::Status status = engine::OpenDevice("cpu").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string("CAPSTAN_CPU_TARGET '") + word + "'"),
                      HasSubstr("want avx512, avx2 or emulated; this processor has "),
                      EndsWith("emulated")));
  }
}

// If the processor has all of them, nothing is refused here. BlockedMathTest simulates processors
// that lack some.
TEST_F(CpuTargetVariableTest, RefusesWhatTheProcessorLacks) {
  for (const char* const word : kWords) {
    if (engine::CpuTarget(word).ok()) continue;
    Set(word);
    const absl::Status status = engine::OpenDevice("cpu").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string("CAPSTAN_CPU_TARGET '") + word + "'"),
                      HasSubstr("this processor has ")));
  }
}

}  // namespace
}  // namespace capstan::testing
