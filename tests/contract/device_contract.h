// The suite that every device must pass. Link device_contract.cc and instantiate it with functions
// that open a device.
//
//   INSTANTIATE_TEST_SUITE_P(Cpu, DeviceContractTest,
//                            ::testing::Values(DeviceCase{"cpu", OpenCpu}));
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
  // The allowed difference from double precision, as a fraction of a tensor's largest value.
  double tolerance = 2e-5;
  // The same for the losses of the golden run (device_golden.cc says what it depends on).
  double golden_tolerance = 1e-5;
  // Equal bits for any threads, largest batch of the plan, and earlier calls (rule R5).
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
