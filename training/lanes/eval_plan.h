// The fixed blocks of the evaluation set. The owner of a block's lane computes it. Counts are added
// as integers and losses as doubles in block order, so the result does not depend on the owner.
//
// block_count = min(test_size, max(lanes, ceil(test_size / 1024))); blocks are contiguous, in
// order, and their sizes differ by at most one (the larger ones first).
#ifndef CAPSTAN_TRAINING_LANES_EVAL_PLAN_H_
#define CAPSTAN_TRAINING_LANES_EVAL_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::training {

inline constexpr int64_t kEvalBlockSamples = 1024;  // at most this many samples in a block

struct EvalBlock {
  int64_t first_sample = 0;
  int64_t sample_count = 0;  // >= 1
};

class EvalPlan {
 public:
  // A test_size of 0 gives no blocks. InvalidArgument: test_size outside [0, kMaxDatasetSize], or
  // lanes outside [1, kMaxLanes].
  static absl::StatusOr<EvalPlan> Create(int64_t test_size, int32_t lanes);

  int64_t test_size() const { return test_size_; }
  int32_t lanes() const { return lanes_; }
  int64_t block_count() const { return block_count_; }

  // `block` in [0, block_count()).
  EvalBlock Block(int64_t block) const;
  // block * lanes / block_count: the lane whose owner computes the block.
  int32_t OwnerLane(int64_t block) const;
  // The blocks of a lane, ascending. May be empty if there are fewer blocks than lanes.
  std::vector<int64_t> BlocksOf(int32_t lane) const;

 private:
  EvalPlan(int64_t test_size, int32_t lanes);

  int64_t test_size_;
  int32_t lanes_;
  int64_t block_count_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LANES_EVAL_PLAN_H_
