// ShardCore decides for one job on one shard: which contributions count, when a step is whole,
// which version is published to whom. It holds no tensor and does no arithmetic on one.
//
// Rules that are kept here (exchange/README.md):
//   R6  A contribution is (job, lineage, step, block, chunk). Shape, routing, lineage and checksum
//       come first. Step below the version: past. The block or one above it held: covered. Else the
//       held blocks below it go and it is stored. Non-finite values are held like any others. A step
//       ahead in the same lineage is refused and counted; it ends the stream.
//   R7  Shard 0 is the lead (training/lead). The others repeat their part until the decision is
//       there; the lead repeats the decision until every shard shows the version. What belongs to
//       another lineage or step is dropped.
//       A version that is the last of its lineage has no part after it: the shard then says that it
//       shows it, as it does to a decision that it has carried out already.
//   R8  Version s is retired with the first accepted frame of step s+1. Where a task has not yet
//       taken all of version s when step s is decided, the decision says that s is held: the task
//       finishes it, is sent nothing else until then, and afterwards the newest. One version is held
//       at a time, the same on all shards. Who owns a lane is sent every version.
//   U2  Where workers update, too, a stream gets the sums of a step if its task has the version before,
//       else weights and state.
//   A1 to A7, K, K2  An asynchronous job: each contribution is applied by itself, and the answer to a
//       lane's step is the weights (core_asynchronous.cc). The rest is the same. A part of step s
//       says that this shard has applied all of step s.
//   Lineages come from StartLineage alone; one at or below that at hand does nothing.
//   The lead says at once when a lane is late (lane_times.h): the coordinator gives it to another.
//   A checkpoint is written of the version at hand when it is decided, and reported until it is
//   taken. One that cannot be written is given up with its error; the last version of a lineage is
//   tried again until it is there.
//
// Deterministic, without thread, lock, clock, file or gRPC: `now` is a monotonic time from any
// origin. One strand for each object.
#ifndef CAPSTAN_EXCHANGE_SHARD_SHARD_CORE_H_
#define CAPSTAN_EXCHANGE_SHARD_SHARD_CORE_H_

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"
#include "exchange/shard/lane_marks.h"
#include "exchange/shard/lane_times.h"
#include "exchange/shard/shard_events.h"
#include "training/chunks/flat_layout.h"
#include "training/compress/gradient_layout.h"
#include "training/fold/held_blocks.h"
#include "training/lanes/eval_plan.h"
#include "training/lanes/sample_plan.h"
#include "training/lead/lead.h"
#include "training/norm/tensor_norms.h"
#include "training/schedule/schedule.h"

namespace capstan::exchange::shard {

// What the resolved spec says to a shard.
struct ShardPlan {
  std::string job_id;
  std::string spec_digest;  // 32 bytes
  int32_t shard = 0;
  int64_t total_steps = 0;
  int64_t evaluate_every_steps = 0;
  training::FlatLayout layout;
  training::SamplePlan samples;
  training::EvalPlan evaluation;
  training::Schedule schedule;
  bool dynamic_loss_scale = false;
  double clip_norm = 0;                                  // as in training::LeadOptions
  std::shared_ptr<const training::TensorPieces> pieces;  // likewise
  bool asynchronous = false;
  bool has_accuracy = true;    // as in training::LeadOptions
  int64_t max_staleness = -1;  // of an asynchronous job, until an order changes it; -1: any
  training::GradientFormat gradient_format;
  bool replicas = false;               // workers update, too (kvstore.update_on_kvstore: false)
  int64_t checkpoint_every_steps = 0;  // as in training::LeadOptions
  absl::Duration checkpoint_every = absl::InfiniteDuration();
};

struct ShardTimes {
  absl::Duration repeat = absl::Milliseconds(200);      // of parts and decisions
  absl::Duration min_backoff = absl::Milliseconds(50);  // of the stream to the lead
  absl::Duration max_backoff = absl::Seconds(2);
  absl::Duration file_retry = absl::Seconds(1);
  LatePolicy late;  // of lanes, at the lead
  // Likewise of an asynchronous job, where a slow lane holds up nobody else.
  LatePolicy late_asynchronous = {.floor = absl::Seconds(10)};
};

// Chunks that were not stored, by reason; frames (or seals) that ended their stream count once.
struct DropCounts {
  int64_t past = 0;
  int64_t covered = 0;
  int64_t corrupt = 0;
  int64_t ahead = 0;  // a step ahead in the same lineage: a bug of the sender
  int64_t wrong_shard = 0;
  int64_t invalid = 0;
  int64_t lineage = 0;  // streams refused for their lineage or digest
};

class ShardCore {
 public:
  explicit ShardCore(ShardPlan plan, ShardTimes times = {});

