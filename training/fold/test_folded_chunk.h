// A chunk as a shard sums it up: the bookkeeping and the values together.
#ifndef CAPSTAN_TRAINING_FOLD_TEST_FOLDED_CHUNK_H_
#define CAPSTAN_TRAINING_FOLD_TEST_FOLDED_CHUNK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "training/fold/chunk_fold.h"
#include "training/fold/chunk_sum.h"

namespace capstan::training {

class FoldedChunk {
 public:
  FoldedChunk(const LaneTree& lanes, size_t size) : fold_(lanes), sum_(size) {}

  absl::StatusOr<Outcome> Add(const LaneBlock& block, absl::Span<const float> value) {
    const absl::string_view bytes(reinterpret_cast<const char*>(value.data()),
                                  value.size() * sizeof(float));
    return AddBytes(block, {&bytes, 1});
  }
  absl::StatusOr<Outcome> AddBytes(const LaneBlock& block,
                                   absl::Span<const absl::string_view> pieces) {
    const absl::StatusOr<Outcome> outcome = fold_.held().Check(block);
    if (outcome.ok() && *outcome == Outcome::kStored) sum_.Do(fold_.Store(block), pieces);
    return outcome;
  }

  const HeldBlocks& held() const { return fold_.held(); }
  absl::Span<const float> Root() const { return sum_.Last(); }
  std::vector<LaneBlock> Held() const {
    std::vector<LaneBlock> blocks;
    for (const HeldBlocks::Entry& entry : held().entries()) blocks.push_back(entry.block);
    return blocks;
  }
  // The value of the i-th held block.
  absl::Span<const float> Value(size_t i) const { return sum_.Value(held().entries()[i].slot); }
  void Reset(const LaneTree& lanes) {
    fold_.Reset(lanes);
    sum_.Reset();
  }
  size_t allocated_bytes() const { return sum_.allocated_bytes(); }

 private:
  ChunkFold fold_;
  ChunkSum sum_;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_FOLD_TEST_FOLDED_CHUNK_H_
