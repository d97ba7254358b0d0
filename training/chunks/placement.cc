#include "training/chunks/placement.h"

#include "absl/strings/str_cat.h"
#include "services/check/check.h"

namespace capstan::training {

absl::StatusOr<Placement> Placement::Create(int32_t chunk_count, int32_t num_shards) {
  if (num_shards < 1 || num_shards > chunk_count) {
    return absl::InvalidArgumentError(absl::StrCat("num_shards: got ", num_shards, ", want 1..",
                                                   chunk_count, " (chunks of the model)"));
  }
  return Placement(chunk_count, num_shards);
}

ChunkRun Placement::Run(int32_t shard) const {
  CAPSTAN_CHECK(shard >= 0 && shard < num_shards_);
  const int32_t count = chunk_count_ / num_shards_;
  const int32_t smaller = num_shards_ - chunk_count_ % num_shards_;  // the first ones
  const int32_t extra = shard > smaller ? shard - smaller : 0;
  return {shard * count + extra, count + (shard >= smaller ? 1 : 0)};
}

int32_t Placement::ShardOf(int32_t chunk) const {
  CAPSTAN_CHECK(chunk >= 0 && chunk < chunk_count_);
  const int32_t count = chunk_count_ / num_shards_;
  const int32_t smaller = num_shards_ - chunk_count_ % num_shards_;
  const int32_t in_smaller = smaller * count;
  return chunk < in_smaller ? chunk / count : smaller + (chunk - in_smaller) / (count + 1);
}

FlatRange RangeOf(const FlatLayout& layout, const ChunkRun& run) {
  if (run.chunk_count == 0) return {run.first_chunk * layout.chunk_floats(), 0};
  const int64_t offset = layout.ChunkRange(run.first_chunk).offset;
  return {offset, layout.ChunkRange(run.end() - 1).end() - offset};
}

std::vector<ChunkRun> FramesOf(const FlatLayout& layout, const ChunkRun& run,
                               int64_t max_payload_bytes) {
  const int64_t chunk_bytes = layout.chunk_floats() * static_cast<int64_t>(sizeof(float));
  CAPSTAN_CHECK(max_payload_bytes >= chunk_bytes);
  const int64_t per_frame = max_payload_bytes / chunk_bytes;
  std::vector<ChunkRun> frames;
  for (int32_t chunk = run.first_chunk; chunk < run.end();) {
    const int64_t left = run.end() - chunk;
    const int32_t count = static_cast<int32_t>(left < per_frame ? left : per_frame);
    frames.push_back({chunk, count});
    chunk += count;
  }
  return frames;
}

}  // namespace capstan::training
