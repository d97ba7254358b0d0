// How much memory a shard may hold of a job: what the plan prints, and what param_store keeps to.
//
// Thread-safe: pure.
#ifndef CAPSTAN_TRAINING_CHUNKS_SHARD_MEMORY_H_
#define CAPSTAN_TRAINING_CHUNKS_SHARD_MEMORY_H_

#include <cstdint>

namespace capstan::training {

// Buffers of weights that somebody has: the version at hand, the one before it, the held one, and one
// of a stream that is read too slowly. Where there are more, beside those of files that are being
// written, such streams are closed.
inline constexpr int64_t kUsualWeightBuffers = 4;
// A closed stream keeps its buffer until its peer was told why. Where so many are in use, files
// included, closed streams are aborted before another one is made.
inline constexpr int64_t kMostWeightBuffers = 7;
// Of a lineage that is being loaded, and of one before it that came to nothing. Each with the optimizer's
// state, of which a file that is being written has a copy, too: one thread does all of this.
inline constexpr int64_t kLoadingBuffers = 2;

// No rule of training/optim has more floats of state per weight.
inline constexpr int64_t kMaxStateFloatsPerWeight = 3;

// Bytes of a shard that holds `floats` floats of weights with `state_floats_per_weight`, of a job with
// `lanes`. Of two lanes that are neighbours and are both there only the sum is held: at most every
// other lane waits.
constexpr int64_t MostShardBytes(int64_t floats, int64_t state_floats_per_weight, int64_t lanes) {
  const int64_t weights = kMostWeightBuffers + kLoadingBuffers;
  const int64_t state = state_floats_per_weight * (1 + kLoadingBuffers);
  return 4 * floats * (weights + state + (lanes + 1) / 2);
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CHUNKS_SHARD_MEMORY_H_
