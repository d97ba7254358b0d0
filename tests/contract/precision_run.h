// One step of a network in a given precision, and by plain loops in double.
#ifndef CAPSTAN_TESTS_CONTRACT_PRECISION_RUN_H_
#define CAPSTAN_TESTS_CONTRACT_PRECISION_RUN_H_

#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/device/device.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/reference_network.h"

namespace capstan::testing {

// To numbers that every precision has.
void RoundTo8Bits(std::vector<float>& values);

struct Numbers {
  double loss_sum = 0;
  Doubles logits;
  std::vector<Doubles> gradients;  // by parameter; of a statistic, as a device gives it
};

// By the references, all in training.
Numbers Plain(const Problem& problem, double scale);
// The logits are those of a prediction.
absl::StatusOr<Numbers> OnDevice(engine::Device& device, const Problem& problem,
                                 engine::Precision precision, double scale);

// As a fraction of the largest value of `want` and `typical`.
double Error(const Doubles& got, const Doubles& want, double typical);

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_PRECISION_RUN_H_
