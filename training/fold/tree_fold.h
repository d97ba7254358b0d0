// The fold of small values. The lead folds seals with it (rule R6).
//
// Value is copyable and has `operator+=`, meaning left += right.
//
// Threads: none of its own; calls on one object must not overlap.
#ifndef CAPSTAN_TRAINING_FOLD_TREE_FOLD_H_
#define CAPSTAN_TRAINING_FOLD_TREE_FOLD_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "services/check/check.h"
#include "training/fold/held_blocks.h"
#include "training/lanes/lane_tree.h"

namespace capstan::training {

// The contents of a seal about its block.
struct SealSums {
  int64_t samples = 0;
  double loss_sum = 0;  // sum, not mean, of the samples' losses
  int64_t correct = 0;

  SealSums& operator+=(const SealSums& right) {
    samples += right.samples;
    loss_sum += right.loss_sum;
    correct += right.correct;
    return *this;
  }
};

template <typename Value>
class TreeFold {
 public:
  explicit TreeFold(LaneTree lanes) : held_(std::move(lanes)) {}

  // InvalidArgument: a block that the tree does not have.
  absl::StatusOr<Outcome> Add(const LaneBlock& block, const Value& value) {
    absl::StatusOr<Outcome> outcome = held_.Check(block);
    if (outcome.ok() && *outcome == Outcome::kStored) held_.Store(block, Values{*this, value});
    return outcome;
  }

  const LaneTree& lanes() const { return held_.lanes(); }
  bool complete() const { return held_.complete(); }
  // The sum over all lanes; complete() must be true.
  const Value& Root() const {
    CAPSTAN_CHECK(complete());
    return values_[held_.entries()[0].slot];
  }
  // Whether `block` (of the right form) or one above it has arrived.
  bool Covers(const LaneBlock& block) const { return held_.Covers(block); }
  // Present lanes that have not arrived yet, ascending.
  std::vector<int32_t> MissingLanes() const { return held_.MissingLanes(); }

  void Reset(const LaneTree& lanes) {
    held_.Reset(lanes);
    values_.clear();
    free_slots_.clear();
  }

 private:
  struct Values {
    TreeFold& fold;
    const Value& value;

    void Drop(int32_t slot) { fold.free_slots_.push_back(slot); }
    void FoldNew(int32_t slot) { fold.values_[slot] += value; }
    void Fold(int32_t left, int32_t right) {
      fold.values_[left] += fold.values_[right];
      Drop(right);
    }
    int32_t StoreNew() {
      if (fold.free_slots_.empty()) {
        fold.values_.push_back(value);
        return static_cast<int32_t>(fold.values_.size()) - 1;
      }
      const int32_t slot = fold.free_slots_.back();
      fold.free_slots_.pop_back();
      fold.values_[slot] = value;
      return slot;
    }
  };

  HeldBlocks held_;
  std::vector<Value> values_;  // by slot
  std::vector<int32_t> free_slots_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_TREE_FOLD_H_
