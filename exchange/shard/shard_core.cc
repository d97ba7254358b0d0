#include "exchange/shard/shard_core.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::exchange::shard {

using training::ChunkRun;
using training::Decision;
using training::Told;

constexpr int64_t kCaughtUp = 10;  // versions in a row, and a task is no slow reader any more

ShardCore::ShardCore(ShardPlan plan, ShardTimes times)
    : plan_(std::move(plan)),
      times_(times),
      gradients_(plan_.layout, plan_.gradient_format),
      tree_(plan_.samples.lane_tree()),
      marks_(plan_.samples, plan_.total_steps),
      schedule_(plan_.schedule),
      staleness_(plan_.asynchronous ? kStalenessCounts : 0),
      lane_times_(plan_.asynchronous ? times.late_asynchronous : times.late) {
  CAPSTAN_CHECK(plan_.shard >= 0 && plan_.total_steps >= 1);
}

Effects ShardCore::Step(const Event& event, absl::Duration now) {
  now_ = now;
  if (!ended_) std::visit([this](const auto& e) { On(e); }, event);
  if (asynchronous()) Advance();
  return std::exchange(effects_, {});
}

absl::Duration ShardCore::NextDeadline() const {
  return std::min({connect_at_, repeat_part_at_, repeat_decision_at_, write_at_, late_at_});
}

// ---- Streams ----

absl::Status ShardCore::CheckHello(const StreamOpened& hello) const {
  if (hello.spec_digest != plan_.spec_digest) {
    return absl::FailedPreconditionError("spec_digest: not that of this job");
  }
  if (hello.lineage < 1) {
    return absl::InvalidArgumentError(absl::StrCat("lineage: got ", hello.lineage, ", want >= 1"));
  }
  if (hello.lineage < lineage_ && !CAPSTAN_MUTANT("no_fence")) {
    return absl::FailedPreconditionError(
        absl::StrCat("lineage ", hello.lineage, " is over, current ", lineage_));
  }
  if (hello.lineage > lineage_) {
    return absl::UnavailableError(
        absl::StrCat("lineage ", hello.lineage, " is not known here yet, current ", lineage_));
  }
  // Only now: another lineage may have other numbers of shards, and another lead.
  if (hello.kind == v1::STREAM_KIND_SHARD) {
    if (plan_.shard != 0 || hello.index < 1 || hello.index >= num_shards_) {
      return absl::InvalidArgumentError(absl::StrCat("index: shard ", hello.index, " to shard ",
                                                     plan_.shard, " of ", num_shards_));
    }
  } else if (hello.kind == v1::STREAM_KIND_CONTROL && plan_.shard != 0) {
    return absl::InvalidArgumentError("kind: seals go to shard 0");
  }
  if (hello.kind != v1::STREAM_KIND_SHARD &&
      std::find(workers_.begin(), workers_.end(), hello.index) == workers_.end()) {
    return absl::UnavailableError(absl::StrCat("worker ", hello.index, " is not in the view"));
  }
  if (!reason_.empty()) return absl::UnavailableError(message_);
  if (ready_ && hello.have_version > version_) {
    return absl::InvalidArgumentError(
        absl::StrCat("have_version: ", hello.have_version, " is ahead of ", version_));
  }
  return absl::OkStatus();
}

void ShardCore::On(const StreamOpened& event) {
  const absl::Status status = CheckHello(event);
  if (!status.ok()) {
    ++(absl::IsInvalidArgument(status) ? drops_.invalid : drops_.lineage);
    Emit(CloseStream{event.stream, status});
    return;
  }
  Stream& stream = streams_[event.stream];
  stream.kind = event.kind;
  stream.index = event.index;
  stream.have_version = event.have_version;
  if (ready_) OpenStream(event.stream, stream);
}

