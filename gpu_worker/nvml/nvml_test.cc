#include "gpu_worker/nvml/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/nvml/fake_nvml_world.h"

namespace capstan::gpu_worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::StartsWith;

TEST(NvmlTest, ListsAndSamplesEveryGpu) {
  FakeNvmlWorld world(
      "driver 580.95.05\n"
      "gpu uuid=GPU-a name=NVIDIA_H200 bus=00000000:1B:00.0 total=150754820096 used=1073741824 "
      "util=50 temp=41 energy=123456 pids=34,12,34\n"
      "gpu uuid=GPU-b name=NVIDIA_L4 bus=00000000:1C:00.0 total=24000000000 used=0 util=0 temp=30 "
      "energy=0 pids=\n");
  auto nvml = Nvml::Open(FakeNvmlWorld::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  EXPECT_EQ((*nvml)->driver_version(), "580.95.05");
  const std::vector<GpuInfo>& gpus = (*nvml)->List();
  ASSERT_EQ(gpus.size(), 2);
  EXPECT_EQ(gpus[0].index, 0);
  EXPECT_EQ(gpus[0].uuid, "GPU-a");
  EXPECT_EQ(gpus[0].model_name, "NVIDIA H200");
  EXPECT_EQ(gpus[0].pci_bus_id, "00000000:1B:00.0");
  EXPECT_EQ(gpus[1].index, 1);
  EXPECT_EQ(gpus[1].model_name, "NVIDIA L4");

  const std::vector<GpuSample> samples = (*nvml)->Sample(absl::Seconds(1));
  ASSERT_EQ(samples.size(), 2);
  EXPECT_TRUE(samples[0].status.ok()) << samples[0].status;
  EXPECT_THAT(samples[0].memory_total_bytes, Optional(150754820096));
  EXPECT_THAT(samples[0].memory_used_bytes, Optional(1073741824));
  EXPECT_THAT(samples[0].utilization_ratio, Optional(0.5));
  EXPECT_THAT(samples[0].temperature_celsius, Optional(41.0));
  EXPECT_THAT(samples[0].energy_joules, Optional(123.456));
  EXPECT_THAT(samples[0].pids, ElementsAre(12, 34));
  EXPECT_THAT(samples[1].memory_used_bytes, Optional(0));
  EXPECT_THAT(samples[1].energy_joules, Optional(0.0));
  EXPECT_THAT(samples[1].pids, IsEmpty());
}

// 300 W for 2 s, then from 300 W to 100 W within 4 s: 600 J + 800 J.
TEST(NvmlTest, PowerIsIntegratedWhereACardHasNoEnergyCounter) {
  FakeNvmlWorld world("gpu uuid=GPU-a total=2 used=1 energy=NOT_SUPPORTED power=300000\n");
  auto nvml = Nvml::Open(FakeNvmlWorld::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  EXPECT_THAT((*nvml)->Sample(absl::Seconds(100))[0].energy_joules, Optional(0.0));
  EXPECT_THAT((*nvml)->Sample(absl::Seconds(102))[0].energy_joules, Optional(600.0));
  world.Write("gpu uuid=GPU-a total=2 used=1 power=100000\n");
  EXPECT_THAT((*nvml)->Sample(absl::Seconds(106))[0].energy_joules, Optional(1400.0));
  EXPECT_THAT((*nvml)->Sample(absl::Seconds(106))[0].energy_joules, Optional(1400.0));
}

TEST(NvmlTest, WhatACardDoesNotSayIsAbsent) {
  FakeNvmlWorld world("gpu uuid=GPU-a util=NO_PERMISSION pids=NO_PERMISSION\n");
  auto nvml = Nvml::Open(FakeNvmlWorld::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  EXPECT_EQ((*nvml)->List()[0].model_name, "");
  const GpuSample sample = (*nvml)->Sample(absl::ZeroDuration())[0];
  EXPECT_TRUE(sample.status.ok()) << sample.status;
  EXPECT_EQ(sample.memory_total_bytes, std::nullopt);
  EXPECT_EQ(sample.utilization_ratio, std::nullopt);
  EXPECT_EQ(sample.temperature_celsius, std::nullopt);
  EXPECT_EQ(sample.energy_joules, std::nullopt);
  EXPECT_THAT(sample.pids, IsEmpty());
}

TEST(NvmlTest, ALostCardIsNamedAndTheOthersGoOn) {
  FakeNvmlWorld world(
      "gpu uuid=GPU-a memory=GPU_IS_LOST util=7\n"
      "gpu uuid=GPU-b total=8 used=4\n");
  auto nvml = Nvml::Open(FakeNvmlWorld::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const std::vector<GpuSample> samples = (*nvml)->Sample(absl::ZeroDuration());
  EXPECT_EQ(samples[0].status.message(), "GPU 0: nvmlDeviceGetMemoryInfo: GPU is lost (15)");
  EXPECT_EQ(samples[0].utilization_ratio, std::nullopt);
  EXPECT_THAT(samples[1].memory_used_bytes, Optional(4));
}

TEST(NvmlTest, MoreProcessesThanThereWasRoomFor) {
  std::string pids = "1";
  for (int pid = 2; pid <= 100; ++pid) pids += "," + std::to_string(pid);
  FakeNvmlWorld world("gpu uuid=GPU-a total=2 used=1 pids=" + pids + "\n");
  auto nvml = Nvml::Open(FakeNvmlWorld::Library());
  ASSERT_TRUE(nvml.ok()) << nvml.status();
  const std::vector<int64_t> found = (*nvml)->Sample(absl::ZeroDuration())[0].pids;
  ASSERT_EQ(found.size(), 100);
  EXPECT_EQ(found.back(), 100);
}

TEST(NvmlTest, EachWayToHaveNoGpuIsASentence) {
  const absl::Status absent = Nvml::Open("/no/such/libnvidia-ml.so.1").status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(absent.message()), StartsWith("no NVIDIA driver here: /no/such/"));

  // A library that exists but is not NVML.
  const absl::Status old = Nvml::Open("libm.so.6").status();
  EXPECT_EQ(old.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(old.message(), "the NVIDIA driver is too old: libm.so.6 lacks nvmlInit_v2");

  FakeNvmlWorld world("init DRIVER_NOT_LOADED\n");
  const absl::Status unloaded = Nvml::Open(FakeNvmlWorld::Library()).status();
  EXPECT_EQ(unloaded.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(unloaded.message(),
            "the NVIDIA driver does not answer: nvmlInit_v2: Driver Not Loaded (9)");

  world.Write("driver 580.95.05\n");
  const absl::Status none = Nvml::Open(FakeNvmlWorld::Library()).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(none.message(), "the NVIDIA driver 580.95.05 reports no GPU");
}

TEST(NvmlTest, TheLibraryCanBeNamed) {
  unsetenv("CAPSTAN_NVML_LIBRARY");
  EXPECT_EQ(NvmlLibrary(), "libnvidia-ml.so.1");
  setenv("CAPSTAN_NVML_LIBRARY", "/x/y.so", 1);
  EXPECT_EQ(NvmlLibrary(), "/x/y.so");
  unsetenv("CAPSTAN_NVML_LIBRARY");
}

// Follows CUDA's programming guide for CUDA_VISIBLE_DEVICES.
TEST(CudaOrderTest, FollowsCudaVisibleDevices) {
  const std::vector<GpuInfo> gpus = {{0, "GPU-aa11"}, {1, "GPU-ab22"}, {2, "GPU-cc33"}};
  EXPECT_THAT(CudaOrder(gpus, std::nullopt), ElementsAre(0, 1, 2));
  EXPECT_THAT(CudaOrder(gpus, "2, 0"), ElementsAre(2, 0));
  EXPECT_THAT(CudaOrder(gpus, "GPU-cc,1"), ElementsAre(2, 1));
  EXPECT_THAT(CudaOrder(gpus, "1,7,0"), ElementsAre(1));
  EXPECT_THAT(CudaOrder(gpus, "-1"), IsEmpty());
  EXPECT_THAT(CudaOrder(gpus, ""), IsEmpty());
  EXPECT_THAT(CudaOrder(gpus, "GPU-a,0"), IsEmpty());  // a prefix of two UUIDs
  EXPECT_THAT(CudaOrder(gpus, "GPU-x"), IsEmpty());
}

}  // namespace
}  // namespace capstan::gpu_worker
