// Tests that a step allocates nothing after the first call of its kind.
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>

#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/plugin/plugin_device.h"
#include "gtest/gtest.h"
#include "training/graph/case_graphs.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/ops/concat/concat.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

void Count() {
  if (counting.load(std::memory_order_relaxed)) ++allocations;
}

}  // namespace

// The underlying C functions. glibc lets a program replace malloc, and gives its own these names.
// NOLINTBEGIN(bugprone-reserved-identifier)
extern "C" void* __libc_malloc(size_t size);
extern "C" void* __libc_memalign(size_t alignment, size_t size);
// NOLINTEND(bugprone-reserved-identifier)

__attribute__((noinline)) void* operator new(size_t size) {
  Count();
  void* const memory = __libc_malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

extern "C" void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}
extern "C" int posix_memalign(void** memory, size_t alignment, size_t size) {
  Count();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
extern "C" void* aligned_alloc(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}

namespace capstan::engine {
namespace {

void OneStep(Plan& plan, const std::vector<float>& weights, const SampleBatch& batch,
             std::vector<float>& gradient) {
  EXPECT_TRUE(plan.LoadWeights(weights.data()).ok());
  EXPECT_TRUE(plan.ComputeLane(batch, 0.01, gradient.data()).ok());
  const SampleBatch lanes[] = {batch, {}, batch};
  LaneResult results[3];
  const size_t count = plan.info().max_lanes > 1 ? 3 : 1;
  EXPECT_TRUE(plan.ComputeLanes({lanes, count}, 0.01, gradient.data(), {results, count}).ok());
  EXPECT_TRUE(plan.Evaluate(batch).ok());
}

TEST(AllocationTest, TheCounterSeesBothKinds) {
  allocations = 0;
  counting = true;
  std::vector<char>* const memory = new std::vector<char>(100);
  void* volatile const plain = std::malloc(100);
  counting = false;
  delete memory;
  std::free(plain);
  EXPECT_EQ(allocations, 3);
}

std::unique_ptr<Device> OpenFake() {
  LoaderOptions options;
  options.driver_library = "";
  options.candidates = {CAPSTAN_FAKE_PLUGIN};
  const absl::StatusOr<LoadedPlugin> plugin = LoadPlugin(options);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  return *OpenPluginDevice(*plugin, "cuda:0", 0);
}

// With lanes of `most` samples and of fewer.
void StepsOfGraphAllocateNothing(Device& device, const training::Graph& graph, int64_t most,
                                 bool time_kernels = false) {
  const absl::StatusOr<training::FlatLayout> layout =
      training::FlatLayout::Create(training::TensorSpecs(graph));
  ASSERT_TRUE(layout.ok()) << layout.status();
  PlanOptions options;
  options.max_batch = most;
  options.max_lanes = 4;
  options.threads = 2;
  options.time_kernels = time_kernels;
  absl::StatusOr<std::unique_ptr<Plan>> plan = device.Compile(graph, *layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<float> weights(layout->total_floats(), 0.01f);
  const std::vector<float> images(most * graph.value_elements(0), 0.5f);
  const std::vector<int32_t> labels(most, 3);
  const std::vector<int64_t> ids(most, 7);
  std::vector<float> gradient(layout->total_floats());
  SampleBatch full = {images.data(), labels.data(), most};
  full.ids = ids.data();
  SampleBatch part = full;
  part.count = most / 3;
  for (int warm = 0; warm < 2; ++warm) {
    OneStep(**plan, weights, full, gradient);
    OneStep(**plan, weights, part, gradient);
  }

  allocations = 0;
  counting = true;
  for (int step = 0; step < 5; ++step) {
    OneStep(**plan, weights, full, gradient);
    OneStep(**plan, weights, part, gradient);
  }
  counting = false;
  EXPECT_EQ(allocations, 0) << graph.name();
}

// With images that are `side` pixels wide.
void StepsAllocateNothing(Device& device, const std::vector<const char*>& names, int64_t most = 70,
                          int64_t side = 28) {
  for (const char* const name : names) {
    const absl::StatusOr<training::Graph> graph = training::MakeModel(name, 10, {1, side, side});
    ASSERT_TRUE(graph.ok()) << graph.status();
    StepsOfGraphAllocateNothing(device, *graph, most);
  }
}

TEST(AllocationTest, StepsAllocateNothing) {
  const std::unique_ptr<Device> device = MakeCpuDevice({});
  StepsAllocateNothing(*device, {"lenet", "lenet_d2l", "mlp"});
  // Convolutions with strides, batch normalisation, sums, other poolings.
  StepsAllocateNothing(*device, {"resnet18_v1"}, /*most=*/18, /*side=*/8);
}

// Operators that no built-in model has: Concat, Dropout, both forms of Gelu.
TEST(AllocationTest, StepsOfOtherOperatorsAllocateNothing) {
  const absl::StatusOr<training::Graph> graph =
      training::Graph::Build("others", {40},
                             {{"in", training::Gemm{40}, {0}},
                              {"gelu", training::Gelu(), {1}},
                              {"tanh", training::Gelu{"tanh"}, {1}},
                              {"drop", training::Dropout(), {2}},
                              {"concat", training::Concat{1}, {3, 4}},
                              {"head", training::Gemm{10}, {5}},
                              {"loss", training::SoftmaxCrossEntropyLoss(), {6}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  StepsOfGraphAllocateNothing(*MakeCpuDevice({}), *graph, /*most=*/70);
}

TEST(AllocationTest, TimedStepsAllocateNothing) {
  const absl::StatusOr<training::Graph> graph = training::MakeModel("lenet", 10, {1, 28, 28});
  ASSERT_TRUE(graph.ok()) << graph.status();
  StepsOfGraphAllocateNothing(*MakeCpuDevice({}), *graph, /*most=*/70, /*time_kernels=*/true);
}

// Operators of transformers, those that work element by element or sum within a sample, and tables.
TEST(AllocationTest, StepsOfTransformersAndArithmeticAllocateNothing) {
  for (const auto& graph : {training::AttentionGraph({.layers = 2}), training::ArithmeticGraph(),
                            training::EmbeddingGraph()}) {
    ASSERT_TRUE(graph.ok()) << graph.status();
    StepsOfGraphAllocateNothing(*MakeCpuDevice({}), *graph, /*most=*/70);
  }
}

// The host's part of a plug-in's step, on both sides of the ABI.
TEST(AllocationTest, StepsOfAPluginAllocateNothing) { StepsAllocateNothing(*OpenFake(), {"mlp"}); }

}  // namespace
}  // namespace capstan::engine