void ShardCore::OpenStream(StreamId id, Stream& stream) {
  stream.open = true;
  Emit(SendHelloReply{id, lineage_, version_});
  if (stream.kind == v1::STREAM_KIND_DATA && asynchronous()) {
    stream.wants = true;
  } else if (stream.kind == v1::STREAM_KIND_DATA) {
    if (!IsSlow(stream.index)) {
      stream.base = version_;
      if (stream.have_version < version_) EmitWeights(id, stream);
    } else if (stream.have_version < held_version_.version) {
      // The other shards finish the held one for this task too.
      stream.sending = held_version_.version;
      Emit(SendWeights{.stream = id,
                       .version = held_version_.version,
                       .skipped = held_said_.skipped,
                       .saved = held_said_.saved,
                       .skipped_before = held_said_.skipped_before});
    }
  }
  if (stream.kind == v1::STREAM_KIND_SHARD) {
    shown_[stream.index] = std::max(shown_[stream.index], stream.have_version);
    RepeatDecision(id, stream);
  }
}

void ShardCore::On(const StreamClosed& event) { streams_.erase(event.stream); }

void ShardCore::On(const WeightsTaken& event) {
  const auto it = streams_.find(event.stream);
  if (it == streams_.end()) return;
  // Of an asynchronous job one set at a time is on its way.
  if (asynchronous() || it->second.sending == event.version) it->second.sending = -1;
  it->second.have_version = std::max(it->second.have_version, event.version);
}

void ShardCore::Close(StreamId id, absl::Status status) {
  streams_.erase(id);
  Emit(CloseStream{id, std::move(status)});
}

void ShardCore::CloseAll(const absl::Status& status) {
  for (const auto& entry : streams_) Emit(CloseStream{entry.first, status});
  streams_.clear();
}

ShardCore::Stream* ShardCore::Sender(StreamId id, std::initializer_list<v1::StreamKind> kinds) {
  const auto it = streams_.find(id);
  if (it == streams_.end())
    return nullptr;  // closed meanwhile; what it still had to say is dropped
  const bool fits = std::find(kinds.begin(), kinds.end(), it->second.kind) != kinds.end();
  if (fits && it->second.open) return &it->second;
  ++drops_.invalid;
  Close(id, absl::InvalidArgumentError(fits ? "a message before the HelloReply"
                                            : "a message that this kind of stream does not carry"));
  return nullptr;
}

bool ShardCore::IsLeadFor(StreamId id) {
  if (lead_.has_value()) return true;
  ++drops_.invalid;
  Close(id, absl::InvalidArgumentError("seals, parts and evaluations go to shard 0"));
  return false;
}

// ---- Contributions (R6) ----

absl::Status ShardCore::CheckShape(int32_t first_chunk, int32_t chunk_count,
                                   size_t payload_bytes) const {
  const int64_t end = int64_t{first_chunk} + chunk_count;
  if (first_chunk < 0 || chunk_count < 1 || end > plan_.layout.chunk_count()) {
    return absl::InvalidArgumentError(absl::StrCat("chunks [", first_chunk, ",", end,
                                                   "): the job has ", plan_.layout.chunk_count()));
  }
  if (first_chunk < run_.first_chunk || end > run_.end()) {
    return absl::OutOfRangeError(absl::StrCat("chunks [", first_chunk, ",", end,
                                              "): this shard holds [", run_.first_chunk, ",",
                                              run_.end(), ")"));
  }
  const int64_t want = gradients_.RangeOf(ChunkRun{first_chunk, chunk_count}).size * sizeof(float);
  if (static_cast<int64_t>(payload_bytes) != want) {
    return absl::InvalidArgumentError(absl::StrCat("payload of chunks [", first_chunk, ",", end,
                                                   "): ", payload_bytes, " bytes, want ", want));
  }
  return absl::OkStatus();
}

absl::Status ShardCore::CheckFrame(const FrameArrived& frame) const {
  absl::Status shape = CheckShape(frame.first_chunk, frame.chunk_count, frame.payload_bytes);
  if (!shape.ok()) return shape;
  if (frame.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("step: got ", frame.step, ", want >= 0"));
  }
  if (plan_.gradient_format.encoding != training::GradientEncoding::kNone &&
      frame.block.lane_count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane_count: got ", frame.block.lane_count, ", want 1: the job compresses"));
  }
  // A past step may have had other empty lanes: only the form of the block counts then.
  return frame.step == version_ ? tree_.Validate(frame.block)
                                : plan_.samples.lane_tree().Validate(frame.block);
}

