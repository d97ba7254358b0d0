#include "exchange/weight_assembly.h"

#include <utility>

#include "services/check/mutant.h"

namespace capstan::exchange {

WeightAssembly::WeightAssembly(const training::FlatLayout& layout, BufferPool& pool)
    : layout_(layout), pool_(pool) {}

void WeightAssembly::Reset(int64_t lineage) {
  lineage_ = lineage;
  complete_ = -1;
  pending_.clear();
}

absl::Span<float> WeightAssembly::Destination(int64_t version, int32_t chunk, absl::Duration now) {
  if (version <= complete_) return {};
  if (CAPSTAN_MUTANT("next_version_joins") && complete_ >= 0 && pending_.count(version - 1) > 0)
    --version;
  auto it = pending_.find(version);
  if (it == pending_.end()) {
    Pending pending;
    pending.buffer = pool_.Lend();
    pending.here.assign(layout_.chunk_count(), false);
    pending.missing = layout_.chunk_count();
    pending.began = now;
    it = pending_.emplace(version, std::move(pending)).first;
    // The shards are at most one version apart: what is older than two can never complete.
    while (pending_.size() > 2 && pending_.begin() != it) pending_.erase(pending_.begin());
  }
  const training::FlatRange range = layout_.ChunkRange(chunk);
  return it->second.buffer->span().subspan(range.offset, range.size);
}

std::optional<CompleteWeights> WeightAssembly::Arrived(int64_t version, int32_t chunk,
                                                       const Said& said, absl::Duration now) {
  if (CAPSTAN_MUTANT("next_version_joins") && complete_ >= 0 && pending_.count(version - 1) > 0)
    --version;
  const auto it = pending_.find(version);
  if (it == pending_.end()) return std::nullopt;
  Pending& pending = it->second;
  pending.stop |= said.stop;
  pending.evaluate |= said.evaluate;
  pending.skipped |= said.skipped;
  pending.saved |= said.saved;
  pending.skipped_before |= said.skipped_before;
  if (said.loss_scale > 0) pending.loss_scale = said.loss_scale;
  const bool at_once =
      CAPSTAN_MUTANT("a_copy_at_once_counts") && now - pending.began < absl::Milliseconds(10);
  if (pending.here[chunk] && !at_once) return std::nullopt;
  pending.here[chunk] = true;
  if (--pending.missing > 0) return std::nullopt;

  CompleteWeights whole;
  whole.lineage = lineage_;
  whole.version = version;
  whole.stop = pending.stop;
  whole.evaluate = pending.evaluate;
  whole.skipped = pending.skipped;
  whole.saved = pending.saved;
  whole.skipped_before = pending.skipped_before;
  whole.loss_scale = pending.loss_scale;
  whole.pull = now - pending.began;
  whole.weights = std::move(pending.buffer);
  complete_ = version;
  pending_.erase(pending_.begin(), pending_.upper_bound(version));
  return whole;
}

}  // namespace capstan::exchange
