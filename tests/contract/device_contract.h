// The suite that every device passes: link device_contract.cc and instantiate it with ways to open
// one.
//
//   INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContractTest, ::testing::Values(DeviceCase{"cpu",
//   OpenCpu}));
#ifndef CAPSTAN_TESTS_CONTRACT_DEVICE_CONTRACT_H_
#define CAPSTAN_TESTS_CONTRACT_DEVICE_CONTRACT_H_

#include <memory>
#include <string>

#include "gpu_worker/engine/device/device.h"
#include "gtest/gtest.h"

namespace capstan::testing {

struct DeviceCase {
  std::string name;
  std::unique_ptr<engine::Device> (*open)() = nullptr;
  // Of the largest value of a tensor: how far a device may be from double precision.
  double tolerance = 2e-5;
  // Of the losses of the golden run (device_golden.cc says what decides it).
  double golden_tolerance = 1e-5;
  // Equal bits whatever the threads, the plan's largest batch and the calls before (rule R5).
  bool equal_bits = true;
};

class DeviceContractTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  DeviceContractTest() : device_(GetParam().open()) {}
  const std::unique_ptr<engine::Device> device_;
};

inline std::string DeviceCaseName(const ::testing::TestParamInfo<DeviceCase>& info) {
  return info.param.name;
}

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_DEVICE_CONTRACT_H_