  Effects Step(const Event& event, absl::Duration now);
  // When a Tick is due; InfiniteDuration: never. Asked for after each Step.
  absl::Duration NextDeadline() const;

  // Whether `chunk_count` encoded chunks from first_chunk on, of payload_bytes together, are this
  // shard's.
  // InvalidArgument: not chunks of the job, or another length; OutOfRange: of another shard.
  absl::Status CheckShape(int32_t first_chunk, int32_t chunk_count, size_t payload_bytes) const;

  node::v1::ShardState State(absl::Duration now) const;

  const ShardPlan& plan() const { return plan_; }
  int64_t lineage() const { return lineage_; }
  int64_t version() const { return version_; }  // published; -1: none yet
  const DropCounts& drops() const { return drops_; }
  // Workers of the view whose every lane is here while others are still missing.
  int32_t waiting_workers() const;
  // Tasks that finish the held version, or wait for another one to be held.
  const Held& held() const { return held_version_; }
  // That slow tasks were not sent, of all lineages. Counted by the lead.
  int64_t missed_versions() const { return missed_versions_; }
  int64_t slow_readers() const { return static_cast<int64_t>(missed_.size()); }
  // Of an asynchronous job, counted by the lead, of all lineages: seals by the staleness of their
  // weights. The index is the staleness; the last one counts all from there on.
  static constexpr size_t kStalenessCounts = 66;
  const std::vector<int64_t>& staleness() const { return staleness_; }
  // Of an asynchronous job: the bound of staleness by which this shard answers; -1: none.
  int64_t max_staleness() const { return max_staleness_; }
  const training::Lead* lead() const { return lead_.has_value() ? &*lead_ : nullptr; }

 private:
  // A version that is being written, or whose files wait to be taken.
  struct Checkpoint {
    int64_t version = 0;
    bool last = false;          // of its lineage: tried again until it is written
    std::string lead_snapshot;  // shard 0
    std::optional<node::v1::WrittenFiles> report;
  };
  struct Stream {
    v1::StreamKind kind = v1::STREAM_KIND_DATA;
    int32_t index = 0;
    int64_t have_version = -1;
    int64_t sending = -1;  // the version whose frames are on their way out; -1: none
    // Of a job whose workers update: the version that the task has once it has taken all that was sent,
    // with state; -1: not known.
    int64_t base = -1;
    bool open = false;  // HelloReply is sent; before, the base is being loaded
    // Asynchronous jobs: whether a set is to be sent whatever its floor is; by lane, the step whose
    // answer is owed; and the sets sent so far.
    bool wants = false;
    std::map<int32_t, int64_t> owed;
    int64_t sets = 0;
  };

  void On(const StartLineage& event);
  void On(const GiveOrders& event);
  void On(const ViewChange& event);
  void On(const BaseLoaded& event);
  void On(const StreamOpened& event);
  void On(const StreamClosed& event);
  void On(const WeightsTaken& event);
  void On(const FrameArrived& event);
  void On(const SkipArrived& event);
  void On(const WeightsAskedFor& event);
  void On(const SealArrived& event);
  void On(const PartArrived& event);
  void On(const ShownArrived& event);
  void On(const EvaluationArrived& event);
  void On(const LeadOpened& event);
  void On(const LeadClosed& event);
  void On(const DecisionArrived& event);
  void On(const RootsChecked& event);
  void On(const FilesWritten& event);
  void On(const FilesTaken& event);
  void On(const EndJob& event);
  void On(const Tick& event);

  // Asynchronous jobs (core_asynchronous.cc).
  bool asynchronous() const { return plan_.asynchronous; }
  absl::Status CheckLane(int64_t step, int32_t lane) const;
  absl::Status CheckContribution(const FrameArrived& frame) const;
  void Contribute(const FrameArrived& event);
  absl::Status CheckSeal(const SealArrived& event) const;
  void CountSeal(const SealArrived& event);
  bool IsOver(int32_t lane, int64_t step) const;
  bool MayAnswer(int32_t lane, int64_t step) const;
  void AnswerAll();
  void Advance();
  void PublishClock(const training::Decision& decision);
  std::vector<int64_t> MarksNow() const;

