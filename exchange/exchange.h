// Exchange: how a task's gradients leave and weights come, whoever adds them up: shards behind
// gRPC (ExchangeClient), the task itself (local and device), or a fake in a test.
//
// All methods are called on the task's strand, and the callbacks run on it.
#ifndef CAPSTAN_EXCHANGE_EXCHANGE_H_
#define CAPSTAN_EXCHANGE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "exchange/float_buffer.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"

namespace capstan::exchange {

struct ShardAddress {
  std::string node;     // for people
  std::string address;  // unix:PATH or HOST:PORT
  int32_t first_chunk = 0;
  int32_t chunk_count = 0;  // >= 1
};

// A lineage and where its chunks live: shard i is shards[i], shard 0 the lead.
struct Route {
  int64_t lineage = 0;
  std::vector<ShardAddress> shards;  // empty where the task is its own store
};

// A version of the weights of which every chunk is here.
struct CompleteWeights {
  int64_t lineage = 0;
  int64_t version = 0;
  bool stop = false;      // the last one, never computed on
  bool evaluate = false;  // evaluated by the owners of its blocks
  bool skipped = false;   // the step before it was: the same weights as the version before
  bool saved = false;     // it is a checkpoint's version (synchronous jobs)
  // Bit i: step version - 2 - i was skipped, in this lineage. A version that was overtaken cannot say
  // it any more.
  uint64_t skipped_before = 0;
  double loss_scale = 1;  // factor on the loss of the step that computes on it
  // The flat vector. Not changed while anybody holds it. Null: the devices have made the version by
  // themselves and have it (LocalExchange); never one that stops or is evaluated.
  std::shared_ptr<const FloatBuffer> weights;
  // Of an asynchronous job: by lane, its next step; the step below which all weights have all lanes;
  // the bound of staleness, -1: none; and a number that no other weights of this exchange have.
  std::vector<int64_t> marks;
  int64_t floor = 0;
  int64_t max_staleness = -1;
  int64_t serial = 0;
  absl::Duration pull;    // from its first chunk to its last
  absl::Duration update;  // spent on the optimizer in this process; zero with shards

  // The steps that it calls skipped, the last one first.
  std::vector<int64_t> SkippedSteps() const;
};

struct ExchangeCallbacks {
  // In rising order inside a lineage; versions that were overtaken are left out. In an asynchronous
  // job many weights may have one version, and marks rise.
  std::function<void(const CompleteWeights&)> on_weights;
  // The exchange cannot go on in any lineage. InvalidArgument, Internal: a bug of ours on either
  // side. Called at most once.
  std::function<void(const absl::Status&)> on_failed;
};

// Since the exchange was made. Wire bytes are whole messages, payload bytes the tensors in them.
struct ExchangeStats {
  int64_t sent_wire_bytes = 0;
  int64_t sent_payload_bytes = 0;
  int64_t received_wire_bytes = 0;
  int64_t received_payload_bytes = 0;
  int64_t copied_bytes = 0;    // payload bytes copied, both directions
  int64_t retries = 0;         // streams opened again, frames sent again
  int64_t corrupt_frames = 0;  // checksums that differed, on either side
  int64_t shared_streams = 0;  // that send in shared memory now
  // Frames given to gRPC until it took the last one, or that waited for room in shared memory; of
  // all streams.
  double push_seconds = 0;
  double pull_seconds = 0;  // first chunk to last, of all complete versions
};

class Exchange {
 public:
  virtual ~Exchange() = default;

  // Drops every stream, weight and retained gradient, and takes up the route's lineage. Weights
  // follow by on_weights. InvalidArgument: a route that does not fit the model.
  virtual absl::Status Open(const Route& route) = 0;

  // Sends the sum of `block` for `step`, and sends it again where a stream breaks or a checksum
  // differs, until a version above `step` is complete. The buffer is not copied and not changed
  // until its last reference is gone. It has the words of training::GradientLayout: the floats of
  // the model if the job does not compress gradients.
  void Push(int64_t step, const training::LaneBlock& block,
            std::shared_ptr<const FloatBuffer> gradient) {
    const int64_t all = gradient->size();
    PushPrefix(step, block, std::move(gradient), all);
  }
  // The same of [0, ready_words) alone, while the rest is still being computed: called again with
  // the same buffer and more, at last with all of it. What was sent is not sent twice; a block of
  // which only a part was ever pushed is nobody's sum and harms nobody (rule R6).
  virtual void PushPrefix(int64_t step, const training::LaneBlock& block,
                          std::shared_ptr<const FloatBuffer> gradient, int64_t ready_words) = 0;
  // To the lead, behind the frames pushed so far where there is one shard.
  virtual void SendSeal(int64_t step, const training::LaneBlock& block,
                        const training::SealSums& sums) = 0;
  virtual void SendEvaluation(int64_t version, int64_t block, const training::SealSums& sums) = 0;

  // For asynchronous jobs, which have shards. The seal of a lane's step, on weights of this staleness.
  virtual void SendLaneSeal(int64_t step, int32_t lane, const training::SealSums& sums,
                            int64_t staleness);
  // In place of Push: gradient or loss of the lane is not finite. Sent again, as Push does.
  virtual void Skip(int64_t step, int32_t lane);
  // The lane cannot begin the step, because the weights are too old.
  virtual void AskForWeights(int64_t step, int32_t lane);

  // Whom it waits for and since when, for people: "shard 1 (node ps1, unix:/a): connecting for 3 s,
  // UNAVAILABLE: ...". Empty: nothing is in the way.
  virtual std::string Waiting() const = 0;
  // Whether a shard is reached just now. False where the task is its own store.
  virtual bool connected() const = 0;
  virtual ExchangeStats stats() const = 0;
};

}  // namespace capstan::exchange

#endif  // CAPSTAN_EXCHANGE_EXCHANGE_H_
