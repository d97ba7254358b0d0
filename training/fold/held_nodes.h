// Which nodes of a lane tree are held, and what a further one does to them: the bookkeeping of
// rule R6, shared by ChunkSum (gradients) and TreeFold (seals).
//
// The held nodes are disjoint, and no two siblings are both held: they fold at once. A node whose
// sibling is absent moves up to the parent at once. So the set is the same for every order in which
// the same lanes came, and the root is held exactly when every present lane is.
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
  kCovered,  // the node or one above it was held already; nothing changed
};

class HeldNodes {
 public:
  struct Entry {
    Node node;
    int32_t slot = 0;  // the owner's name for the value
  };

  // max_ahead: see ChunkSumOptions::max_ahead_nodes; negative: no limit.
  HeldNodes(LaneTree lanes, int32_t max_ahead) : lanes_(std::move(lanes)), max_ahead_(max_ahead) {}

  const LaneTree& lanes() const { return lanes_; }
  const std::vector<Entry>& entries() const { return entries_; }  // lowest lane first
  bool complete() const { return entries_.size() == 1 && entries_[0].node == lanes_.root(); }

  // Whether `node` (valid) or one above it is held.
  bool Covers(const Node& node) const { return FindCovering(node) >= 0; }
  // The entry that is `node` or lies above it, or -1.
  int32_t FindCovering(const Node& node) const;
  // Present lanes that no held node covers, ascending.
  std::vector<int32_t> MissingLanes() const;
  // The first of them; lane_count() where none is missing.
  int32_t LowestMissingLane() const;

  // InvalidArgument: `node` is not one of the tree. ResourceExhausted: too far ahead (max_ahead).
  // kStored means: go on with Store. Changes nothing.
  absl::StatusOr<Outcome> Check(const Node& node) const;

  // Takes a node for which Check said kStored. `values` is told what to do with the values:
  //   values.Drop(slot)           a held descendant goes
  //   values.FoldNew(slot)        value of slot += the new value (not stored before)
  //   values.Fold(left, right)    value of left += value of right; right goes
  //   int32_t values.StoreNew()   keeps the new value and names it; at most once, and first or
  //   never
  template <typename Values>
  void Store(const Node& node, Values&& values);

  // Forgets all nodes, whose slots the owner frees, and takes the tree of the next step.
  void Reset(const LaneTree& lanes) {
    lanes_ = lanes;
    entries_.clear();
  }

 private:
  // The first entry whose lanes end after `lane`.
  int32_t FirstEndingAfter(int32_t lane) const;

  LaneTree lanes_;
  int32_t max_ahead_;
  std::vector<Entry> entries_;
};

template <typename Values>
void HeldNodes::Store(const Node& node, Values&& values) {
  int32_t at = FirstEndingAfter(node.first_lane);
  auto it = entries_.begin() + at;
  int32_t kept = -1;  // by a mutant alone
  while (it != entries_.end() && LaneTree::Contains(node, it->node)) {
    if (CAPSTAN_MUTANT("descendants_not_dropped")) {
      kept = it->slot;
    } else {
      values.Drop(it->slot);
    }
    it = entries_.erase(it);
  }
  Node here = node;
  int32_t slot = -1;  // -1: the new value, wherever the caller has it
  while (here != lanes_.root()) {
    const Node sibling = LaneTree::Sibling(here);
    if (lanes_.HasLanes(sibling)) {
      // `at` is where `here` belongs, so a held sibling is the entry before or at it.
      const int32_t place = sibling < here ? at - 1 : at;
      if (place < 0 || place >= static_cast<int32_t>(entries_.size())) break;
      const Entry& other = entries_[place];
      if (other.node != sibling) break;
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
