#include "training/fold/held_blocks.h"

#include <algorithm>

namespace capstan::training {

int32_t HeldBlocks::FirstEndingAfter(int32_t lane) const {
  // Entries are disjoint and ascending, so their ends ascend too.
  const auto it = std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.block.first_lane + entry.block.lane_count <= lane;
  });
  return static_cast<int32_t>(it - entries_.begin());
}

int32_t HeldBlocks::FindCovering(const LaneBlock& block) const {
  const int32_t at = FirstEndingAfter(block.first_lane);
  if (at == static_cast<int32_t>(entries_.size())) return -1;
  return LaneTree::Contains(entries_[at].block, block) ? at : -1;
}

std::vector<int32_t> HeldBlocks::MissingLanes() const {
  std::vector<int32_t> missing;
  auto entry = entries_.begin();
  for (int32_t lane = 0; lane < lanes_.lane_count(); ++lane) {
    while (entry != entries_.end() && entry->block.first_lane + entry->block.lane_count <= lane) {
      ++entry;
    }
    if (entry != entries_.end() && entry->block.first_lane <= lane) continue;
    if (lanes_.HasLane(lane)) missing.push_back(lane);
  }
  return missing;
}

absl::StatusOr<Outcome> HeldBlocks::Check(const LaneBlock& block) const {
  if (absl::Status status = lanes_.Validate(block); !status.ok()) return status;
  return Covers(block) ? Outcome::kCovered : Outcome::kStored;
}

}  // namespace capstan::training
