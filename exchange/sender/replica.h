// What a task keeps of a job whose workers update (kvstore.update_on_kvstore: false): the weights and
// the optimizer's state of each chunk, with the version that they are of.
//
// Rule U3: a sum of step s makes version s + 1 of a chunk exactly if the chunk is of version s. A copy
// changes nothing. If versions are missing between, or the result is not what the shard has, the chunk
// must come whole again.
//
// Memory: the flat vector of the weights, and its state. Threads: none; one strand.
#ifndef CAPSTAN_EXCHANGE_SENDER_REPLICA_H_
#define CAPSTAN_EXCHANGE_SENDER_REPLICA_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "exchange/float_buffer.h"
#include "exchange/wire/frame_codec.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/optim/apply.h"
#include "training/optim/optimizer.h"

namespace capstan::exchange::sender {

class Replica {
 public:
  // Borrows layout.
  Replica(const training::FlatLayout& layout, std::shared_ptr<const training::Optimizer> optimizer);

  // A new lineage: no chunk has a version.
  void Reset();

  // Whether a frame of this run has the right number of trust ratios.
  bool FitsRatios(const training::ChunkRun& run, int count) const;

  // The chunk as it comes whole, if it is not older than what is here. The sizes fit.
  void Take(int64_t version, int32_t chunk, wire::Pieces weights, wire::Pieces state);

  enum class Outcome { kMade, kPast, kMissing, kDiffers };
  // Makes `version` of the chunk from the one before. `sum`: of gradients; null: the step was skipped.
  // `made`: the checksum of the shard's weights. kMissing, kDiffers: the chunk must come whole.
  Outcome Make(int64_t version, int32_t chunk, const training::VersionUpdate& update,
               const wire::Pieces* sum, uint32_t made);

  // All ratios of a frame's update, for VersionUpdate, from those of its run.
  std::vector<double> Ratios(const training::ChunkRun& run,
                             absl::Span<const double> of_the_run) const;

  int64_t states() const { return states_; }                         // floats for each weight
  int64_t version(int32_t chunk) const { return versions_[chunk]; }  // -1: none
  // Valid until the chunk changes.
  absl::Span<const float> weights(int32_t chunk) const;
  // The lowest version of the chunks of `run`; -1: some chunk has none.
  int64_t LowestVersion(const training::ChunkRun& run) const;

 private:
  absl::Span<float> State(int32_t chunk);

  const training::FlatLayout& layout_;
  const std::shared_ptr<const training::Optimizer> optimizer_;
  const int64_t states_;
  FloatBuffer weights_;
  std::vector<float> state_;
  std::vector<float> sum_;         // of one chunk
  std::vector<int64_t> versions_;  // by chunk; -1: none
};

}  // namespace capstan::exchange::sender

#endif  // CAPSTAN_EXCHANGE_SENDER_REPLICA_H_
