// The tensors of one job on one shard, and the arithmetic that ShardCore orders: sums per chunk,
// the optimizer, weights by version.
//
// Weights of a version never change once they are made; a new version goes into a free buffer. A
// buffer is free once its version is retired and not held, and nobody has a reference (slices under
// way to a slow worker, a file being written). One free buffer is kept, more are given back.
// Asynchronous jobs change the weights in place. Once somebody has a reference, they copy them first.
//
// Threads: none of its own; the job's strand. References to weights may be dropped anywhere.
#ifndef CAPSTAN_PARAM_STORE_SHARD_STORAGE_H_
#define CAPSTAN_PARAM_STORE_SHARD_STORAGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "exchange/float_buffer.h"
#include "exchange/shard/shard_events.h"
#include "exchange/wire/frame_codec.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/compress/gradient_layout.h"
#include "training/fold/chunk_sum.h"
#include "training/norm/norm_tree.h"
#include "training/norm/tensor_norms.h"
#include "training/optim/apply.h"
#include "training/optim/optimizer.h"

namespace capstan::param_store {

// One version of this shard's weights. The buffer begins with the first float of `run`.
struct VersionWeights {
  int64_t version = -1;
  std::shared_ptr<const exchange::FloatBuffer> floats;
  std::shared_ptr<const std::vector<uint32_t>> crcs;  // by chunk of the run
};

// What made the current version, for workers that update, too. Gone once it was sent to all.
struct StepSums {
  int64_t version = -1;            // that they made; -1: none
  training::VersionUpdate update;  // without trust ratios
  std::vector<double> trust_ratios;
  std::shared_ptr<exchange::FloatBuffer> floats;  // of the run; null: the step was skipped
  std::vector<uint32_t> crcs;                     // by chunk of the run
};

// The optimizer's state of a run of chunks, as it was when the current version was made.
struct StateCopy {
  int64_t version = -1;
  training::ChunkRun run;
  std::vector<float> floats;
  std::vector<uint32_t> crcs;  // by chunk
};

// What a checkpoint file is written from; holds no reference into the storage that could change.
struct ShardSnapshot {
  training::ChunkRun run;
  VersionWeights weights;
  std::vector<float> state;  // the optimizer's, in flat order; empty: it has none
};

// A version of which not all chunks are made yet.
struct VersionUnderWay {
  training::VersionUpdate update;
  std::vector<double> trust_ratios;
  std::shared_ptr<exchange::FloatBuffer> floats;
  std::shared_ptr<std::vector<uint32_t>> crcs;
  std::vector<bool> made;  // by chunk of the run
  int32_t missing = 0;
};

class ShardStorage {
 public:
  struct Options {
    training::GradientFormat format;  // of the gradients that arrive
    bool replicas = false;  // workers update, too: keeps the sums of a step until ForgetSums
  };
  // Borrows layout and optimizer.
  ShardStorage(const training::FlatLayout& layout, const training::Optimizer& optimizer,
               Options options);
  ShardStorage(const training::FlatLayout& layout, const training::Optimizer& optimizer,
               const training::GradientFormat& format = {})
      : ShardStorage(layout, optimizer, Options{.format = format}) {}

  // An empty buffer for the weights of `run`, to be filled (on any thread) and given to Begin.
  static std::shared_ptr<exchange::FloatBuffer> MakeBuffer(const training::FlatLayout& layout,
                                                           const training::ChunkRun& run);

  // Forgets everything and holds `weights` as `version`, with this state of the optimizer; empty:
  // zeros.
  void Begin(const training::ChunkRun& run, int64_t version,
             std::shared_ptr<exchange::FloatBuffer> weights, std::vector<float> state = {});

  // Carries out the commands. The payload's shape was checked, and the checksums of the chunks that
  // have commands are right.
  void Fold(const exchange::shard::FoldFrame& effect, exchange::wire::Pieces payload);
  // All sums are complete. With what the command and the optimizer ask for.
  training::RootReport CheckRoots(const exchange::shard::CheckRoots& effect);
  // Asynchronous jobs: applies chunks to the weights at hand. Their version stays. The payload is
  // that of Fold.
  void ApplyFrame(const exchange::shard::ApplyFrame& effect, exchange::wire::Pieces payload);
  // Begins version decision.step + 1, which is current() from now on. Keeps `held_version` until
  // another call names another one: decision.step, or the one that is held; -1: none. Each chunk of
  // the run must be made by MakeChunks before anything else is done with the weights or the sums.
  void BeginVersion(const training::Decision& decision, int64_t held_version = -1);
  // Makes those chunks of `run` that are not made yet: weights, checksum, state. Empties their sums.
  void MakeChunks(const training::ChunkRun& run);
  // Both, for all chunks.
  void Apply(const training::Decision& decision, int64_t held_version = -1);
  void Retire(int64_t version);

