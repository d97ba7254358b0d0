#include "training/lanes/lane_tree.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"

namespace capstan::training {
namespace {

bool IsPowerOfTwo(int32_t value) { return value > 0 && (value & (value - 1)) == 0; }

int32_t RootLanes(int32_t lane_count) {
  int32_t lanes = 1;
  while (lanes < lane_count) lanes *= 2;
  return lanes;
}

}  // namespace

std::string ToString(const LaneBlock& block) {
  if (block.lane_count == 1) return absl::StrCat("lane ", block.first_lane);
  return absl::StrCat("lanes [", block.first_lane, ",",
                      static_cast<int64_t>(block.first_lane) + block.lane_count, ")");
}

absl::Status ValidateLaneCount(int64_t lane_count) {
  if (lane_count >= 1 && lane_count <= kMaxLanes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("lanes: got ", lane_count, ", want 1..", kMaxLanes));
}

LaneTree::LaneTree(int32_t lane_count) : lane_count_(lane_count), root_lanes_(1) {
  CAPSTAN_CHECK(ValidateLaneCount(lane_count).ok());
  root_lanes_ = RootLanes(lane_count);
}

LaneTree LaneTree::WithEmptyLanes(absl::Span<const int32_t> empty_lanes) const {
  LaneTree tree(lane_count_);
  if (empty_lanes.empty()) return tree;
  std::vector<int32_t> present(lane_count_, 1);
  for (const int32_t lane : empty_lanes) {
    CAPSTAN_CHECK(lane >= 0 && lane < lane_count_);
    present[lane] = 0;
  }
  tree.present_before_.assign(lane_count_ + 1, 0);
  for (int32_t lane = 0; lane < lane_count_; ++lane) {
    tree.present_before_[lane + 1] = tree.present_before_[lane] + present[lane];
  }
  CAPSTAN_CHECK(tree.present_before_.back() > 0);
  return tree;
}

absl::Status LaneTree::Validate(const LaneBlock& block) const {
  if (!IsPowerOfTwo(block.lane_count) || block.lane_count > root_lanes_) {
    return absl::InvalidArgumentError(absl::StrCat("lane block: lane_count: got ", block.lane_count,
                                                   ", want a power of two up to ", root_lanes_));
  }
  if (block.first_lane < 0 || block.first_lane > root_lanes_ - block.lane_count ||
      block.first_lane % block.lane_count != 0) {
    return absl::InvalidArgumentError(absl::StrCat("lane block: first_lane: got ", block.first_lane,
                                                   ", want a multiple of ", block.lane_count,
                                                   " up to ", root_lanes_ - block.lane_count));
  }
  if (!HasLanes(block)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lane block: ", ToString(block),
        ": got no lane with samples in this step, want at least one of ", lane_count_));
  }
  return absl::OkStatus();
}

std::vector<LaneBlock> LaneTree::LargestBlocks(absl::Span<const int32_t> owned_lanes) const {
  std::vector<int32_t> lanes(owned_lanes.begin(), owned_lanes.end());
  std::sort(lanes.begin(), lanes.end());
  std::vector<LaneBlock> blocks;  // disjoint, ascending; the largest that the lanes so far allow
  int32_t before = -1;
  for (const int32_t lane : lanes) {
    CAPSTAN_CHECK(lane >= 0 && lane < lane_count_);
    if (lane == before || !HasLane(lane)) continue;
    before = lane;
    LaneBlock block{lane, 1};
    // Lanes come in ascending order, so only the last block can be the sibling.
    while (block != root()) {
      const LaneBlock sibling = Sibling(block);
      if (HasLanes(sibling)) {
        if (blocks.empty() || blocks.back() != sibling) break;
        blocks.pop_back();
      }
      block = Parent(block);
    }
    blocks.push_back(block);
  }
  return blocks;
}

}  // namespace capstan::training
