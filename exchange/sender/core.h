// sender::Core decides a task's side of the exchange with the shards of its job: which streams are
// open, what each of them still needs, what is sent again, and when a version of the weights is
// complete.
//
// A stream says Hello with the newest complete version, waits for HelloReply, and then sends what the
// step still needs. Rule R6 makes repeats harmless. A stream that ends is opened again:
//   FAILED_PRECONDITION, OUT_OF_RANGE     with the next route: the view is old
//   INVALID_ARGUMENT, UNIMPLEMENTED       never: Fail
//   anything else                         after min_backoff, doubled up to max_backoff
// A stream without a HelloReply after hello_timeout is cancelled and opened again.
//
// Copies: a gradient leaves by reference. Weights are copied once, from the received bytes into the
// buffer of their version, each chunk after its checksum was found right.
//
// Threads: none; one strand. The effects are a function of the events.
#ifndef CAPSTAN_EXCHANGE_SENDER_CORE_H_
#define CAPSTAN_EXCHANGE_SENDER_CORE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "exchange/exchange.h"
#include "exchange/float_buffer.h"
#include "exchange/latest_weights.h"
#include "exchange/sender/effects.h"
#include "exchange/sender/events.h"
#include "exchange/sender/replica.h"
#include "exchange/weight_assembly.h"
#include "exchange/wire/frame_codec.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/compress/gradient_layout.h"

namespace capstan::exchange::sender {

struct CoreOptions {
  std::string job_id;
  std::string spec_digest;  // 32 bytes
  int32_t rank = 0;         // of the task
  absl::Duration min_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  absl::Duration hello_timeout = absl::Seconds(10);
  bool asynchronous = false;
  int32_t lanes = 0;                         // of an asynchronous job
  training::GradientFormat gradient_format;  // of what is pushed
  // Not null: the task updates a replica with it (kvstore.update_on_kvstore: false, replica.h).
  std::shared_ptr<const training::Optimizer> optimizer;
  int64_t max_payload_bytes = training::kDefaultMaxFramePayloadBytes;  // of a frame; >= one chunk
};

// InvalidArgument, with the shard: the shards do not hold the chunks of the model one after another.
absl::Status CheckRoute(const training::FlatLayout& layout, const Route& route);

class Core {
 public:
  // Borrows layout.
  Core(const training::FlatLayout& layout, CoreOptions options);

  // `now` never goes back; its origin is arbitrary.
  Effects Step(const Event& event, absl::Duration now);

  // When Step(Tick) is due; InfiniteDuration: nothing is timed.
  absl::Duration NextDeadline() const;

  // A frame's bytes: `prefix`, then `payload`, which `owner` keeps alive. Computes the checksums that
  // are not known yet, and counts the bytes as sent.
  struct Frame {
    std::string prefix;
    absl::string_view payload;
    std::shared_ptr<const void> owner;
  };
  Frame Encode(const SendFrame& send);

  int64_t lineage() const { return route_.lineage; }
  // Whether some shard has answered the Hello of a stream that is still open.
  bool connected() const;
  // The shards that are not reached, for people. Empty: all are.
  std::string Waiting(absl::Duration now) const;
  // Without push_seconds.
  const ExchangeStats& stats() const { return stats_; }

 private:
  enum class State { kOpening, kOpen, kEnding, kBackingOff, kWaitsForView };

  struct Peer {
    int32_t shard = 0;
    v1::StreamKind kind = v1::STREAM_KIND_DATA;
    ShardAddress address;
    training::ChunkRun run;                  // empty for CONTROL
    std::vector<training::ChunkRun> frames;  // of `run`
    StreamId stream = 0;                     // 0: none
    State state = State::kBackingOff;
    absl::Duration since;          // in this state
    absl::Duration due;            // of kOpening and kBackingOff
    absl::Duration backoff;        // before the next attempt
    absl::Status cause;            // kEnding: why we ended the stream
    absl::Status last_error;       // of the last stream
    int64_t version = -1;          // the newest that the shard has shown
    int corrupt_frames = 0;        // called so by the shard since `version` rose
    int64_t damaged_version = -1;  // its weights came with a checksum that differs
  };

  void On(const RouteGiven& e, Effects& out);
  void On(const BlockReady& e, Effects& out);
  void On(const SealReady& e, Effects& out);
  void On(const SkipReady& e, Effects& out);
  void On(const WeightsWanted& e, Effects& out);
  void On(const EvaluationReady& e, Effects& out);
  void On(const MessageArrived& e, Effects& out);
  void On(const StreamEnded& e, Effects& out);
  void On(const Tick& e, Effects& out);

