// The blocks of a lane tree that are held, and what another block does to them. This is the
// bookkeeping of rule R6, shared by ChunkFold (gradients of a shard), LaneFold (gradients of a
// worker) and TreeFold (seals).
//
// The held blocks are disjoint. Two siblings are never both held, because they fold at once. A block
// whose sibling is absent moves up to the parent at once. So the set does not depend on the order
// in which lanes arrived, and the root is held exactly when every present lane is.
//
// Threads: none of its own; the owner serialises.
#ifndef CAPSTAN_TRAINING_FOLD_HELD_NODES_H_
#define CAPSTAN_TRAINING_FOLD_HELD_NODES_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/check/mutant.h"
#include "training/lanes/lane_tree.h"

namespace capstan::training {

// What became of a contribution.
enum class Outcome {
  kStored,   // counted
  kCovered,  // the block or one above it was already held; nothing changed
};

class HeldBlocks {
 public:
  struct Entry {
    LaneBlock block;
    int32_t slot = 0;  // the owner's name for the value
  };

  explicit HeldBlocks(LaneTree lanes) : lanes_(std::move(lanes)) {}

  const LaneTree& lanes() const { return lanes_; }
  const std::vector<Entry>& entries() const { return entries_; }  // lowest lane first
  bool complete() const { return entries_.size() == 1 && entries_[0].block == lanes_.root(); }

  // Whether `block` (valid) or one above it is held.
  bool Covers(const LaneBlock& block) const { return FindCovering(block) >= 0; }
  // The entry that is `block` or lies above it, or -1 if there is none.
  int32_t FindCovering(const LaneBlock& block) const;
  // Present lanes that no held block covers, ascending.
  std::vector<int32_t> MissingLanes() const;

  // InvalidArgument: `block` does not belong to the tree. kStored means that Store may be called.
  absl::StatusOr<Outcome> Check(const LaneBlock& block) const;

  // Takes a block for which Check returned kStored. Calls these methods of `values`:
  //   values.Drop(slot)           frees the value of a held descendant
  //   values.FoldNew(slot)        value of slot += the new value (not stored before)
  //   values.Fold(left, right)    value of left += value of right; frees right
  //   int32_t values.StoreNew()   keeps the new value and returns its slot; at most once, and never
  //                               together with FoldNew
  template <typename Values>
  void Store(const LaneBlock& block, Values&& values);

  // Forgets all blocks and takes the tree of the next step. The owner frees their slots.
  void Reset(const LaneTree& lanes) {
    lanes_ = lanes;
    entries_.clear();
  }

 private:
  // The first entry whose lanes end after `lane`.
  int32_t FirstEndingAfter(int32_t lane) const;

  LaneTree lanes_;
  std::vector<Entry> entries_;
};

template <typename Values>
void HeldBlocks::Store(const LaneBlock& block, Values&& values) {
  int32_t at = FirstEndingAfter(block.first_lane);
  auto it = entries_.begin() + at;
  int32_t kept = -1;  // only set by a mutant
  while (it != entries_.end() && LaneTree::Contains(block, it->block)) {
    if (CAPSTAN_MUTANT("descendants_not_dropped")) {
      kept = it->slot;
    } else {
      values.Drop(it->slot);
    }
    it = entries_.erase(it);
  }
  LaneBlock here = block;
  int32_t slot = -1;  // -1: the new value, wherever the caller has it
  while (here != lanes_.root()) {
    const LaneBlock sibling = LaneTree::Sibling(here);
    if (lanes_.HasLanes(sibling)) {
      // `at` is where `here` belongs, so a held sibling is the entry before or at it.
      const int32_t place = sibling < here ? at - 1 : at;
      if (place < 0 || place >= static_cast<int32_t>(entries_.size())) break;
      const Entry& other = entries_[place];
      if (other.block != sibling) break;
      if (slot < 0) {
        values.FoldNew(other.slot);
        slot = other.slot;
      } else if (sibling < here) {
        values.Fold(other.slot, slot);
        slot = other.slot;
      } else {
        values.Fold(slot, other.slot);
      }
      entries_.erase(entries_.begin() + place);
      at = sibling < here ? place : at;
    }
    here = LaneTree::Parent(here);
  }
  if (slot < 0) slot = values.StoreNew();
  if (kept >= 0) values.Fold(slot, kept);
  entries_.insert(entries_.begin() + at, Entry{here, slot});
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_HELD_NODES_H_
