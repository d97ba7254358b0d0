// The CUDA plug-in's own sources and kernels under the contract, on a stand-in for CUDA
// (tests/support/fake_cuda). Plans, streams, events, captured graphs, descriptors and launches are
// the real ones; the card and NVIDIA's libraries are replaced.
#include <cmath>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cuda/update_segment.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "tests/contract/device_group.h"
#include "tests/contract/plugin_card.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/optim/apply.h"
#include "training/optim/sgd.h"

namespace capstan::testing {
namespace {

std::unique_ptr<engine::Device> Open(int index, const char* world) {
  setenv("CAPSTAN_FAKE_CUDA", world, 1);
  return OpenPluginCard(CAPSTAN_CUDA_ON_CPU, index);
}
std::unique_ptr<engine::Device> OpenCard() { return Open(0, ""); }

INSTANTIATE_TEST_SUITE_P(CudaOnCpu, DeviceContractTest,
                         ::testing::Values(DeviceCase{"Card", OpenCard, 1e-4, 2e-4}),
                         DeviceCaseName);

std::vector<std::unique_ptr<engine::Device>> Cards(const std::vector<int>& indices,
                                                   const char* world) {
  std::vector<std::unique_ptr<engine::Device>> devices;
  for (const int index : indices) devices.push_back(Open(index, world));
  return devices;
}

TEST(CudaOnCpuGroupTest, AGroupGivesTheHostsSums) {
  ExpectGroupSums(Cards({0, 1, 2}, "devices=3"), "lenet", 5);
  ExpectGroupSums(Cards({0, 1}, "peers=none"), "lenet", 5);
  ExpectGroupSums(Cards({0, 0}, ""), "lenet", 5);
}

TEST(CudaOnCpuGroupTest, AGroupSumsAResnet) {
  ExpectGroupSums(Cards({0, 1, 2}, "devices=3"), SmallResnet(), 3);
  ExpectGroupSums(Cards({0, 0}, ""), SmallResnet(), 3);
}

TEST(CudaOnCpuGroupTest, AGroupUpdatesAsTheHost) {
  ExpectGroupUpdates(Cards({0, 1, 2}, "devices=3"), "lenet", 3);
  ExpectGroupUpdates(Cards({0, 0}, ""), "lenet", 3);
}

// Statistics and tensors that are not decayed. A single card has a run for each part.
TEST(CudaOnCpuGroupTest, AGroupUpdatesMoreRunsThanAKernelTakes) {
  const training::Graph graph = ManyTensors();
  const auto layout = *training::FlatLayout::Create(training::TensorSpecs(graph));
  const auto decays = *training::Sgd::Create({0.9, false, 0.01}, {.decay_weights_only = true});
  const auto parts = training::UpdateParts(layout, decays, {.learning_rate = 0.1});
  ASSERT_EQ(parts.back().rule.form, training::RuleForm::kStatistic);
  ASSERT_GT(parts.size(), engine::cuda::kMostUpdateSegments + 1u);
  ExpectGroupUpdates(Cards({0, 1}, "devices=2"), graph, 2);
}

// By the UUID two workers of a host know that they have the same card.
TEST(CudaOnCpuTest, ACardSaysItsUuidAsTheDriverPrintsIt) {
  const auto cards = Cards({0, 1}, "devices=2");
  EXPECT_EQ(cards[0]->uuid(), "GPU-00000000-0000-0000-0000-000000000001");
  EXPECT_EQ(cards[1]->uuid(), "GPU-00000000-0000-0000-0000-000000000002");
}

// Targets of 1.6 MB per batch go through both slots, beside images that take one.
TEST(CudaOnCpuTest, TargetsThatAreNumbersGoThroughTheSlots) {
  training::Gemm gemm;
  gemm.out_features = 100'000;
  const absl::StatusOr<training::Graph> graph = training::Graph::Build(
      "wide", {2}, {{"fc", gemm, {0}}, {"loss", training::MeanSquaredErrorLoss(), {1}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Problem problem(*graph, /*count=*/4, /*seed=*/2);
  const std::unique_ptr<engine::Device> device = OpenCard();
  engine::PlanOptions options;
  options.max_batch = 4;
  const auto plan = device->Compile(problem.graph, problem.layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
  std::vector<float> outputs(400'000), gradient(problem.layout.total_floats());
  ASSERT_TRUE((*plan)->Predict(problem.batch(), outputs.data()).ok());
  double want = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    want += std::pow(double{outputs[i]} - double{problem.targets[i]}, 2) / 100'000;
  }
  for (int call = 0; call < 3; ++call) {  // the last one is a captured graph
    const auto lane = (*plan)->ComputeLane(problem.batch(), 0.25, gradient.data());
    ASSERT_TRUE(lane.ok()) << lane.status();
    EXPECT_NEAR(lane->loss_sum, want, 1e-9 * want);
  }
}

// Wherever a library fails, in the first call or in the captured one, the error has its message,
// and the next plan works.
TEST(CudaOnCpuTest, AFailureLeavesNothingBehind) {
  const training::Graph graph = *training::MakeModel("lenet", 10, {1, 28, 28});
  const Problem problem(graph, /*count=*/2, /*seed=*/2);
  std::vector<float> gradient(problem.layout.total_floats());
  int failed_in = 0;  // number of the call
  const auto train = [&](const std::string& world) {
    const std::unique_ptr<engine::Device> device = Open(0, world.c_str());
    engine::PlanOptions options;
    options.max_batch = 2;
    const auto plan = device->Compile(problem.graph, problem.layout, options);
    absl::Status status = plan.status();
    if (status.ok()) status = (*plan)->LoadWeights(problem.weights.data());
    for (int call = 0; status.ok() && call < 3; ++call) {
      failed_in = call;
      status = (*plan)->ComputeLane(problem.batch(), 0.25, gradient.data()).status();
    }
    return status;
  };
  ASSERT_TRUE(train("").ok());
  const std::vector<float> want = gradient;
  std::set<int> places;
  for (int n = 1; n <= 16; ++n) {
    const absl::Status status = train("cudnn=fails:" + std::to_string(n));
    if (status.ok()) break;  // the third call runs a captured graph and calls no library any more
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cudnnBackendExecute"));
    places.insert(failed_in);
    const absl::Status next = train("");
    ASSERT_TRUE(next.ok()) << n << ": " << next;
    EXPECT_TRUE(gradient == want) << n;
  }
  EXPECT_THAT(places, ::testing::ElementsAre(0, 1));
}

// In some kernels of NVIDIA, max(NaN, 0) is 0. Such kernels are detected and not used.
TEST(CudaOnCpuTest, ANanComesOutWhereALibraryDropsIt) {
  const training::Graph graph = *training::MakeModel("mlp", 10, {1, 28, 28});
  Problem problem(graph, /*count=*/2, /*seed=*/2);
  problem.images[0] = NAN;
  for (const char* const world : {"", "lt_relu=drops"}) {
    const std::unique_ptr<engine::Device> device = Open(0, world);
    engine::PlanOptions options;
    options.max_batch = 2;
    const auto plan = device->Compile(problem.graph, problem.layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
    std::vector<float> logits(20);
    ASSERT_TRUE((*plan)->Predict(problem.batch(), logits.data()).ok());
    EXPECT_TRUE(std::isnan(logits[0])) << world;
    EXPECT_TRUE(std::isfinite(logits[10])) << world;  // the other sample
  }
}

// Whatever NVIDIA's libraries refuse runs on our own kernels.
TEST(CudaOnCpuTest, OwnKernelsComputeWhatTheLibrariesDo) {
  const training::Graph graph = *training::MakeModel("lenet", 10, {1, 28, 28});
  const Problem problem(graph, /*count=*/3, /*seed=*/2);
  std::vector<std::vector<float>> gradients;
  for (const char* const world : {"", "cudnn=none lt=none"}) {
    const std::unique_ptr<engine::Device> device = Open(0, world);
    engine::PlanOptions options;
    options.max_batch = 3;
    const auto plan = device->Compile(problem.graph, problem.layout, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
    std::vector<float>& gradient = gradients.emplace_back(problem.layout.total_floats());
    ASSERT_TRUE((*plan)->ComputeLane(problem.batch(), 0.25, gradient.data()).ok());
  }
  EXPECT_FALSE(gradients[0] == gradients[1]);  // the sums have another order
  EXPECT_THAT(gradients[1], ::testing::Pointwise(::testing::FloatNear(1e-5f), gradients[0]));
}

}  // namespace
}  // namespace capstan::testing
