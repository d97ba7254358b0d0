// The CPU device under the contract.
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/cpu/blocked/math.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/device/open.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "training/graph/models.h"

namespace capstan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<engine::Device> OpenCpu() {
  absl::StatusOr<std::unique_ptr<engine::Device>> device = engine::OpenDevice("cpu");
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContractTest, ::testing::Values(DeviceCase{"Cpu", OpenCpu}),
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

// A silent fallback to reference code would cost a factor of 100 or more; lost fusion would cost 4.
TEST(CpuDeviceTest, BuiltInModelsRunOnRealKernels) {
  const std::string loops = absl::StrCat(", ", engine::PresentMath().front()->target);
  const auto kernels = [](const std::string& name) {
    const absl::StatusOr<training::Graph> graph = training::MakeModel(name, 10, {1, 28, 28});
    EXPECT_TRUE(graph.ok()) << graph.status();
    const absl::StatusOr<std::unique_ptr<engine::Plan>> plan =
        OpenCpu()->Compile(*graph, LayoutOf(*graph), engine::PlanOptions());
    EXPECT_TRUE(plan.ok()) << plan.status();
    return (*plan)->info().kernels;
  };
  const std::string pooling = ": direct, with pooling" + loops;
  const std::string relu = ": direct, with Relu" + loops, direct = ": direct" + loops;
  EXPECT_THAT(kernels("lenet"), ElementsAre("conv1 to pool1" + pooling, "conv2 to pool2" + pooling,
                                            "flatten: view" + loops, "fc1 to fc1_relu" + relu,
                                            "fc2 to fc2_relu" + relu, "fc3" + direct));
  EXPECT_THAT(kernels("lenet_d2l"),
              ElementsAre("conv1 to pool1" + pooling, "conv2 to pool2" + pooling,
                          "flatten: view" + loops, "fc1 to fc1_relu" + relu, "fc2" + direct));
  EXPECT_THAT(kernels("mlp"), ElementsAre("flatten: view" + loops, "fc1 to fc1_relu" + relu,
                                          "fc2 to fc2_relu" + relu, "fc3" + direct));
}

}  // namespace
}  // namespace capstan::testing
