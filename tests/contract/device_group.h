// Groups of devices under the contract: their sums must be those of rule R1, and their updates
// those of training::ApplyVersion, bit for bit.
#ifndef CAPSTAN_TESTS_CONTRACT_DEVICE_GROUP_H_
#define CAPSTAN_TESTS_CONTRACT_DEVICE_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/engine/device/device.h"

namespace capstan::testing {

// Computes `model` with lanes of `samples` on groups of the first device and of all `devices`.
// Compares the sums with those of lanes computed one by one on the first device. Takes several
// steps, so that captured work runs again. Then does the same without determinism, with a
// tolerance. All devices must be of one kind. Failures are the calling test's.
void ExpectGroupSums(const std::vector<std::unique_ptr<engine::Device>>& devices,
                     const std::string& model, int64_t samples);
void ExpectGroupSums(const std::vector<std::unique_ptr<engine::Device>>& devices,
                     const training::Graph& graph, int64_t samples);

// Compares steps of every update rule, on weights and state that are on the devices, with those of
// the host. Also checks sums that are not finite, and calls that must be refused.
void ExpectGroupUpdates(const std::vector<std::unique_ptr<engine::Device>>& devices,
                        const std::string& model, int64_t samples);
void ExpectGroupUpdates(const std::vector<std::unique_ptr<engine::Device>>& devices,
                        const training::Graph& graph, int64_t samples);

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_DEVICE_GROUP_H_
