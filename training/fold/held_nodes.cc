#include "training/fold/held_nodes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace capstan::training {

int32_t HeldNodes::FirstEndingAfter(int32_t lane) const {
  // Entries are disjoint and ascending, so their ends ascend too.
  const auto it = std::partition_point(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.node.first_lane + entry.node.lane_count <= lane;
  });
  return static_cast<int32_t>(it - entries_.begin());
}

int32_t HeldNodes::FindCovering(const Node& node) const {
  const int32_t at = FirstEndingAfter(node.first_lane);
  if (at == static_cast<int32_t>(entries_.size())) return -1;
  return LaneTree::Contains(entries_[at].node, node) ? at : -1;
}

std::vector<int32_t> HeldNodes::MissingLanes() const {
  std::vector<int32_t> missing;
  auto entry = entries_.begin();
  for (int32_t lane = 0; lane < lanes_.lane_count(); ++lane) {
    while (entry != entries_.end() && entry->node.first_lane + entry->node.lane_count <= lane) {
      ++entry;
    }
    if (entry != entries_.end() && entry->node.first_lane <= lane) continue;
    if (lanes_.HasLane(lane)) missing.push_back(lane);
  }
  return missing;
}

int32_t HeldNodes::LowestMissingLane() const {
  auto entry = entries_.begin();
  int32_t lane = 0;
  while (lane < lanes_.lane_count()) {
    if (entry != entries_.end() && entry->node.first_lane == lane) {
      lane += entry->node.lane_count;  // the next entry begins there or behind
      ++entry;
    } else if (!lanes_.HasLane(lane)) {
      ++lane;
    } else {
      return lane;
    }
  }
  return lanes_.lane_count();
}

absl::StatusOr<Outcome> HeldNodes::Check(const Node& node) const {
  if (absl::Status status = lanes_.Validate(node); !status.ok()) return status;
  if (Covers(node)) return Outcome::kCovered;
  if (max_ahead_ < 0) return Outcome::kStored;

  // A node that takes the place of held ones, or folds with one, adds no further held node.
  const int32_t at = FirstEndingAfter(node.first_lane);
  if (at < static_cast<int32_t>(entries_.size()) && LaneTree::Contains(node, entries_[at].node)) {
    return Outcome::kStored;
  }
  for (Node here = node; here != lanes_.root(); here = LaneTree::Parent(here)) {
    const Node sibling = LaneTree::Sibling(here);
    if (!lanes_.HasLanes(sibling)) continue;
    const int32_t held = FindCovering(sibling);
    if (held >= 0) return Outcome::kStored;
    break;
  }
  const int32_t lowest = LowestMissingLane();
  if (LaneTree::Contains(node, {lowest, 1})) return Outcome::kStored;
  const auto ahead = std::count_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.node.first_lane > lowest;
  });
  if (ahead < max_ahead_) return Outcome::kStored;
  return absl::ResourceExhaustedError(absl::StrCat("node ", ToString(node), ": ", ahead,
                                                   " nodes are held beyond missing lane ", lowest,
                                                   ", want at most ", max_ahead_));
}

}  // namespace capstan::training
