// The binary tree over the lanes of a global batch (exchange/README.md, rule R1).
//
// A block is an aligned block of lanes [k*2^j, (k+1)*2^j). The root covers the smallest power of two
// that is >= lane_count. A lane is absent if it lies beyond lane_count or has no samples in the
// step. A block without present lanes is absent, and its parent is then the other child (never "x +
// 0").
//
// Threads: values; a const LaneTree may be read by many threads.
#ifndef CAPSTAN_TRAINING_LANES_LANE_TREE_H_
#define CAPSTAN_TRAINING_LANES_LANE_TREE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace capstan::training {

inline constexpr int32_t kMaxLanes = 65536;

// The lanes [first_lane, first_lane + lane_count). lane_count is a power of two and first_lane a
// multiple of it. LaneTree::Validate checks blocks that come from outside.
struct LaneBlock {
  int32_t first_lane = 0;
  int32_t lane_count = 1;

  friend bool operator==(const LaneBlock& a, const LaneBlock& b) {
    return a.first_lane == b.first_lane && a.lane_count == b.lane_count;
  }
  friend bool operator!=(const LaneBlock& a, const LaneBlock& b) { return !(a == b); }
  // By the lowest lane, the larger block first.
  friend bool operator<(const LaneBlock& a, const LaneBlock& b) {
    return a.first_lane != b.first_lane ? a.first_lane < b.first_lane : a.lane_count > b.lane_count;
  }
};

// "lane 3" or "lanes [4,8)".
std::string ToString(const LaneBlock& block);

// OK if 1 <= lane_count <= kMaxLanes; else InvalidArgument naming `lanes`.
absl::Status ValidateLaneCount(int64_t lane_count);

class LaneTree {
 public:
  // All lanes present. Bug of ours unless ValidateLaneCount(lane_count) is OK.
  explicit LaneTree(int32_t lane_count);

  // The tree of a step in which `empty_lanes` (any order) have no samples. They replace the empty
  // lanes of this tree. Bug of ours: a lane out of range, or no lane left.
  LaneTree WithEmptyLanes(absl::Span<const int32_t> empty_lanes) const;

  int32_t lane_count() const { return lane_count_; }
  LaneBlock root() const { return {0, root_lanes_}; }
  int32_t present_lane_count() const { return PresentIn(0, lane_count_); }
  bool HasLane(int32_t lane) const { return HasLanes({lane, 1}); }
  // Whether at least one lane of `block` has samples in this step. `block` has the right form.
  bool HasLanes(const LaneBlock& block) const {
    return PresentIn(block.first_lane, block.first_lane + block.lane_count) > 0;
  }

  // InvalidArgument: `block` is not an aligned block of a power of two inside the root, or has no
  // lanes in this step. The message begins with "lane block".
  absl::Status Validate(const LaneBlock& block) const;

  // Arithmetic on blocks of the right form. Parent and Sibling: `block` must not be the root.
  // Left and Right: lane_count must be above 1.
  static LaneBlock Parent(const LaneBlock& block) {
    return {block.first_lane & ~block.lane_count, block.lane_count * 2};
  }
  static LaneBlock Sibling(const LaneBlock& block) {
    return {block.first_lane ^ block.lane_count, block.lane_count};
  }
  static LaneBlock Left(const LaneBlock& block) { return {block.first_lane, block.lane_count / 2}; }
  static LaneBlock Right(const LaneBlock& block) {
    return {block.first_lane + block.lane_count / 2, block.lane_count / 2};
  }
  // Whether `inner` is `outer` or lies below it.
  static bool Contains(const LaneBlock& outer, const LaneBlock& inner) {
    return outer.first_lane <= inner.first_lane && inner.lane_count <= outer.lane_count &&
           inner.first_lane < outer.first_lane + outer.lane_count;
  }

  // The fewest blocks that a holder of `owned_lanes` (any order, repeats allowed) can push, lowest
  // lane first. Absent lanes count as held, and no block without present lanes is returned. The
  // result equals the blocks that HeldBlocks holds after each of these lanes was added by itself. Bug
  // of ours: a lane outside [0, lane_count).
  std::vector<LaneBlock> LargestBlocks(absl::Span<const int32_t> owned_lanes) const;

 private:
  int32_t PresentIn(int32_t first, int32_t end) const {
    if (end > lane_count_) end = lane_count_;
    if (first >= end) return 0;
    if (present_before_.empty()) return end - first;
    return present_before_[end] - present_before_[first];
  }

  int32_t lane_count_;
  int32_t root_lanes_;                   // power of two
  std::vector<int32_t> present_before_;  // [lane_count + 1], or empty if every lane is present
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LANES_LANE_TREE_H_
