#include "gpu_worker/task/node_fold.h"

#include <utility>

#include "training/fold/add.h"

namespace capstan::gpu_worker {

// What HeldNodes does to the vectors.
struct NodeFold::Values {
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

absl::Status NodeFold::Add(const training::Node& node, std::shared_ptr<FloatBuffer> value) {
  MutexLock lock(mu_);
  absl::StatusOr<training::Outcome> outcome = held_.Check(node);
  if (!outcome.ok()) return outcome.status();
  if (*outcome == training::Outcome::kStored) held_.Store(node, Values{slots_, value});
  return absl::OkStatus();
}

std::shared_ptr<FloatBuffer> NodeFold::Value(const training::Node& node) const {
  MutexLock lock(mu_);
  for (const training::HeldNodes::Entry& entry : held_.entries()) {
    if (entry.node == node) return slots_[entry.slot];
  }
  return nullptr;
}

}  // namespace capstan::gpu_worker
