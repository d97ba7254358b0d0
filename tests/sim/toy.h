// The arithmetic of the simulated training, and its result computed plainly.
//
// A lane's gradient is a function of (weights, lane, step) whose values have wide exponents, so
// that every other order of summation, every lane missing or counted twice and every gradient of
// other weights shows in the bits.
#ifndef CAPSTAN_TESTS_SIM_TOY_H_
#define CAPSTAN_TESTS_SIM_TOY_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"

namespace capstan::sim {

// gradient.size() == weights.size(). `nonfinite_lane` of `nonfinite_step` puts an infinity into it.
struct Toy {
  int64_t nonfinite_step = -1;
  int32_t nonfinite_lane = -1;

  void Gradient(absl::Span<const float> weights, int32_t lane, int64_t step,
                absl::Span<float> gradient) const;
  training::SealSums Seal(int32_t lane, int64_t step, int64_t samples) const;
};

// The weights of every version 0..T, without shards, messages or our fold: a recursive sum over the
// tree and one line of SGD.
std::vector<std::vector<float>> ReferenceVersions(const job::v1::ResolvedSpec& spec,
                                                  const Toy& toy);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_TOY_H_