void ShardCore::On(const FrameArrived& event) {
  if (Sender(event.stream, {v1::STREAM_KIND_DATA}) == nullptr) return;
  if (asynchronous()) return Contribute(event);
  const absl::Status valid = CheckFrame(event);
  if (!valid.ok()) {
    ++(absl::IsOutOfRange(valid) ? drops_.wrong_shard : drops_.invalid);
    Close(event.stream, valid);
    return;
  }
  if (event.step > version_ || (event.step == version_ && stop_)) {
    ++drops_.ahead;
    Close(event.stream, absl::InvalidArgumentError(
                            absl::StrCat("step ", event.step, " is ahead of version ", version_)));
    return;
  }
  if (CAPSTAN_MUTANT("frames_in_order_alone") && event.step == version_ &&
      event.first_chunk > run_.first_chunk &&
      !chunks_[event.first_chunk - run_.first_chunk - 1].held().Covers(event.block)) {
    return;
  }
  // Only a task that has the whole version sends frames of it (rule R8). A replica may still lack it if
  // the stream was opened without any.
  Stream& stream = streams_.at(event.stream);
  if (plan_.replicas && stream.have_version >= 0 && stream.sending == event.step) {
    stream.sending = -1;
  }
  std::vector<v1::FrameOutcome> outcomes(event.chunk_count, v1::FRAME_OUTCOME_PAST);
  std::vector<training::FoldCommands> commands(event.chunk_count);
  int32_t stored = 0;
  if (event.step < version_) {
    drops_.past += event.chunk_count;
  } else {
    for (int32_t i = 0; i < event.chunk_count; ++i) {
      training::ChunkFold& chunk = chunks_[event.first_chunk - run_.first_chunk + i];
      if (!event.intact[i] && !CAPSTAN_MUTANT("no_checksum")) {
        outcomes[i] = v1::FRAME_OUTCOME_CORRUPT;
        ++drops_.corrupt;
      } else if (chunk.held().Covers(event.block)) {
        outcomes[i] = v1::FRAME_OUTCOME_COVERED;
        ++drops_.covered;
        if (CAPSTAN_MUTANT("no_dedupe")) {
          const training::HeldBlocks& held = chunk.held();
          outcomes[i] = v1::FRAME_OUTCOME_STORED;
          ++stored;
          commands[i] = {{training::FoldCommand::Kind::kAdd,
                          held.entries()[held.FindCovering(event.block)].slot}};
        }
      } else {
        outcomes[i] = v1::FRAME_OUTCOME_STORED;
        ++stored;
        commands[i] = chunk.Store(event.block);
        if (chunk.held().complete()) ++complete_chunks_;
      }
    }
  }
  const bool all_stored = stored == event.chunk_count;
  if (stored > 0) {
    if (!retired_) {
      retired_ = true;
      Emit(RetireVersion{version_ - 1});
    }
    Emit(FoldFrame{event.payload, event.first_chunk, std::move(commands)});
  }
  if (!all_stored) {
    Emit(SendAck{event.stream, event.step, event.block, event.first_chunk, std::move(outcomes)});
  }
  if (stored > 0 && complete_chunks_ == run_.chunk_count) {
    Emit(CheckRoots{lineage_, version_, plan_.clip_norm > 0, gradient_scale_, applied_steps_});
  }
}

void ShardCore::On(const RootsChecked& event) {
  if (!ready_ || event.lineage != lineage_ || event.step != version_ || report_.has_value()) return;
  report_ = event.report;
  if (lead_.has_value()) {
    CAPSTAN_CHECK(lead_->AddPart(version_, 0, event.report, now_).ok());
    Decide();
    return;
  }
  if (lead_open_) Emit(SendPart{version_, event.report, ReadersNow()});
  repeat_part_at_ = now_ + times_.repeat;
}

// ---- Seals, parts, evaluations, decisions (R7) ----

void ShardCore::On(const SealArrived& event) {
  if (Sender(event.stream, {v1::STREAM_KIND_DATA, v1::STREAM_KIND_CONTROL}) == nullptr) return;
  if (!IsLeadFor(event.stream)) return;
  if (asynchronous()) {
    if (const absl::Status valid = CheckSeal(event); !valid.ok()) {
      ++drops_.invalid;
      Close(event.stream, valid);
      return;
    }
    if (stop_) return;
  }
  const auto told = lead_->AddSeal(event.step, event.block, event.sums, now_);
  if (!told.ok()) {
    ++(event.step >= version_ + (stop_ ? 0 : 1) ? drops_.ahead : drops_.invalid);
    Close(event.stream, told.status());
    return;
  }
  if (*told != Told::kTaken) return;
  if (asynchronous()) CountSeal(event);
  if (event.step == version_) lane_times_.Sealed(event.block, now_);
  WatchLanes();
  Decide();
}

