// The CUDA plug-in's own sources and kernels under the contract, on a stand-in for CUDA
// (tests/support/fake_cuda): plans, streams, events, captured graphs, descriptors and launches as
// they are, the card and NVIDIA's libraries replaced.
#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/plugin/plugin_device.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "tests/contract/device_group.h"
#include "training/graph/models.h"

namespace capstan::testing {
namespace {

std::unique_ptr<engine::Device> Open(int index, const char* world) {
  setenv("CAPSTAN_FAKE_CUDA", world, 1);
  engine::LoaderOptions options;
  options.driver_library = "";
  options.candidates = {CAPSTAN_CUDA_ON_CPU};
  const absl::StatusOr<engine::LoadedPlugin> plugin = engine::LoadPlugin(options);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  absl::StatusOr<std::unique_ptr<engine::Device>> device =
      engine::OpenPluginDevice(*plugin, absl::StrCat("cuda:", index), index);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
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

TEST(CudaOnCpuGroupTest, AGroupUpdatesAsTheHost) {
  ExpectGroupUpdates(Cards({0, 1, 2}, "devices=3"), "lenet", 3);
  ExpectGroupUpdates(Cards({0, 0}, ""), "lenet", 3);
}

// Whatever NVIDIA's libraries refuse runs on kernels of ours.
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
  EXPECT_FALSE(gradients[0] == gradients[1]);  // sums of another order
  EXPECT_THAT(gradients[1], ::testing::Pointwise(::testing::FloatNear(1e-5f), gradients[0]));
}

}  // namespace
}  // namespace capstan::testing
