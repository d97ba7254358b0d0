// The most memory that a shard may hold of a job. The plan prints it, and param_store keeps to it.
//
// Thread-safe: pure.
#ifndef CAPSTAN_TRAINING_CHUNKS_SHARD_MEMORY_H_
#define CAPSTAN_TRAINING_CHUNKS_SHARD_MEMORY_H_

#include <cstdint>

namespace capstan::training {

// Weight buffers in use at a time: the current version, the one before it, the held one, and one of
// a stream that is read too slowly. If there are more, not counting those of files being written,
// the slow streams are closed.
inline constexpr int64_t kUsualWeightBuffers = 4;
// A closed stream keeps its buffer until its peer has been told why. If this many buffers are in
// use, files included, closed streams are aborted before another buffer is made.
inline constexpr int64_t kMostWeightBuffers = 7;
// Buffers of a lineage that is being loaded, and of an earlier load that failed. Each comes with
// the optimizer's state. A file being written has a copy of that state, too; one thread does all of
// this.
inline constexpr int64_t kLoadingBuffers = 2;

// No rule of training/optim has more floats of state per weight.
inline constexpr int64_t kMaxStateFloatsPerWeight = 3;

// The most bytes that a shard holds for `floats` floats of weights with `state_floats_per_weight`,
// of a job with `lanes`. When two neighbouring lanes are both there, only their sum is held, so at
// most every other lane waits.
//
// `replicas`: workers update, too. Then each buffer of weights may have one of the sums that made it,
// and a copy of the state, beside it.
constexpr int64_t MostShardBytes(int64_t floats, int64_t state_floats_per_weight, int64_t lanes,
                                 bool replicas = false) {
  const int64_t weights = (replicas ? 2 : 1) * kMostWeightBuffers + kLoadingBuffers;
  const int64_t copies = replicas ? kMostWeightBuffers : 0;
  const int64_t state = state_floats_per_weight * (1 + kLoadingBuffers + copies);
  return 4 * floats * (weights + state + (lanes + 1) / 2);
}

// The same for an asynchronous job with `workers`. A buffer of weights stays in use until the worker
// to which it is sent has taken it, and a worker may open a new stream before the end of its old one
// is seen. Besides these there are the current buffer, one of a file that is being written, and one
// that is kept free. A gradient is copied before it is applied. Unlike in synchronous jobs, nothing
// closes streams above this number. Seals of faster lanes at the lead are not in it.
constexpr int64_t MostAsynchronousShardBytes(int64_t floats, int64_t state_floats_per_weight,
                                             int64_t workers) {
  const int64_t weights = 2 * workers + 3 + kLoadingBuffers;
  const int64_t state = state_floats_per_weight * (1 + kLoadingBuffers);
  return 4 * floats * (weights + state + 1);
}

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_CHUNKS_SHARD_MEMORY_H_