void ShardCore::On(const EvaluationArrived& event) {
  if (Sender(event.stream, {v1::STREAM_KIND_DATA, v1::STREAM_KIND_CONTROL}) == nullptr) return;
  if (!IsLeadFor(event.stream)) return;
  const size_t epochs = lead_->epochs().size();
  const bool complete = lead_->complete();
  const auto told = lead_->AddEvaluation(event.version, event.block, event.sums, now_);
  if (!told.ok()) {
    ++(event.version > version_ ? drops_.ahead : drops_.invalid);
    Close(event.stream, told.status());
    return;
  }
  if (lead_->epochs().size() != epochs || lead_->complete() != complete) Emit(StateChanged{});
  if (*told == Told::kTaken) Decide();
}

void ShardCore::On(const PartArrived& event) {
  Stream* const stream = Sender(event.stream, {v1::STREAM_KIND_SHARD});
  if (stream == nullptr) return;
  if (event.shard != stream->index) {
    ++drops_.invalid;
    Close(event.stream, absl::InvalidArgumentError(
                            absl::StrCat("shard: got ", event.shard, ", want ", stream->index)));
    return;
  }
  const auto told = lead_->AddPart(event.step, event.shard, event.report, now_);
  if (!told.ok()) {
    ++(event.step >= version_ + (stop_ ? 0 : 1) ? drops_.ahead : drops_.invalid);
    Close(event.stream, told.status());
    return;
  }
  shown_[event.shard] = std::max(shown_[event.shard], event.step);
  if (event.step == version_) readers_[event.shard] = event.readers;
  if (*told == Told::kPast) RepeatDecision(event.stream, *stream);
  if (*told == Told::kTaken) Decide();
}

void ShardCore::On(const ShownArrived& event) {
  Stream* const stream = Sender(event.stream, {v1::STREAM_KIND_SHARD});
  if (stream == nullptr) return;
  if (event.version < 0 || event.version > version_) {
    ++drops_.invalid;
    Close(event.stream, absl::InvalidArgumentError(
                            absl::StrCat("version: got ", event.version, ", want 0..", version_)));
    return;
  }
  shown_[stream->index] = std::max(shown_[stream->index], event.version);
}

void ShardCore::Decide() {
  const size_t epochs = lead_->epochs().size();
  const auto decided = lead_->Decide(now_);
  if (!decided.has_value()) {
    if (lead_->failure().has_value()) Emit(StateChanged{});
    return;
  }
  const Decision& decision = decided->decision;
  const Held held = ChooseHeld(decision);
  // The other shards can begin while this one applies.
  for (const auto& [id, stream] : streams_) {
    if (stream.kind != v1::STREAM_KIND_SHARD || !stream.open) continue;
    Emit(SendDecision{id, decision, held});
    if (CAPSTAN_MUTANT("decision_sent_is_shown")) shown_[stream.index] = decision.step + 1;
  }
  if (num_shards_ > 1) repeat_decision_at_ = now_ + times_.repeat;
  Emit(LogStep{
      decided->line});  // before WriteFiles, so that the log is whole once the files are there
  Publish(decision, held);
  if (decision.step == 0 || decision.stop || !decision.order_ids.empty() ||
      lead_->epochs().size() != epochs) {
    Emit(StateChanged{});
  }
}

// ---- Tasks that are slower than a step (R8) ----

bool ShardCore::OwnsLanes(int32_t rank) const {
  return std::find(lane_owners_.begin(), lane_owners_.end(), rank) != lane_owners_.end();
}

bool ShardCore::IsSlow(int32_t rank) const {
  const std::vector<int32_t>& slow = held_version_.slow_ranks;
  return std::find(slow.begin(), slow.end(), rank) != slow.end() && !OwnsLanes(rank);
}

