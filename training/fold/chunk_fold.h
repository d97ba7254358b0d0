// Rule R6 for one chunk, without its values: which blocks are held, and what a further one does to
// the values, as commands that a ChunkSum carries out.
//
// Threads: none of its own; calls on one object must not overlap.
#ifndef CAPSTAN_TRAINING_FOLD_CHUNK_FOLD_H_
#define CAPSTAN_TRAINING_FOLD_CHUNK_FOLD_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "training/fold/held_blocks.h"
#include "training/lanes/lane_tree.h"

namespace capstan::training {

// One step of a fold. Slots are numbered from 0; a slot is used again once its value is folded into
// another one, or a larger block has taken its place.
struct FoldCommand {
  enum class Kind {
    kTake,  // slot = the new value
    kAdd,   // slot += the new value
    kFold,  // slot += from
  };
  Kind kind = Kind::kTake;
  int32_t slot = 0;
  int32_t from = -1;  // of kFold

  friend bool operator==(const FoldCommand& a, const FoldCommand& b) {
    return a.kind == b.kind && a.slot == b.slot && a.from == b.from;
  }
};
using FoldCommands = std::vector<FoldCommand>;

class ChunkFold {
 public:
  explicit ChunkFold(LaneTree lanes) : held_(std::move(lanes)) {}

  const HeldBlocks& held() const { return held_; }

  // Takes a block for which held().Check said kStored. The commands are to be carried out in order,
  // after those of earlier calls. Once held().complete(), the slot of the last command has the sum.
  FoldCommands Store(const LaneBlock& block);

  // Forgets all blocks and slots, and takes the tree of the next step.
  void Reset(const LaneTree& lanes);

 private:
  struct Writer;

  HeldBlocks held_;
  int32_t slots_ = 0;  // in use or free
  std::vector<int32_t> free_slots_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_CHUNK_FOLD_H_