  void OnHello(Peer& peer, const v1::HelloReply& reply, Effects& out);
  void OnAck(Peer& peer, const v1::FrameAck& ack, Effects& out);
  void OnWeights(Peer& peer, const v1::WeightFrame& frame, wire::Pieces payload,
                 size_t payload_bytes, Effects& out);

  // What is wrong with the shape of a frame of weights or of sums. `run` is what it says.
  absl::Status CheckWeights(const Peer& peer, const v1::WeightFrame& frame,
                            const training::ChunkRun& run, size_t payload_bytes) const;
  void Complete(CompleteWeights whole, Effects& out);
  // Jobs whose tasks update.
  absl::Status CheckReplicaFrame(const v1::WeightFrame& frame, const training::ChunkRun& run,
                                 size_t payload_bytes) const;
  void OnReplicaFrame(Peer& peer, const v1::WeightFrame& frame, const training::ChunkRun& run,
                      wire::Pieces payload, Effects& out);
  absl::Status TakeWhole(const v1::WeightFrame& frame, int32_t index, wire::Pieces weights,
                         wire::Pieces state);
  absl::Status MakeNext(Peer& peer, const v1::WeightFrame& frame, int32_t index,
                        const training::VersionUpdate& update, const wire::Pieces* sum,
                        Effects& out);
  int64_t HaveVersion(const Peer& peer) const;
  void Damaged(Peer& peer, const v1::WeightFrame& frame, absl::Status why, Effects& out);

  void Open(Peer& peer, Effects& out);
  void Cancel(Peer& peer, absl::Status cause, Effects& out);
  void Enter(Peer& peer, State state);
  void Shown(Peer& peer, int64_t version);
  // Asynchronous jobs.
  std::optional<CompleteWeights> TakeSet(Peer& peer, const v1::WeightFrame& frame, int32_t chunk);
  bool HasAnswered(const Peer& peer, int64_t step, int32_t lane) const;
  void ForgetAnswered(int64_t version);
  absl::Span<float> Destination(const Peer& peer, const v1::WeightFrame& frame, int32_t chunk);
  // Whether the shard needs the frames of the block.
  bool Needs(const Peer& peer, const RetainedBlock& retained) const;
  std::shared_ptr<RetainedBlock> MakeRetained(int64_t step, const training::LaneBlock& block,
                                              std::shared_ptr<const FloatBuffer> gradient);
  void SendSkip(const Peer& peer, const RetainedBlock& retained, Effects& out);
  void SendFrames(Peer& peer, const std::shared_ptr<RetainedBlock>& retained, Effects& out);
  void Send(const Peer& peer, v1::ExchangeRequest message, Effects& out);
  void SendToLead(const v1::ExchangeRequest& message, Effects& out);
  // Computes the checksums of the run anew; how many were wrong.
  int RenewSums(RetainedBlock& retained, const training::ChunkRun& run) const;
  uint32_t SumOf(const RetainedBlock& retained, int32_t chunk) const;
  void KnowSums(RetainedBlock& retained, const training::ChunkRun& run) const;
  void ForgetBefore(int64_t version);
  Peer* Find(StreamId stream);
  Peer* Lead();
  static std::string Name(const Peer& peer);

  const training::FlatLayout& layout_;
  const CoreOptions options_;
  const training::GradientLayout gradients_;
  BufferPool pool_;
  WeightAssembly assembly_;
  LatestWeights latest_;  // of an asynchronous job, in place of assembly_
  std::optional<Replica> replica_;

  absl::Duration now_ = absl::ZeroDuration();
  Route route_;
  std::vector<Peer> peers_;  // DATA by shard, then CONTROL; the same for a whole lineage
  StreamId last_stream_ = 0;
  bool failed_ = false;
  bool stopped_ = false;  // the last version of the lineage is complete
  std::vector<std::shared_ptr<RetainedBlock>> retained_;
  std::map<std::pair<int32_t, int32_t>, v1::ExchangeRequest> seals_;  // by first lane, lane count
  std::map<int64_t, v1::ExchangeRequest> evaluations_;                // by block
  ExchangeStats stats_;
};

}  // namespace capstan::exchange::sender

#endif  // CAPSTAN_EXCHANGE_SENDER_CORE_H_
