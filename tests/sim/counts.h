// What the weights of a simulated asynchronous job show. There is no plain sum to compare them with,
// because the order of contributions is free. So a gradient counts: the gradient of a lane is -1 in
// the lane's own floats, and 0 in all others. Then a float says how many contributions of its lane
// it has, whatever marks say.
#ifndef CAPSTAN_TESTS_SIM_COUNTS_H_
#define CAPSTAN_TESTS_SIM_COUNTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "tests/sim/toy.h"
#include "training/chunks/flat_layout.h"

namespace capstan::sim {

class Counts {
 public:
  static constexpr double kLearningRate = 0.25;  // exact in every float that occurs

  Counts(const job::v1::ResolvedSpec& spec, Toy toy);

  // The rule that weights from `first_float` on break, or "". Each chunk has every step of a lane
  // below the lane's mark, and no more than all; with `all`, it has all steps, once each.
  std::string Check(absl::Span<const float> weights, int64_t first_float,
                    const std::vector<int64_t>& marks, bool all) const;
  // The lowest step over all chunks and lanes that whole weights do not have.
  int64_t Floor(absl::Span<const float> weights) const;

 private:
  // Contributions of the lane of float `at` that it has.
  int64_t CountAt(float value, int64_t at) const;
  // Steps of the lane that are over if so many contributions are there. A step that is not finite
  // counts as over as soon as it may be.
  int64_t Over(int32_t lane, int64_t count) const;

  const Toy toy_;
  const training::FlatLayout layout_;
  const int64_t total_steps_;
  std::vector<float> initial_;
  std::vector<std::vector<int64_t>> steps_;  // by lane: those in which it has samples
  std::vector<int64_t> skip_;  // by lane: index of the step that is not finite; -1: there is none
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_COUNTS_H_
