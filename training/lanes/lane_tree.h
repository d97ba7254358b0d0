// The binary tree over the lanes of a global batch (docs/architecture.md, rule R1).
//
// A node is an aligned block of lanes [k*2^j, (k+1)*2^j). The root covers the smallest power of two
// that is >= lane_count. A lane is absent where it lies beyond lane_count or has no samples in the
// step at hand; a node without present lanes is absent, and its parent is then the other child
// (never "x + 0").
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
// multiple of it; LaneTree::Validate checks what comes from outside.
struct Node {
  int32_t first_lane = 0;
  int32_t lane_count = 1;

  friend bool operator==(const Node& a, const Node& b) {
    return a.first_lane == b.first_lane && a.lane_count == b.lane_count;
  }
  friend bool operator!=(const Node& a, const Node& b) { return !(a == b); }
  // By the lowest lane, the larger node first.
  friend bool operator<(const Node& a, const Node& b) {
    return a.first_lane != b.first_lane ? a.first_lane < b.first_lane : a.lane_count > b.lane_count;
  }
};

// "lane 3" or "lanes [4,8)".
std::string ToString(const Node& node);

// OK where 1 <= lane_count <= kMaxLanes; else InvalidArgument naming `lanes`.
absl::Status ValidateLaneCount(int64_t lane_count);

class LaneTree {
 public:
  // All lanes present. Bug of ours unless ValidateLaneCount(lane_count) is OK.
  explicit LaneTree(int32_t lane_count);

  // The tree of a step in which `empty_lanes` (any order) have no samples. Replaces the mask that
  // this tree has. Bug of ours: a lane out of range, or no lane left.
  LaneTree WithEmptyLanes(absl::Span<const int32_t> empty_lanes) const;

  int32_t lane_count() const { return lane_count_; }
  Node root() const { return {0, root_lanes_}; }
  int32_t present_lane_count() const { return PresentIn(0, lane_count_); }
  bool HasLane(int32_t lane) const { return HasLanes({lane, 1}); }
  // Whether at least one lane of `node` has samples in this step. `node` has the right form.
  bool HasLanes(const Node& node) const {
    return PresentIn(node.first_lane, node.first_lane + node.lane_count) > 0;
  }

  // InvalidArgument: not an aligned block of a power of two inside the root, or without lanes in
  // this step. The message begins with "node".
  absl::Status Validate(const Node& node) const;

  // Arithmetic on nodes of the right form. Parent and Sibling: `node` is not the root.
  // Left and Right: lane_count > 1.
  static Node Parent(const Node& node) {
    return {node.first_lane & ~node.lane_count, node.lane_count * 2};
  }
  static Node Sibling(const Node& node) {
    return {node.first_lane ^ node.lane_count, node.lane_count};
  }
  static Node Left(const Node& node) { return {node.first_lane, node.lane_count / 2}; }
  static Node Right(const Node& node) {
    return {node.first_lane + node.lane_count / 2, node.lane_count / 2};
  }
  // Whether `inner` is `outer` or lies below it.
  static bool Contains(const Node& outer, const Node& inner) {
    return outer.first_lane <= inner.first_lane && inner.lane_count <= outer.lane_count &&
           inner.first_lane < outer.first_lane + outer.lane_count;
  }

  // The fewest nodes that a holder of `owned_lanes` (any order, repeats allowed) can push, lowest
  // lane first: absent lanes count as held, and no node without present lanes is returned.
  // Equal to the nodes that ChunkSum holds after each of the lanes was added by itself.
  // Bug of ours: a lane outside [0, lane_count).
  std::vector<Node> LargestNodes(absl::Span<const int32_t> owned_lanes) const;

 private:
  int32_t PresentIn(int32_t first, int32_t end) const {
    if (end > lane_count_) end = lane_count_;
    if (first >= end) return 0;
    if (present_before_.empty()) return end - first;
    return present_before_[end] - present_before_[first];
  }

  int32_t lane_count_;
  int32_t root_lanes_;                   // power of two
  std::vector<int32_t> present_before_;  // [lane_count + 1], or empty where every lane is present
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LANES_LANE_TREE_H_
