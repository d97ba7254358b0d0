#include "training/lanes/eval_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/lanes/lane_tree.h"
#include "training/lanes/sample_plan.h"

namespace capstan::training {

absl::StatusOr<EvalPlan> EvalPlan::Create(int64_t test_size, int32_t lanes) {
  if (test_size < 0 || test_size > kMaxDatasetSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("test_size: got ", test_size, ", want 0..", kMaxDatasetSize));
  }
  if (absl::Status status = ValidateLaneCount(lanes); !status.ok()) return status;
  return EvalPlan(test_size, lanes);
}

EvalPlan::EvalPlan(int64_t test_size, int32_t lanes)
    : test_size_(test_size),
      lanes_(lanes),
      block_count_(std::min(
          test_size,
          std::max<int64_t>(lanes, (test_size + kEvalBlockSamples - 1) / kEvalBlockSamples))) {}

EvalBlock EvalPlan::Block(int64_t block) const {
  CAPSTAN_CHECK(block >= 0 && block < block_count_);
  const int64_t size = test_size_ / block_count_;
  const int64_t larger = test_size_ % block_count_;  // this many blocks have one more
  return {block * size + std::min(block, larger), size + (block < larger ? 1 : 0)};
}

int32_t EvalPlan::OwnerLane(int64_t block) const {
  CAPSTAN_CHECK(block >= 0 && block < block_count_);
  return static_cast<int32_t>(block * lanes_ / block_count_);
}

std::vector<int64_t> EvalPlan::BlocksOf(int32_t lane) const {
  std::vector<int64_t> blocks;
  // The first block b with b * lanes / block_count >= lane.
  int64_t block = (int64_t{lane} * block_count_ + lanes_ - 1) / lanes_;
  for (; block < block_count_ && OwnerLane(block) == lane; ++block) blocks.push_back(block);
  return blocks;
}

}  // namespace capstan::training
