#include "gpu_worker/engine/plugin/plugin_device.h"

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/plugin/plugin_plan.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::engine {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PluginDeviceTest : public ::testing::Test {
 protected:
  PluginDeviceTest()
      : graph_(*training::MakeModel("lenet", 10, {1, 28, 28})),
        layout_(*training::FlatLayout::Create(training::TensorSpecs(graph_))) {
    LoaderOptions options;
    options.driver_library = "";
    options.candidates = {CAPSTAN_FAKE_PLUGIN};
    plugin_ = *LoadPlugin(options);
  }
  ~PluginDeviceTest() override {
    unsetenv("CAPSTAN_FAKE_FAIL");
    unsetenv("CAPSTAN_FAKE_FREE_MIB");
  }

  std::unique_ptr<Device> Open(int index) {
    absl::StatusOr<std::unique_ptr<Device>> device =
        OpenPluginDevice(plugin_, "cuda:" + std::to_string(index), index);
    EXPECT_TRUE(device.ok()) << device.status();
    return *std::move(device);
  }

  absl::StatusOr<std::unique_ptr<Plan>> Compile(Device& device, int64_t max_batch) {
    PlanOptions options;
    options.max_batch = max_batch;
    return device.Compile(graph_, layout_, options);
  }

  const training::Graph graph_;
  const training::FlatLayout layout_;
  LoadedPlugin plugin_;
};

TEST_F(PluginDeviceTest, DescribesItselfAndKnowsItsIndex) {
  EXPECT_EQ(Open(1)->name(), "cuda:1");
  EXPECT_EQ(Open(1)->description(), "fake card, 1024 MiB, plain loops for tests");
  EXPECT_EQ(Open(1)->uuid(), "GPU-fake-1");
  EXPECT_EQ(Open(0)->uuid(), "GPU-fake-0");
  const absl::Status status = OpenPluginDevice(plugin_, "cuda:2", 2).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "device cuda:2: no such GPU here, want 0 to 1");
}

TEST_F(PluginDeviceTest, OutOfMemoryComesWithNumbersAndASuggestionThatFits) {
  setenv("CAPSTAN_FAKE_FREE_MIB", "64", 1);
  const std::unique_ptr<Device> device = Open(0);
  const absl::Status status = Compile(*device, 4096).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string text(status.message());
  EXPECT_THAT(text, AllOf(HasSubstr("device cuda:0: out of GPU memory: a plan for 4096 samples"),
                          HasSubstr("64.0 MiB of 64.0 MiB are free"), HasSubstr("smaller batch")));
  const size_t at = text.find("up to ");
  ASSERT_NE(at, std::string::npos) << text;
  const int64_t fits = std::atoll(text.c_str() + at + 6);
  EXPECT_GT(fits, 100);
  EXPECT_FALSE(Compile(*device, fits + 1).ok());
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device, fits);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_LE((*plan)->info().planned_bytes(), 64 << 20);
  // For a second plan there is no memory left. The other card has its own.
  EXPECT_EQ(Compile(*device, fits).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Compile(*Open(1), fits).ok());
  plan->reset();
  EXPECT_TRUE(Compile(*device, fits).ok());
}

TEST_F(PluginDeviceTest, AFaultEndsTheCallWithItsName) {
  const std::unique_ptr<Device> device = Open(1);
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<float> weights(layout_.total_floats(), 0.0f), image(784, 0.5f);
  std::vector<float> gradient(weights.size());
  const int32_t label = 3;
  ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
  ASSERT_TRUE((*plan)->ComputeLane({image.data(), &label, 1}, 1, gradient.data()).ok());
  setenv("CAPSTAN_FAKE_FAIL", "fault", 1);
  const absl::Status status =
      (*plan)->ComputeLane({image.data(), &label, 1}, 1, gradient.data()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("device cuda:1"), HasSubstr("illegal memory access")));
}

TEST_F(PluginDeviceTest, WhatIsNoPrecisionIsRefused) {
  PlanOptions options;
  options.precision = static_cast<Precision>(4);
  const absl::Status status = Open(0)->Compile(graph_, layout_, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("precision: 4"));
}

TEST_F(PluginDeviceTest, KernelsAreNotTimedNorLimitsMeasured) {
  const std::unique_ptr<Device> device = Open(1);
  PlanOptions options;
  options.time_kernels = true;
  EXPECT_EQ(
      device->Compile(graph_, layout_, options).status(),
      absl::UnimplementedError("device cuda:1: time_kernels: only CPU devices time their kernels"));
  EXPECT_EQ(device->MeasureLimits(1).status(),
            absl::UnimplementedError("device cuda:1: only the limits of CPUs are measured"));
  absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*device, 1);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE((*plan)->kernel_times().empty());
}

