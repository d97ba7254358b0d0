// What a ShardCore is told (events) and what it wants done (effects). Plain values: no tensor, no
// stream, no file, only handles to them.
//
// Effects are carried out in the order given. Where one asks for an answer, the event that gives it
// is named.
#ifndef CAPSTAN_EXCHANGE_SHARD_SHARD_EVENTS_H_
#define CAPSTAN_EXCHANGE_SHARD_SHARD_EVENTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/param_store/v1/param_store.pb.h"
#include "training/chunks/placement.h"
#include "training/codec/step_log.h"
#include "training/fold/chunk_fold.h"
#include "training/fold/tree_fold.h"
#include "training/lanes/lane_tree.h"
#include "training/lead/lead.h"
#include "training/norm/norm_tree.h"

namespace capstan::exchange::shard {

namespace v1 = param_store::v1;

using StreamId = int64_t;  // given by the adapter, never used twice
// Tasks that need longer than a step to take a version (rule R8): they finish the held one, which
// all shards keep for them, and are not sent others meanwhile.
struct Held {
  int64_t version = -1;  // -1: none
  std::vector<int32_t> slow_ranks;
};
// What a shard sees of that, at the end of a step.
struct VersionReaders {
  std::vector<int32_t> slow_ranks;  // inside the version at hand
  bool held_in_use = false;         // somebody is inside the held one
};

// ---- Events ----

// From the coordinator alone. At or below the lineage at hand: no effect.
struct StartLineage {
  int64_t lineage = 0;
  int64_t generation = 0;
  int32_t num_shards = 1;               // of this lineage
  training::ChunkRun run;               // of this shard, not empty, inside the layout
  std::vector<int32_t> workers;         // ranks that may open streams
  std::vector<int32_t> lane_owners;     // one rank per lane
  std::string base_manifest;            // folder of the manifest; empty: the initial weights
  std::vector<training::Order> orders;  // for the lead, that the manifest lacks
};
// For the lead, repeated by the coordinator until its state shows them. Of another lineage: no
// effect.
struct GiveOrders {
  int64_t lineage = 0;
  std::vector<training::Order> orders;
};
struct ViewChange {  // of another lineage, or not above the generation at hand: no effect
  int64_t lineage = 0;
  int64_t generation = 0;
  std::vector<int32_t> workers;
  std::vector<int32_t> lane_owners;
};
// Answers LoadBase. A failure carries a reason of docs/interface.md in `reason`.
struct BaseLoaded {
  int64_t lineage = 0;
  int64_t version = 0;
  std::string reason;  // empty: loaded
  std::string message;
  std::optional<training::LeadSnapshot> snapshot;  // of the manifest
  std::vector<int64_t> marks;  // of the run's chunks (LaneMarks::Saved); empty: nothing is applied
};
struct StreamOpened {  // its Hello
  StreamId stream = 0;
  v1::StreamKind kind = v1::STREAM_KIND_DATA;
  std::string spec_digest;
  int64_t lineage = 0;
  int32_t index = 0;
  int64_t have_version = -1;
};
struct StreamClosed {
  StreamId stream = 0;
};
struct WeightsTaken {  // gRPC has the last frame of `version` for this stream
  StreamId stream = 0;
  int64_t version = 0;
};
struct FrameArrived {
  StreamId stream = 0;
  int64_t step = 0;
  training::LaneBlock block;
  int32_t first_chunk = 0;
  int32_t chunk_count = 0;   // checksums in the frame
  size_t payload_bytes = 0;  // encoded
  std::vector<bool> intact;  // per chunk; read only where ShardCore::CheckShape is OK
  int64_t payload = 0;       // handle, for FoldFrame and ApplyFrame
};
// Asynchronous: LaneSkip and WeightsWanted of param_store.proto.
struct SkipArrived {
  StreamId stream = 0;
  int64_t step = 0;
  int32_t lane = 0;
};
struct WeightsAskedFor {
  StreamId stream = 0;
  int64_t step = 0;
  int32_t lane = 0;
};
struct SealArrived {
  StreamId stream = 0;
  int64_t step = 0;
  training::LaneBlock block;
  training::SealSums sums;
  int64_t staleness = 0;
};
struct PartArrived {
  StreamId stream = 0;
  int64_t step = 0;
  int32_t shard = 0;
  training::RootReport report;
  VersionReaders readers;
};
struct ShownArrived {  // a shard has published `version`
  StreamId stream = 0;
  int64_t version = 0;
};
struct EvaluationArrived {
  StreamId stream = 0;
  int64_t version = 0;
  int64_t block = 0;
  training::SealSums sums;
};
// The stream to the lead, on shards other than 0. `lineage` is that of its ConnectLead.
struct LeadOpened {
  int64_t lineage = 0;
};
struct LeadClosed {
  int64_t lineage = 0;
  absl::Status status;
};
struct DecisionArrived {
  int64_t lineage = 0;
  training::Decision decision;
  Held held;
};
// Answers CheckRoots.
struct RootsChecked {
  int64_t lineage = 0;
  int64_t step = 0;
  training::RootReport report;
};
// Answers WriteFiles; `error` not OK: nothing of it is there.
struct FilesWritten {
  int64_t lineage = 0;
  int64_t version = 0;
  std::vector<common::v1::FileInfo> files;
  absl::Status error;
};
struct FilesTaken {  // the manifest of `version` is committed, or was given up
  int64_t lineage = 0;
  int64_t version = 0;
};
struct EndJob {};
struct Tick {};

using Event =
    std::variant<StartLineage, GiveOrders, ViewChange, BaseLoaded, StreamOpened, StreamClosed,
                 WeightsTaken, FrameArrived, SkipArrived, WeightsAskedFor, SealArrived, PartArrived,
                 ShownArrived, EvaluationArrived, LeadOpened, LeadClosed, DecisionArrived,
                 RootsChecked, FilesWritten, FilesTaken, EndJob, Tick>;

// ---- Effects ----

// Forget all weights and sums, load the chunks of `run`; BaseLoaded answers.
struct LoadBase {
  int64_t lineage = 0;
  training::ChunkRun run;
  std::string base_manifest;
};
struct SendHelloReply {
  StreamId stream = 0;
  int64_t lineage = 0;
  int64_t version = 0;
};
// End the stream. No StreamClosed needs to follow.
struct CloseStream {
  StreamId stream = 0;
  absl::Status status;
};
struct SendAck {
  StreamId stream = 0;
  int64_t step = 0;
  training::LaneBlock block;
  int32_t first_chunk = 0;
  std::vector<v1::FrameOutcome> outcomes;
};
// Do this with the chunks of the payload (ChunkSum::Do). Chunks without commands are not stored.
struct FoldFrame {
  int64_t payload = 0;
  int32_t first_chunk = 0;
  std::vector<training::FoldCommands> commands;  // by chunk of the payload
};
// Asynchronous: apply chunks of the payload, each to its own weights and with its own count.
struct ApplyFrame {
  int64_t payload = 0;
  int32_t first_chunk = 0;
  // By chunk of the payload: contributions that its weights have already; -1: leave it out.
  std::vector<int64_t> updates;
  double learning_rate = 0;
};
// All sums of `step` are complete; RootsChecked answers. `norms`: with their square sums.
struct CheckRoots {
  int64_t lineage = 0;
  int64_t step = 0;
  bool norms = false;
  // As they will be in the decision of `step`, for the squares of pieces.
  double gradient_scale = 1;
  int64_t applied_steps = 0;
};
// Make version step+1: by the optimizer, or (apply false) the same weights again. Then begin the
// sums of step+1 with its empty lanes. `held_version` is kept until another ApplyStep names another
// one: version `step`, or the one that is held, or -1. An asynchronous job only counts the version.
struct ApplyStep {
  training::Decision decision;
  int64_t held_version = -1;
};
// Send all chunks of this shard of the version at hand or the held one, first layers first;
// WeightsTaken tells when that is done. Frames of other versions that wait for the same stream are
// dropped.
struct SendWeights {
  StreamId stream = 0;
  int64_t version = 0;
  bool stop = false;
  bool evaluate = false;
  bool skipped = false;  // the step before it was
  bool saved = false;
  uint64_t skipped_before = 0;  // as in WeightFrame of param_store.proto
  double loss_scale = 0;        // of step `version`, where this shard is the lead
  // Jobs whose workers update: the task has the version before, so the sums of the step are enough.
  // Only behind the ApplyStep that makes `version`. Otherwise weights and state are sent, or weights
  // alone of a held version.
  bool update = false;
  // Asynchronous: as in WeightFrame of param_store.proto.
  int64_t set = 0;
  std::vector<int64_t> marks;
  int64_t floor = 0;
  int64_t max_staleness = -1;
};
// Drop the frames that wait for this stream.
struct DropWeights {
  StreamId stream = 0;
};
// Nobody asks for `version` any more: its buffer may be used again once no slice refers to it.
struct RetireVersion {
  int64_t version = 0;
};
// Open the stream to the lead, in place of one that is there; LeadOpened with its HelloReply, or
// LeadClosed, answers.
struct ConnectLead {
  int64_t lineage = 0;
  int64_t have_version = 0;
};
struct DropLead {};
struct SendPart {  // to the lead
  int64_t step = 0;
  training::RootReport report;
  VersionReaders readers;
};
struct SendShown {  // to the lead: this version is published
  int64_t version = 0;
};
struct SendDecision {  // to a shard's stream
  StreamId stream = 0;
  training::Decision decision;
  Held held;
};
struct LogStep {  // a line of metrics.jsonl
  training::StepLogLine line;
};
// Write this shard's file of the checkpoint, from the weights and the optimizer's state as they are
// now; FilesWritten answers.
struct WriteFiles {
  int64_t lineage = 0;
  int64_t version = 0;
  std::vector<int64_t> marks;  // of an asynchronous job (LaneMarks::Saved)
};
// State() has changed in a way that the coordinator wants to know at once.
struct StateChanged {};

using Effect =
    std::variant<LoadBase, SendHelloReply, CloseStream, SendAck, FoldFrame, ApplyFrame, CheckRoots,
                 ApplyStep, SendWeights, DropWeights, RetireVersion, ConnectLead, DropLead,
                 SendPart, SendShown, SendDecision, LogStep, WriteFiles, StateChanged>;
using Effects = std::vector<Effect>;

}  // namespace capstan::exchange::shard

#endif  // CAPSTAN_EXCHANGE_SHARD_SHARD_EVENTS_H_