  // The sums that made the current version, as far as MakeChunks has come. Their buffer does not change
  // any more.
  const StepSums& step_sums() const { return step_sums_; }
  void ForgetSums() { step_sums_ = {}; }
  // Of chunks of the current version that are made. Callers at one version share a copy.
  std::shared_ptr<const StateCopy> CopyState(const training::ChunkRun& run);
  int states() const { return optimizer_.state_floats_per_weight(); }
  bool replicas() const { return replicas_; }
  const training::FlatLayout& layout() const { return layout_; }

  const VersionWeights& current() const { return current_; }
  // The version at hand or the held one; null: it is neither. The caller may keep references: the
  // next ApplyFrame copies the weights.
  const VersionWeights* Find(int64_t version);
  // Computes the checksums of a version anew, where it is still here. How many were wrong.
  int64_t RenewSums(int64_t version);
  const training::ChunkRun& run() const { return run_; }
  // Of chunk `index` of the run, from the first float of the run.
  training::FlatRange LocalRange(int32_t index) const;
  ShardSnapshot Snapshot();

  // Which of `chunk_count` encoded chunks from first_chunk on have the checksum that came with them
  // and can be decoded. The shape was checked.
  std::vector<bool> Verify(int32_t first_chunk, absl::Span<const uint32_t> crcs,
                           exchange::wire::Pieces payload);

  struct Bytes {
    int64_t weights = 0;  // all buffers
    int64_t optimizer = 0;
    int64_t pending = 0;  // sums
    int64_t total() const { return weights + optimizer + pending; }
  };
  // With `loading` lineages under way to Begin, and `snapshots` that somebody has.
  Bytes ResidentBytes(int64_t loading = 0, int64_t snapshots = 0) const;
  // Weight buffers that exist, and those of them that somebody has, of earlier lineages, too
  // (training/chunks/shard_memory.h). Slow streams keep buffers of sums instead if workers update: in
  // use are as many as there are of the more numerous kind.
  int64_t weight_buffers() const;
  int64_t weight_buffers_in_use() const;
  // Until a buffer of this lineage is given back, or the time is over.
  void WaitForReturn(absl::Duration timeout);

 private:
  using Made = std::vector<std::weak_ptr<const exchange::FloatBuffer>>;
  static void Note(const std::shared_ptr<const exchange::FloatBuffer>& buffer, Made& made);
  static int64_t InUse(const Made& made);
  static int64_t FreeIn(const std::optional<exchange::BufferPool>& pool);
  // Before the chunk is made.
  void KeepSum(int32_t index);
  // Chunk `index` of the run as floats: the pieces themselves, or decoded. Valid until the next call.
  exchange::wire::Pieces Floats(int32_t index, exchange::wire::Pieces encoded);
  // The words of an encoded chunk, one after another. Valid until the next call.
  absl::Span<const float> Words(exchange::wire::Pieces encoded);
  void MakeOwn();
  // The vectors of chunk `index` of the run, for a step on `weights`.
  training::VersionVectors Vectors(int32_t index, const exchange::FloatBuffer& weights, float* out);

  const training::FlatLayout& layout_;
  const training::Optimizer& optimizer_;
  const training::NormTree norms_;
  const std::shared_ptr<const training::TensorPieces> pieces_;  // null: not needed
  const training::GradientLayout gradients_;
  training::ChunkRun run_;
  int64_t first_float_ = 0;
  const bool replicas_;
  Made made_, made_sums_;  // all that may still be in use
  std::optional<exchange::BufferPool> pool_, sums_pool_;
  VersionWeights current_, previous_, held_;
  // Asynchronous jobs: current_, if nobody else has a reference to it.
  std::shared_ptr<exchange::FloatBuffer> own_;
  std::shared_ptr<std::vector<uint32_t>> own_crcs_;
  std::optional<VersionUnderWay> making_;
  std::vector<float> state_;
  std::vector<training::ChunkSum> sums_;  // by chunk of the run
  StepSums step_sums_;
  std::vector<std::weak_ptr<const StateCopy>> copies_;  // that may still be in use
  // Of an encoded chunk.
  std::vector<float> words_;
  std::vector<float> decoded_;
  absl::string_view decoded_bytes_;
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_SHARD_STORAGE_H_
