#include "training/fold/chunk_fold.h"

namespace capstan::training {

struct ChunkFold::Writer {
  ChunkFold& fold;
  FoldCommands commands;

  void Drop(int32_t slot) { fold.free_slots_.push_back(slot); }
  void FoldNew(int32_t slot) { commands.push_back({FoldCommand::Kind::kAdd, slot}); }
  void Fold(int32_t left, int32_t right) {
    commands.push_back({FoldCommand::Kind::kFold, left, right});
    Drop(right);
  }
  int32_t StoreNew() {
    int32_t slot = fold.slots_;
    if (fold.free_slots_.empty()) {
      ++fold.slots_;
    } else {
      slot = fold.free_slots_.back();
      fold.free_slots_.pop_back();
    }
    commands.push_back({FoldCommand::Kind::kTake, slot});
    return slot;
  }
};

FoldCommands ChunkFold::Store(const LaneBlock& block) {
  Writer writer{*this, {}};
  held_.Store(block, writer);
  return std::move(writer.commands);
}

void ChunkFold::Reset(const LaneTree& lanes) {
  held_.Reset(lanes);
  slots_ = 0;
  free_slots_.clear();
}

}  // namespace capstan::training
