// The newest weights of an asynchronous job, of which each shard sends its part by itself.
//
// A shard sends sets: all its chunks, as they were in one moment, with the lanes' marks. The newest
// set of a shard replaces the one before, chunk by chunk as they come. Weights may be of different
// moments, but never older than the marks say, because a shard's weights only get newer.
//
// Threads: none of its own; one strand.
#ifndef CAPSTAN_EXCHANGE_LATEST_WEIGHTS_H_
#define CAPSTAN_EXCHANGE_LATEST_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "exchange/exchange.h"
#include "exchange/float_buffer.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"

namespace capstan::exchange {

class LatestWeights {
 public:
  // Borrows both.
  LatestWeights(const training::FlatLayout& layout, BufferPool& pool)
      : layout_(layout), pool_(pool) {}

  // Forgets everything. `runs`: the chunks of each shard.
  void Reset(int64_t lineage, const std::vector<training::ChunkRun>& runs);
  // A new stream to the shard numbers its sets from 1 again.
  void NewStream(int32_t shard);

  // What a frame says of its set.
  struct Said {
    int64_t set = 0;
    int64_t version = 0;
    bool stop = false;
    bool evaluate = false;
    std::vector<int64_t> marks;  // by lane
    int64_t floor = 0;
    int64_t max_staleness = -1;  // by which the shard answers; -1: any
  };
  // Where the bytes of a chunk belong. Empty: a newer set has begun, or the chunk is here.
  absl::Span<float> Destination(int32_t shard, int64_t set, int32_t chunk, absl::Duration now);
  // The chunk is written. Returns the weights if this was the last one of its set and every shard
  // has sent a set: version, marks, floor and bound are the lowest of all shards', and `stop` and
  // `evaluate` are set if all shards that have this version say so.
  std::optional<CompleteWeights> Arrived(int32_t shard, int32_t chunk, const Said& said,
                                         absl::Duration now);

  // Of the shard's newest complete set. Without marks there is none.
  const Said& said(int32_t shard) const { return parts_[shard].said; }
  // The lowest bound of all shards that have sent a set; -1: none has one.
  int64_t max_staleness() const;

 private:
  struct Part {
    training::ChunkRun run;
    int64_t set = 0;  // that is arriving
    std::vector<bool> here;
    int32_t missing = 0;
    absl::Duration began;
    Said said;  // of the newest complete set
  };
  CompleteWeights Whole() const;

  const training::FlatLayout& layout_;
  BufferPool& pool_;
  int64_t lineage_ = 0;
  std::vector<Part> parts_;              // by shard
  std::shared_ptr<FloatBuffer> buffer_;  // null: nothing has come
  bool given_ = false;                   // somebody has a reference to buffer_
  int64_t serial_ = 0;
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_LATEST_WEIGHTS_H_