  absl::Status CheckHello(const StreamOpened& hello) const;
  absl::Status CheckFrame(const FrameArrived& frame) const;
  // The open stream that `id` names, where it is of one of these kinds; else it is closed.
  Stream* Sender(StreamId id, std::initializer_list<v1::StreamKind> kinds);
  // OK where this shard is the lead; else the stream is closed.
  bool IsLeadFor(StreamId id);
  void OpenStream(StreamId id, Stream& stream);
  void Close(StreamId id, absl::Status status);
  void CloseAll(const absl::Status& status);
  void BeginStep();
  void WatchLanes();
  void BoundStaleness(int64_t max_staleness);
  void EmitWeights(StreamId id, Stream& stream, bool published = false);
  void CountMissed();
  VersionReaders ReadersNow() const;
  bool OwnsLanes(int32_t rank) const;
  void ForgetSlowOwners();
  // Whether this task waits for the held version, or inside it.
  bool IsSlow(int32_t rank) const;
  Held ChooseHeld(const training::Decision& decision) const;
  void Decide();
  void Publish(const training::Decision& decision, const Held& held);
  void MakeLead(const std::optional<training::LeadSnapshot>& snapshot);
  void Save();
  void EmitWriteFiles();
  void FailBase(absl::string_view reason, absl::string_view message);
  void RepeatDecision(StreamId id, const Stream& stream);
  void FillWaiting(node::v1::Waiting* waiting) const;
  template <typename T>
  void Emit(T effect) {
    effects_.push_back(std::move(effect));
  }

  const ShardPlan plan_;
  const ShardTimes times_;
  const training::GradientLayout gradients_;
  Effects effects_;     // of the Step under way
  absl::Duration now_;  // likewise

  int64_t lineage_ = 0;
  int64_t generation_ = 0;
  int32_t num_shards_ = 0;  // of the lineage
  training::ChunkRun run_;
  std::vector<int32_t> workers_;
  std::vector<int32_t> lane_owners_;
  bool ready_ = false;
  bool ended_ = false;
  std::string reason_, message_;  // this shard cannot go on

  int64_t version_ = -1;
  bool stop_ = false;      // of version_
  bool evaluate_ = false;  // of version_
  // What is said of a version in this lineage, as in SendWeights.
  struct Said {
    bool skipped = false;
    bool saved = false;
    uint64_t skipped_before = 0;
  };
  Said said_;            // of version_
  Said held_said_;       // of held_version_
  bool retired_ = true;  // version_ - 1 is
  absl::Duration published_at_;
  training::LaneTree tree_;                  // of step version_
  std::vector<training::ChunkFold> chunks_;  // of run_
  int32_t complete_chunks_ = 0;
  std::optional<training::RootReport> report_;  // of step version_, once its roots are checked
  double gradient_scale_ = 1;                   // of step version_
  int64_t applied_steps_ = 0;                   // before step version_

  LaneMarks marks_;                  // of an asynchronous job, in place of chunks_
  std::vector<int64_t> seal_marks_;  // likewise, at the lead: by lane, the next step of its seals
  training::Schedule schedule_;      // likewise: with the base rate of an order
  // Likewise: the bound by which this shard answers, and the loosest one of this lineage. A lane may
  // have begun a step by an earlier bound. -1: none.
  int64_t max_staleness_ = -1, loosest_staleness_ = -1;
  std::vector<int64_t> staleness_;  // likewise, at the lead

  std::optional<training::Lead> lead_;  // shard 0
  std::vector<int64_t> shown_;          // lead: by shard, the newest version that it showed
  LaneTimes lane_times_;                // lead
  std::map<StreamId, Stream> streams_;
  Held held_version_;                    // as the last decision says
  std::vector<VersionReaders> readers_;  // lead: by shard, of its last part
  struct Missed {
    int64_t versions = 0;  // that it was not sent
    int64_t last = 0;      // of them
  };
  std::map<int32_t, Missed> missed_;  // lead: by rank, until it has taken kCaughtUp in a row
  int64_t missed_versions_ = 0;

  bool lead_open_ = false;  // other shards: the stream to the lead
  absl::Duration lead_backoff_;
  absl::Duration connect_at_ = absl::InfiniteDuration();
  absl::Duration repeat_part_at_ = absl::InfiniteDuration();
  absl::Duration repeat_decision_at_ = absl::InfiniteDuration();
  absl::Duration write_at_ = absl::InfiniteDuration();
  absl::Duration late_at_ = absl::InfiniteDuration();  // lead: a lane may be late

  std::vector<training::Order> orders_;  // of StartLineage, until there is a lead
  std::deque<Checkpoint> checkpoints_;   // oldest first
  int64_t checkpoint_failures_ = 0;
  DropCounts drops_;
};

}  // namespace capstan::exchange::shard

#endif  // CAPSTAN_EXCHANGE_SHARD_SHARD_CORE_H_