VersionReaders ShardCore::ReadersNow() const {
  VersionReaders readers;
  if (asynchronous()) return readers;
  for (const auto& entry : streams_) {
    const Stream& stream = entry.second;
    if (stream.sending < 0) continue;
    if (stream.sending == held_version_.version) {
      readers.held_in_use = true;
    } else if (stream.sending == version_) {
      readers.slow_ranks.push_back(stream.index);
    }
  }
  return readers;
}

// What all shards keep from this decision on. A version is held until all slow tasks have taken it
// from all shards: else the parts that they take would be of different versions.
Held ShardCore::ChooseHeld(const Decision& decision) const {
  if (decision.stop || asynchronous() || CAPSTAN_MUTANT("slow_readers_are_cut_off")) return {};
  bool held_in_use = false;
  std::set<int32_t> slow;
  const auto add = [&](const VersionReaders& readers) {
    held_in_use = held_in_use || readers.held_in_use;
    for (const int32_t rank : readers.slow_ranks) {
      if (!OwnsLanes(rank)) slow.insert(rank);
    }
  };
  add(ReadersNow());
  for (int32_t shard = 1; shard < num_shards_; ++shard) add(readers_[shard]);
  if (held_in_use) {
    slow.insert(held_version_.slow_ranks.begin(), held_version_.slow_ranks.end());
    return {held_version_.version, {slow.begin(), slow.end()}};
  }
  if (slow.empty()) return {};
  return {decision.step, {slow.begin(), slow.end()}};
}

// Sends the last decision to a shard that does not show its version yet.
void ShardCore::RepeatDecision(StreamId id, const Stream& stream) {
  if (CAPSTAN_MUTANT("lead_forgets_decision")) return;
  const auto& last = lead_->last_decision();
  if (last.has_value() && shown_[stream.index] <= last->step)
    Emit(SendDecision{id, *last, held_version_});
}

void ShardCore::On(const DecisionArrived& event) {
  if (!ready_ || lead_.has_value() || event.lineage != lineage_) return;
  if (event.decision.step < version_) {  // the lead does not know yet
    if (lead_open_) Emit(SendShown{version_});
    return;
  }
  if (event.decision.step != version_ || stop_) return;  // of nowhere
  // The lead decides with our part alone; without it the decision is not of this history.
  if (!report_.has_value()) return;
  const size_t tensors =
      plan_.pieces != nullptr && event.decision.apply ? plan_.pieces->tensor_count() : 0;
  if (event.decision.tensor_norms.size() != tensors) return;  // of another layout
  Decision decision = event.decision;
  if (CAPSTAN_MUTANT("finite_per_shard")) decision.apply = report_->finite;
  if (CAPSTAN_MUTANT("clip_factor_is_lost")) decision.clip_factor = 1;
  Publish(decision, event.held);
  // No part of the last version follows, and in an asynchronous job it may follow much later.
  if ((stop_ || asynchronous()) && lead_open_) Emit(SendShown{version_});
  if (decision.step == 0 || decision.stop) Emit(StateChanged{});
}

void ShardCore::Publish(const Decision& decision, const Held& held) {
  if (asynchronous()) return PublishClock(decision);
  CAPSTAN_CHECK(decision.step == version_ && complete_chunks_ == run_.chunk_count);
  // A lead cannot have us hold what is not here.
  const bool here = held.version == version_ || held.version == held_version_.version;
  held_version_ = here ? held : Held();
  if (held_version_.version == version_) held_said_ = said_;
  ForgetSlowOwners();
  Emit(ApplyStep{decision, held_version_.version});
  ++version_;
  stop_ = decision.stop;
  evaluate_ = decision.evaluate;
  said_.skipped_before = said_.skipped_before << 1 | (said_.skipped ? 1 : 0);
  said_.skipped = !decision.apply;
  said_.saved = decision.checkpoint;
  gradient_scale_ = 1 / decision.loss_scale;
  const bool counts = decision.apply || CAPSTAN_MUTANT("skipped_steps_are_updates");
  applied_steps_ = decision.applied_steps + (counts ? 1 : 0);
  retired_ = false;
  published_at_ = now_;
  repeat_part_at_ = absl::InfiniteDuration();
  BeginStep();
  for (auto& [id, stream] : streams_) {
    if (stream.kind != v1::STREAM_KIND_DATA || !stream.open) continue;
    if (!IsSlow(stream.index)) {
      EmitWeights(id, stream, /*published=*/true);
    } else if (stream.sending >= 0 && stream.sending != held_version_.version) {
      stream.base = -1;
      stream.sending = -1;  // until the held one is free: no more than one is kept
      Emit(DropWeights{id});
    }
  }
  CountMissed();
  if (decision.checkpoint) Save();
}