TEST_F(PluginDeviceTest, AGraphThatDrawsWantsIdsInTraining) {
  std::vector<training::GraphNode> nodes = graph_.nodes();
  training::GraphNode& relu = nodes[1];
  ASSERT_EQ(relu.name, "conv1_relu");
  relu.op = training::Dropout();  // has no parameters, so the layout stays the same
  const absl::StatusOr<training::Graph> graph = training::Graph::Build("drops", {1, 28, 28}, nodes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto plan = Open(0)->Compile(*graph, layout_, PlanOptions());
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> weights(layout_.total_floats(), 0.01f), image(784, 0.5f), gradient(weights);
  const int32_t label = 3;
  ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
  SampleBatch batch = {image.data(), &label, 1};
  EXPECT_TRUE((*plan)->Evaluate(batch).ok());
  const auto train = [&] { return (*plan)->ComputeLane(batch, 1, gradient.data()).status(); };
  EXPECT_EQ(train().message(), "batch.ids: none, want 1 for graph drops, which draws");
  int64_t id = int64_t{1} << 48;
  batch.ids = &id;
  EXPECT_EQ(train().message(), "id of sample 0: 281474976710656, want 0 to 281474976710655");
  id = 7;
  EXPECT_TRUE(train().ok());
}

TEST_F(PluginDeviceTest, ReferencesHaveNoSixteenBits) {
  const training::Graph graph = *training::MakeModel("resnet18_v1", 10, {3, 32, 32});
  const training::FlatLayout layout = *training::FlatLayout::Create(training::TensorSpecs(graph));
  PlanOptions options;
  options.precision = Precision::kBf16;
  const absl::Status status = Open(0)->Compile(graph, layout, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("precision"));
  setenv("CAPSTAN_FAKE_FREE_MIB", "200", 1);
  options.precision = Precision::kFp32;
  options.max_batch = 100;
  const absl::Status memory = Open(0)->Compile(graph, layout, options).status();
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.message()), HasSubstr("samples would fit"));
}

TEST_F(PluginDeviceTest, ABatchCarriesWhatDrawsAreCountedBy) {
  const std::vector<int64_t> ids = {5, int64_t{1} << 40};
  SampleBatch batch;
  batch.count = 2;
  batch.ids = ids.data();
  batch.seed = ~uint64_t{0};
  batch.epoch = 9;
  const capstan_batch flat = PluginBatch(batch, /*target_size=*/0);
  EXPECT_EQ(flat.ids, ids.data());
  EXPECT_EQ(flat.seed, ~uint64_t{0});
  EXPECT_EQ(flat.epoch, 9u);
}

// Bytes are scaled on the device. They give the results of float images with the same values.
TEST_F(PluginDeviceTest, TakesImagesOfBytes) {
  const absl::StatusOr<SentGraph> sent = SentGraph::Of(graph_, layout_);
  ASSERT_TRUE(sent.ok()) << sent.status();
  capstan_compile_request request = {};
  sent->Describe(request);
  request.deterministic = 1;
  request.max_batch = 2;
  capstan_plan* plan = nullptr;
  capstan_error error = {};
  ASSERT_EQ(plugin_.table->compile(&request, &plan, &error), 0) << error.text;
  std::vector<float> weights(layout_.total_floats());
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = std::sin(static_cast<float>(i));
  ASSERT_EQ(plugin_.table->load_weights(plan, weights.data(), &error), 0);

  std::vector<uint8_t> bytes(2 * 784);
  std::vector<float> floats(bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(i * 37 % 256);
    floats[i] = static_cast<float>(bytes[i]) * 0.0078125f - 1.0f;
  }
  std::vector<float> want(20), got(20);
  capstan_batch batch = {};
  batch.images = floats.data();
  batch.count = 2;
  ASSERT_EQ(plugin_.table->predict(plan, &batch, want.data(), &error), 0);
  batch.images = bytes.data();
  batch.image_type = CAPSTAN_IMAGE_UINT8;
  batch.image_scale = 0.0078125f;
  batch.image_shift = -1.0f;
  ASSERT_EQ(plugin_.table->predict(plan, &batch, got.data(), &error), 0);
  EXPECT_EQ(got, want);
  plugin_.table->free_plan(plan);
}

TEST_F(PluginDeviceTest, FloatElementsAgreeWithDoubleOnes) {
  std::vector<float> weights(layout_.total_floats()), images(4 * 784);
  for (size_t i = 0; i < weights.size(); ++i) {
    weights[i] = 0.1f * std::sin(static_cast<float>(i));
  }
  for (size_t i = 0; i < images.size(); ++i) images[i] = std::cos(static_cast<float>(i * i % 97));
  const std::vector<int32_t> labels = {3, 1, 4, 1};
  std::vector<float> gradients[2];
  for (const bool wide : {false, true}) {
    setenv("CAPSTAN_FAKE_ELEMENTS", wide ? "double" : "float", 1);
    absl::StatusOr<std::unique_ptr<Plan>> plan = Compile(*Open(0), 4);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE((*plan)->LoadWeights(weights.data()).ok());
    gradients[wide].resize(weights.size());
    ASSERT_TRUE(
        (*plan)->ComputeLane({images.data(), labels.data(), 4}, 1, gradients[wide].data()).ok());
  }
  unsetenv("CAPSTAN_FAKE_ELEMENTS");
  EXPECT_NE(gradients[0], gradients[1]);
  for (size_t i = 0; i < weights.size(); ++i) ASSERT_NEAR(gradients[0][i], gradients[1][i], 2e-5);
}

}  // namespace
}  // namespace capstan::engine
