#include "exchange/latest_weights.h"

#include <algorithm>
#include <utility>

#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::exchange {

void LatestWeights::Reset(int64_t lineage, const std::vector<training::ChunkRun>& runs) {
  lineage_ = lineage;
  parts_.clear();
  for (const training::ChunkRun& run : runs) parts_.emplace_back().run = run;
  buffer_.reset();
  given_ = false;
}

void LatestWeights::NewStream(int32_t shard) {
  parts_[shard].set = 0;
  parts_[shard].missing = 0;
}

absl::Span<float> LatestWeights::Destination(int32_t shard, int64_t set, int32_t chunk,
                                             absl::Duration now) {
  Part& part = parts_[shard];
  if (set < part.set) return {};
  if (set > part.set) {
    part.set = set;
    part.here.assign(part.run.chunk_count, false);
    part.missing = part.run.chunk_count;
    part.began = now;
  }
  if (part.here[chunk - part.run.first_chunk]) return {};
  if (buffer_ == nullptr || given_) {
    std::shared_ptr<FloatBuffer> next = pool_.Lend();
    if (buffer_ != nullptr) {
      const absl::Span<float> from = buffer_->span();
      std::copy(from.begin(), from.end(), next->data());
    }
    buffer_ = std::move(next);
    given_ = false;
  }
  const training::FlatRange range = layout_.ChunkRange(chunk);
  return buffer_->span().subspan(range.offset, range.size);
}

std::optional<CompleteWeights> LatestWeights::Arrived(int32_t shard, int32_t chunk,
                                                      const Said& said, absl::Duration now) {
  Part& part = parts_[shard];
  CAPSTAN_CHECK(said.set == part.set);
  part.here[chunk - part.run.first_chunk] = true;
  if (--part.missing > 0 && !CAPSTAN_MUTANT("one_chunk_is_a_set")) return std::nullopt;
  part.said = said;
  for (const Part& each : parts_) {
    if (each.said.marks.empty()) return std::nullopt;
  }
  given_ = true;
  CompleteWeights whole = Whole();
  whole.pull = now - part.began;
  whole.serial = ++serial_;
  return whole;
}

int64_t LatestWeights::max_staleness() const {
  int64_t lowest = -1;
  for (const Part& part : parts_) {
    const int64_t bound = part.said.max_staleness;
    if (bound >= 0 && (lowest < 0 || bound < lowest)) lowest = bound;
  }
  return lowest;
}

CompleteWeights LatestWeights::Whole() const {
  CompleteWeights whole;
  whole.lineage = lineage_;
  whole.weights = buffer_;
  whole.version = parts_[0].said.version;
  whole.marks = parts_[0].said.marks;
  whole.floor = parts_[0].said.floor;
  for (const Part& part : parts_) {
    whole.version = std::min(whole.version, part.said.version);
    whole.floor = std::min(whole.floor, part.said.floor);
    for (size_t lane = 0; lane < whole.marks.size(); ++lane) {
      whole.marks[lane] = std::min(whole.marks[lane], part.said.marks[lane]);
    }
  }
  whole.max_staleness = max_staleness();
  whole.stop = whole.evaluate = true;
  for (const Part& part : parts_) {
    if (part.said.version > whole.version) continue;
    whole.stop = whole.stop && part.said.stop;
    whole.evaluate = whole.evaluate && part.said.evaluate;
  }
  return whole;
}

}  // namespace capstan::exchange