void ShardCore::CountMissed() {
  if (!lead_.has_value()) return;
  for (const int32_t rank : held_version_.slow_ranks) {
    Missed& missed = missed_[rank];
    ++missed.versions;
    missed.last = version_;
    ++missed_versions_;
  }
  for (auto it = missed_.begin(); it != missed_.end();) {
    it = version_ - it->second.last < kCaughtUp ? std::next(it) : missed_.erase(it);
  }
}

// `published`: version_ was made just now. A stream that still has frames of the version before waiting
// would lose them to the next ones.
void ShardCore::EmitWeights(StreamId id, Stream& stream, bool published) {
  const double scale = lead_.has_value() ? lead_->loss_scale() : 0;
  const bool follows = stream.base == version_ - 1 && stream.sending < 0;
  SendWeights send{.stream = id,
                   .version = version_,
                   .stop = stop_,
                   .evaluate = evaluate_,
                   .skipped = said_.skipped,
                   .saved = said_.saved,
                   .skipped_before = said_.skipped_before,
                   .loss_scale = scale};
  send.update = plan_.replicas && published && follows;
  stream.base = version_;
  stream.sending = version_;
  if (asynchronous()) {
    send.set = ++stream.sets;
    send.marks = MarksNow();
    send.floor = marks_.Floor();
    send.max_staleness = max_staleness_;
  }
  Emit(std::move(send));
}

void ShardCore::BeginStep() {
  if (version_ < plan_.total_steps) tree_ = plan_.samples.StepTree(version_);
  for (training::ChunkFold& chunk : chunks_) chunk.Reset(tree_);
  complete_chunks_ = 0;
  report_.reset();
  if (plan_.shard != 0) return;
  if (!stop_) lane_times_.BeginStep(tree_, lane_owners_, now_);
  WatchLanes();
}

void ShardCore::WatchLanes() {
  late_at_ = stop_ ? absl::InfiniteDuration() : lane_times_.NextLate(now_);
}

void ShardCore::On(const LeadOpened& event) {
  if (!ready_ || event.lineage != lineage_) return;
  lead_open_ = true;
  lead_backoff_ = times_.min_backoff;
  connect_at_ = absl::InfiniteDuration();
  if (report_.has_value()) {
    Emit(SendPart{version_, *report_, ReadersNow()});
    repeat_part_at_ = now_ + times_.repeat;
  }
}

void ShardCore::On(const LeadClosed& event) {
  if (!ready_ || event.lineage != lineage_) return;
  lead_open_ = false;
  connect_at_ = now_ + lead_backoff_;
  lead_backoff_ = std::min(lead_backoff_ * 2, times_.max_backoff);
}

// ---- Time ----

void ShardCore::On(const Tick&) {
  if (now_ >= connect_at_) {
    connect_at_ = absl::InfiniteDuration();
    Emit(ConnectLead{lineage_, version_});
  }
  if (now_ >= repeat_part_at_) {
    repeat_part_at_ = now_ + times_.repeat;
    if (lead_open_ && report_.has_value()) Emit(SendPart{version_, *report_, ReadersNow()});
  }
  if (now_ >= repeat_decision_at_) {
    repeat_decision_at_ = absl::InfiniteDuration();
    for (const auto& [id, stream] : streams_) {
      if (stream.kind == v1::STREAM_KIND_SHARD && stream.open) RepeatDecision(id, stream);
    }
    for (int32_t shard = 1; shard < num_shards_; ++shard) {
      if (shown_[shard] < version_) repeat_decision_at_ = now_ + times_.repeat;
    }
  }
  if (now_ >= write_at_) {
    write_at_ = absl::InfiniteDuration();
    EmitWriteFiles();
  }
  if (now_ >= late_at_) {
    WatchLanes();
    Emit(StateChanged{});
  }
}

}  // namespace capstan::exchange::shard
