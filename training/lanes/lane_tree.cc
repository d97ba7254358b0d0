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

std::string ToString(const Node& node) {
  if (node.lane_count == 1) return absl::StrCat("lane ", node.first_lane);
  return absl::StrCat("lanes [", node.first_lane, ",",
                      static_cast<int64_t>(node.first_lane) + node.lane_count, ")");
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

absl::Status LaneTree::Validate(const Node& node) const {
  if (!IsPowerOfTwo(node.lane_count) || node.lane_count > root_lanes_) {
    return absl::InvalidArgumentError(absl::StrCat("node lane_count: got ", node.lane_count,
                                                   ", want a power of two up to ", root_lanes_));
  }
  if (node.first_lane < 0 || node.first_lane > root_lanes_ - node.lane_count ||
      node.first_lane % node.lane_count != 0) {
    return absl::InvalidArgumentError(absl::StrCat("node first_lane: got ", node.first_lane,
                                                   ", want a multiple of ", node.lane_count,
                                                   " up to ", root_lanes_ - node.lane_count));
  }
  if (!HasLanes(node)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "node ", ToString(node), ": got no lane with samples in this step, want at least one of ",
        lane_count_));
  }
  return absl::OkStatus();
}

std::vector<Node> LaneTree::LargestNodes(absl::Span<const int32_t> owned_lanes) const {
  std::vector<int32_t> lanes(owned_lanes.begin(), owned_lanes.end());
  std::sort(lanes.begin(), lanes.end());
  std::vector<Node> nodes;  // disjoint, ascending; as far as the lanes up to now allow
  int32_t before = -1;
  for (const int32_t lane : lanes) {
    CAPSTAN_CHECK(lane >= 0 && lane < lane_count_);
    if (lane == before || !HasLane(lane)) continue;
    before = lane;
    Node node{lane, 1};
    // Lanes come in ascending order, so only the last node can be the sibling.
    while (node != root()) {
      const Node sibling = Sibling(node);
      if (HasLanes(sibling)) {
        if (nodes.empty() || nodes.back() != sibling) break;
        nodes.pop_back();
      }
      node = Parent(node);
    }
    nodes.push_back(node);
  }
  return nodes;
}

}  // namespace capstan::training
