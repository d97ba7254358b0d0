// Which shard holds which chunks, and how chunks are put into frames.
//
// Each shard has one contiguous run, in order. The counts differ by at most one, and the larger
// runs come last, because the last chunk of a kind may be short. With at least 20 chunks per shard,
// the fullest shard has at most 1.05 times the mean.
#ifndef CAPSTAN_TRAINING_CHUNKS_PLACEMENT_H_
#define CAPSTAN_TRAINING_CHUNKS_PLACEMENT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "training/chunks/flat_layout.h"

namespace capstan::training {

// The chunks [first_chunk, first_chunk + chunk_count).
struct ChunkRun {
  int32_t first_chunk = 0;
  int32_t chunk_count = 0;
  int32_t end() const { return first_chunk + chunk_count; }
  friend bool operator==(const ChunkRun& a, const ChunkRun& b) {
    return a.first_chunk == b.first_chunk && a.chunk_count == b.chunk_count;
  }
};

class Placement {
 public:
  // InvalidArgument: num_shards below 1 or above chunk_count (every shard is used).
  static absl::StatusOr<Placement> Create(int32_t chunk_count, int32_t num_shards);

  int32_t chunk_count() const { return chunk_count_; }
  int32_t num_shards() const { return num_shards_; }
  ChunkRun Run(int32_t shard) const;
  int32_t ShardOf(int32_t chunk) const;

 private:
  Placement(int32_t chunk_count, int32_t num_shards)
      : chunk_count_(chunk_count), num_shards_(num_shards) {}

  int32_t chunk_count_;
  int32_t num_shards_;
};

// The floats of a run of chunks. An empty run gives an empty range.
FlatRange RangeOf(const FlatLayout& layout, const ChunkRun& run);

// Cuts `run`, in order, into the fewest runs whose floats fit into max_payload_bytes each. A chunk
// is never split, so max_payload_bytes must be at least one chunk (else a bug of ours).
std::vector<ChunkRun> FramesOf(const FlatLayout& layout, const ChunkRun& run,
                               int64_t max_payload_bytes = kDefaultMaxFramePayloadBytes);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CHUNKS_PLACEMENT_H_
