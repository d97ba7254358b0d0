#include "gpu_worker/engine/collective/collective.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "training/fold/held_blocks.h"

namespace capstan::engine {

using training::FlatRange;
using training::HeldBlocks;
using training::LaneBlock;
using training::LaneTree;

std::vector<int64_t> PlanBuckets(absl::Span<const int64_t> ready, int64_t total_floats,
                                 const BucketOptions& options) {
  std::vector<int64_t> ends;
  int64_t begin = 0;
  const auto close = [&](int64_t end) {
    // Cuts into pieces of equal size, in whole cache lines, because a single dense layer may have a
    // gigabyte.
    const int64_t pieces = (end - begin + options.max_floats - 1) / options.max_floats;
    const int64_t aligned = training::kSlotAlignFloats;
    const int64_t size = ((end - begin) / pieces + aligned - 1) / aligned * aligned;
    while (begin + size < end) ends.push_back(begin += size);
    ends.push_back(begin = end);
  };
  for (const int64_t end : ready) {
    if (end - begin >= options.min_floats && end < total_floats) close(end);
  }
  if (begin < total_floats) close(total_floats);
  return ends;
}

FlatRange SliceOf(int64_t begin, int64_t end, int device, int devices) {
  const int64_t aligned = training::kSlotAlignFloats;
  const int64_t each = (end - begin) / (devices * aligned) * aligned;
  const int64_t from = begin + each * device;
  return {from, device + 1 == devices ? end - from : each};
}

namespace {

// Names slots and records what HeldBlocks does to them.
class Recorder {
 public:
  explicit Recorder(FoldPlan& plan) : plan_(plan) {}

  // The next value: the lane of a device, or (device -1) the sum of a round.
  void Next(int32_t round, int32_t device) {
    round_ = round;
    device_ = device;
  }

  void Drop(int32_t slot) { free_.push_back(slot); }
  void FoldNew(int32_t slot) {
    Add(device_ < 0 ? FoldKind::kReduceAdd : FoldKind::kAddLane, slot, device_, -1);
  }
  void Fold(int32_t left, int32_t right) {
    Add(FoldKind::kAddSlot, left, -1, right);
    Drop(right);
  }
  int32_t StoreNew() {
    int32_t slot = plan_.slots;
    if (free_.empty()) {
      ++plan_.slots;
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    Add(device_ < 0 ? FoldKind::kReduce : FoldKind::kTake, slot, device_, -1);
    return slot;
  }
  void Emit(int32_t slot, int32_t block) {
    plan_.ops.push_back({FoldKind::kEmit, round_, slot, -1, -1, block});
  }

 private:
  void Add(FoldKind kind, int32_t slot, int32_t device, int32_t from) {
    plan_.ops.push_back({kind, round_, slot, device, from, -1});
  }

  FoldPlan& plan_;
  std::vector<int32_t> free_;
  int32_t round_ = 0;
  int32_t device_ = -1;
};

}  // namespace

absl::StatusOr<FoldPlan> PlanFold(const LaneTree& tree,
                                  const std::vector<std::vector<int32_t>>& lanes, bool reduce) {
  FoldPlan plan;
  std::vector<int32_t> all;
  size_t rounds = 0;
  for (const std::vector<int32_t>& own : lanes) {
    rounds = std::max(rounds, own.size());
    all.insert(all.end(), own.begin(), own.end());
  }
  std::set<int32_t> seen;
  for (const int32_t lane : all) {
    if (lane < 0 || lane >= tree.lane_count() || !tree.HasLane(lane) || !seen.insert(lane).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("lane ", lane, ": twice, or not one of the step"));
    }
  }
  plan.blocks = tree.LargestBlocks(all);
  HeldBlocks held(tree);
  Recorder recorder(plan);
  std::vector<int32_t> reduced(plan.blocks.size(),
                               -1);                     // slot of a block summed in any order
  std::vector<int32_t> missing(plan.blocks.size(), 0);  // lanes that are still missing
  const auto block_of = [&plan](int32_t lane) {
    size_t i = 0;
    while (!LaneTree::Contains(plan.blocks[i], {lane, 1})) ++i;
    return i;
  };
  for (const int32_t lane : all) ++missing[block_of(lane)];
  for (int32_t round = 0; round < static_cast<int32_t>(rounds); ++round) {
    std::vector<int32_t>& at = plan.rounds.emplace_back(lanes.size(), -1);
    std::vector<std::pair<int32_t, int32_t>> order;  // lane, device
    std::set<size_t> blocks;
    for (size_t device = 0; device < lanes.size(); ++device) {
      if (round >= static_cast<int32_t>(lanes[device].size())) continue;
      at[device] = lanes[device][round];
      order.emplace_back(at[device], static_cast<int32_t>(device));
      blocks.insert(block_of(at[device]));
    }
    std::sort(order.begin(), order.end());
    // A reduction includes all devices, so it would add whatever an idle one has in its gradient.
    const bool whole = reduce && blocks.size() == 1 && order.size() == lanes.size();
    if (reduce) {
      for (size_t i = 0; i < (whole ? 1 : order.size()); ++i) {
        int32_t& slot = reduced[block_of(order[i].first)];
        recorder.Next(round, whole ? -1 : order[i].second);
        if (slot < 0) {
          slot = recorder.StoreNew();
        } else {
          recorder.FoldNew(slot);
        }
      }
    } else {
      for (const auto& entry : order) {
        recorder.Next(round, entry.second);
        held.Store({entry.first, 1}, recorder);
      }
    }
    for (const auto& entry : order) {
      const size_t block = block_of(entry.first);
      if (--missing[block] > 0) continue;
      int32_t slot = reduced[block];
      for (const HeldBlocks::Entry& e : held.entries()) {
        if (e.block == plan.blocks[block]) slot = e.slot;
      }
      recorder.Emit(slot, static_cast<int32_t>(block));
    }
  }
  return plan;
}

}  // namespace capstan::engine
