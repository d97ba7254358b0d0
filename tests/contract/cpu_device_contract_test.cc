// The CPU device under the contract: on oneDNN where the build has it, and on plain loops.
#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/device/open.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "training/graph/models.h"

namespace capstan::testing {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<engine::Device> OpenCpu() {
  absl::StatusOr<std::unique_ptr<engine::Device>> device = engine::OpenDevice("cpu");
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

std::unique_ptr<engine::Device> OpenPlain() {
  engine::CpuDeviceOptions options;
  options.use_onednn = false;
  return engine::MakeCpuDevice(options);
}

std::unique_ptr<engine::Device> OpenPhases() {
  engine::CpuDeviceOptions options;
  options.chain_plan = false;
  return engine::MakeCpuDevice(options);
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContractTest,
                         ::testing::Values(DeviceCase{"Default", OpenCpu},
                                           DeviceCase{"Plain", OpenPlain, 2e-5, 2e-4},
                                           DeviceCase{"Phases", OpenPhases}),
                         DeviceCaseName);

TEST(OpenDeviceTest, NamesWhatItDoesNotHave) {
  EXPECT_EQ((*engine::OpenDevice("cpu:1"))->name(), "cpu:1");
  if (const absl::Status status = engine::OpenDevice("cuda").status(); !status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("plug-in"));
  }
  for (const char* const name : {"", "gpu", "cpu:", "cpu:-1", "cpu:1x", "cpux", "cpu:99999"}) {
    EXPECT_EQ(engine::OpenDevice(name).status().code(), absl::StatusCode::kNotFound) << name;
  }
}

// What a silent fall to reference code would cost: a factor of 100 and more.
TEST(CpuDeviceTest, BuiltInModelsRunOnRealKernels) {
  if (OpenCpu()->description() == "plain loops") GTEST_SKIP() << "a build without oneDNN";
  for (const char* const name : {"lenet", "lenet_d2l", "mlp"}) {
    const absl::StatusOr<training::Graph> graph = training::MakeModel(name, 10, {1, 28, 28});
    ASSERT_TRUE(graph.ok()) << graph.status();
    engine::PlanOptions options;
    options.max_batch = 64;
    const absl::StatusOr<std::unique_ptr<engine::Plan>> plan =
        OpenCpu()->Compile(*graph, LayoutOf(*graph), options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const std::string& kernel : (*plan)->info().kernels) {
      EXPECT_THAT(kernel, ::testing::Not(HasSubstr("ref"))) << name;
      EXPECT_THAT(kernel, ::testing::Not(HasSubstr("plain"))) << name;
    }
    // conv1 and fc1 of the nets: two and three passes; of mlp, fc1 has no gradient by its input.
    EXPECT_EQ((*plan)->info().kernels.size(), 3 * (graph->parameters().size() / 2) - 1) << name;
  }
}

}  // namespace
}  // namespace capstan::testing
