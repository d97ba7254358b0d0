#include "gpu_worker/task/lane_fold.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/fold/add.h"

namespace capstan::gpu_worker {

// Applies HeldBlocks' operations to the vectors.
struct LaneFold::Values {
  std::vector<std::shared_ptr<FloatBuffer>>& slots;
  std::shared_ptr<FloatBuffer>& value;

  static void AddTo(FloatBuffer& left, const FloatBuffer& right) {
    training::AddInto(left.data(), right.data(), static_cast<size_t>(left.size()));
  }
  void Drop(int32_t slot) { slots[slot].reset(); }
  void FoldNew(int32_t slot) { AddTo(*slots[slot], *value); }
  void Fold(int32_t left, int32_t right) {
    AddTo(*slots[left], *slots[right]);
    Drop(right);
  }
  int32_t StoreNew() {
    slots.push_back(std::move(value));
    return static_cast<int32_t>(slots.size()) - 1;
  }
};

absl::Status LaneFold::Add(const training::LaneBlock& block, std::shared_ptr<FloatBuffer> value) {
  MutexLock lock(mu_);
  absl::StatusOr<training::Outcome> outcome = held_.Check(block);
  if (!outcome.ok()) return outcome.status();
  if (sums_ == LaneSums::kApart) {
    if (block.lane_count != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("lanes are kept apart, got ", training::ToString(block)));
    }
    apart_.emplace(block.first_lane, std::move(value));
    return absl::OkStatus();
  }
  if (*outcome == training::Outcome::kStored) held_.Store(block, Values{slots_, value});
  return absl::OkStatus();
}

std::shared_ptr<FloatBuffer> LaneFold::Value(const training::LaneBlock& block) const {
  MutexLock lock(mu_);
  for (const training::HeldBlocks::Entry& entry : held_.entries()) {
    if (entry.block == block) return slots_[entry.slot];
  }
  return nullptr;
}

std::shared_ptr<FloatBuffer> LaneFold::Take(int32_t lane) {
  MutexLock lock(mu_);
  const auto it = apart_.find(lane);
  if (it == apart_.end()) return nullptr;
  std::shared_ptr<FloatBuffer> value = std::move(it->second);
  apart_.erase(it);
  return value;
}

}  // namespace capstan::gpu_worker
