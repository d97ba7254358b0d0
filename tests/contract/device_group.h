// Groups of devices under the contract: their sums are those of rule R1 and their updates those of
// training::Sgd, bit for bit.
#ifndef CAPSTAN_TESTS_CONTRACT_DEVICE_GROUP_H_
#define CAPSTAN_TESTS_CONTRACT_DEVICE_GROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/engine/device/device.h"

namespace capstan::testing {

// `model` with lanes of `samples` on groups of the first, and of all `devices`: the sums against
// those of the lanes one by one on the first device, several steps long, so that captured work is
// run again; then without determinism, near them. Devices of one kind; failures are the test's.
void ExpectGroupSums(const std::vector<std::unique_ptr<engine::Device>>& devices,
                     const std::string& model, int64_t samples);

// Steps of every rule of the optimizer on the weights and the momentum that lie on the devices,
// against the host's; sums that are not finite; what is refused.
void ExpectGroupUpdates(const std::vector<std::unique_ptr<engine::Device>>& devices,
                        const std::string& model, int64_t samples);

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_DEVICE_GROUP_H_
