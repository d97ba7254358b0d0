// Asynchronous jobs: rules A1 to A7, K and K2 of exchange/README.md.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "exchange/shard/shard_core.h"
#include "services/check/check.h"
#include "services/check/mutant.h"

namespace capstan::exchange::shard {

absl::Status ShardCore::CheckLane(int64_t step, int32_t lane) const {
  if (lane < 0 || lane >= plan_.samples.lanes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane: got ", lane, ", want 0..", plan_.samples.lanes() - 1));
  }
  if (step < 0 || step >= plan_.total_steps || plan_.samples.LaneSampleCount(step, lane) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("step: got ", step, ", which lane ", lane, " does not have"));
  }
  return absl::OkStatus();
}

absl::Status ShardCore::CheckContribution(const FrameArrived& frame) const {
  absl::Status valid = CheckShape(frame.first_chunk, frame.chunk_count, frame.payload_bytes);
  if (!valid.ok()) return valid;
  if (frame.block.lane_count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane_count: got ", frame.block.lane_count, ", want 1"));
  }
  return CheckLane(frame.step, frame.block.first_lane);
}

// A1. One frame in one turn: either all its chunks are judged, or none.
void ShardCore::Contribute(const FrameArrived& event) {
  const absl::Status valid = CheckContribution(event);
  if (!valid.ok()) {
    ++(absl::IsOutOfRange(valid) ? drops_.wrong_shard : drops_.invalid);
    Close(event.stream, valid);
    return;
  }
  const int32_t lane = event.block.first_lane;
  const int32_t first = event.first_chunk - run_.first_chunk;
  for (int32_t i = 0; i < event.chunk_count; ++i) {
    if (event.step <= marks_.mark(first + i, lane)) continue;
    ++drops_.ahead;
    Close(event.stream, absl::InvalidArgumentError(absl::StrCat(
                            "step ", event.step, " of lane ", lane, " is ahead of step ",
                            marks_.mark(first + i, lane), " of chunk ", event.first_chunk + i)));
    return;
  }
  if (stop_) return;  // the weights are final
  std::vector<v1::FrameOutcome> outcomes(event.chunk_count, v1::FRAME_OUTCOME_PAST);
  ApplyFrame apply{event.payload, event.first_chunk, std::vector<int64_t>(event.chunk_count, -1),
                   schedule_.LearningRate(event.step)};
  bool any = false;
  bool corrupt = false;
  for (int32_t i = 0; i < event.chunk_count; ++i) {
    const bool past = event.step < marks_.mark(first + i, lane);
    if (past && !CAPSTAN_MUTANT("applied_twice")) {
      ++drops_.past;
    } else if (!event.intact[i] && !CAPSTAN_MUTANT("no_checksum")) {
      outcomes[i] = v1::FRAME_OUTCOME_CORRUPT;
      ++drops_.corrupt;
      corrupt = true;
    } else {
      outcomes[i] = v1::FRAME_OUTCOME_STORED;
      apply.updates[i] = marks_.updates(first + i);
      if (!past) marks_.Raise(first + i, lane, /*applied=*/true);
      any = true;
    }
  }
  if (any) Emit(std::move(apply));
  // Only a corrupt chunk needs an answer of its own. The weights that follow have all marks.
  if (corrupt)
    Emit(SendAck{event.stream, event.step, event.block, event.first_chunk, std::move(outcomes)});
  int64_t& owed = streams_.at(event.stream).owed[lane];
  owed = std::max(owed, event.step);
}

// A6. Chunks in which the step is over already keep their marks.
void ShardCore::On(const SkipArrived& event) {
  Stream* const stream = Sender(event.stream, {v1::STREAM_KIND_DATA});
  if (stream == nullptr) return;
  absl::Status valid = asynchronous() ? CheckLane(event.step, event.lane)
                                      : absl::InvalidArgumentError("a skip in a synchronous job");
  for (int32_t i = 0; valid.ok() && i < run_.chunk_count; ++i) {
    if (event.step <= marks_.mark(i, event.lane)) continue;
    valid = absl::InvalidArgumentError(
        absl::StrCat("skip of step ", event.step, " of lane ", event.lane, " is ahead"));
  }
  if (!valid.ok()) {
    ++drops_.invalid;
    Close(event.stream, valid);
    return;
  }
  if (stop_) return;
  for (int32_t i = 0; i < run_.chunk_count; ++i) {
    if (event.step < marks_.mark(i, event.lane)) continue;
    if (CAPSTAN_MUTANT("skip_raises_no_mark")) break;
    marks_.Raise(i, event.lane, /*applied=*/false);
  }
  int64_t& owed = stream->owed[event.lane];
  owed = std::max(owed, event.step);
}

// K2. Answered as if it came with the step before. Nobody asks for step 0, whose floor is 0.
void ShardCore::On(const WeightsAskedFor& event) {
  Stream* const stream = Sender(event.stream, {v1::STREAM_KIND_DATA});
  if (stream == nullptr) return;
  const absl::Status valid = asynchronous()
                                 ? CheckLane(event.step, event.lane)
                                 : absl::InvalidArgumentError("a question in a synchronous job");
  if (!valid.ok()) {
    ++drops_.invalid;
    Close(event.stream, valid);
    return;
  }
  int64_t& owed = stream->owed[event.lane];
  owed = std::max(owed, event.step - 1);
}

absl::Status ShardCore::CheckSeal(const SealArrived& event) const {
  const int32_t lane = event.block.first_lane;
  if (event.block.lane_count != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane_count: got ", event.block.lane_count, ", want 1"));
  }
  if (absl::Status valid = CheckLane(event.step, lane); !valid.ok()) return valid;
  if (event.step > seal_marks_[lane]) {
    return absl::InvalidArgumentError(absl::StrCat("seal of step ", event.step, " of lane ", lane,
                                                   " is ahead of step ", seal_marks_[lane]));
  }
  const int64_t k = loosest_staleness_;
  if (event.staleness < 0 || event.staleness > event.step || (k >= 0 && event.staleness > k)) {
    return absl::InvalidArgumentError(
        absl::StrCat("staleness: got ", event.staleness, " in step ", event.step,
                     k >= 0 ? absl::StrCat(", max_staleness is ", k) : std::string()));
  }
  return absl::OkStatus();
}

// The lead's marks for seals (A2).
void ShardCore::CountSeal(const SealArrived& event) {
  const int32_t lane = event.block.first_lane;
  CAPSTAN_CHECK(event.step == seal_marks_[lane]);  // the lead has just taken it
  seal_marks_[lane] = NextStepOf(plan_.samples, plan_.total_steps, lane, event.step + 1);
  ++staleness_[std::min<int64_t>(event.staleness, kStalenessCounts - 1)];
}

// ---- Answers ----

// Every chunk, and the seals at the lead, have the lane's step.
bool ShardCore::IsOver(int32_t lane, int64_t step) const {
  return marks_.Lowest(lane) > step && (!lead_.has_value() || seal_marks_[lane] > step);
}

bool ShardCore::MayAnswer(int32_t lane, int64_t step) const {
  if (!IsOver(lane, step)) return false;
  // With one lane, shards answer at the version. So a checkpoint has one version of all chunks, and
  // the bits are those of a synchronous job also after a rollback.
  if (plan_.samples.lanes() == 1 && version_ <= step) return false;
  const int64_t k = max_staleness_;
  return k < 0 || marks_.Floor() >= step + 1 - k;
}

std::vector<int64_t> ShardCore::MarksNow() const {
  std::vector<int64_t> marks;
  for (int32_t lane = 0; lane < plan_.samples.lanes(); ++lane) {
    const int64_t mark = marks_.Lowest(lane);
    marks.push_back(lead_.has_value() ? std::min(mark, seal_marks_[lane]) : mark);
  }
  return marks;
}

// A7. One set at a time is on its way to a stream. It answers all that is owed and may be answered.
void ShardCore::AnswerAll() {
  for (auto& [id, stream] : streams_) {
    if (stream.kind != v1::STREAM_KIND_DATA || !stream.open || stream.sending >= 0) continue;
    bool answers = std::exchange(stream.wants, false);
    for (auto it = stream.owed.begin(); it != stream.owed.end();) {
      if (!MayAnswer(it->first, it->second)) {
        ++it;
        continue;
      }
      answers = true;
      it = stream.owed.erase(it);
    }
    if (answers) EmitWeights(id, stream);
  }
}

// Reports what is over, decides it at the lead, and answers: everything that may follow from an
// event.
void ShardCore::Advance() {
  if (!ready_ || ended_) return;
  while (!stop_ && !report_.has_value() && marks_.Floor() > version_) {
    report_ = training::RootReport{.finite = true, .squares = {}};
    if (!lead_.has_value()) {
      if (lead_open_) Emit(SendPart{version_, *report_, {}});
      repeat_part_at_ = now_ + times_.repeat;
      break;
    }
    CAPSTAN_CHECK(lead_->AddPart(version_, 0, *report_, now_).ok());
    Decide();
  }
  AnswerAll();
}

// K, by an order. Tasks hear of it with the next set, which is sent at once: those that wait by an
// older bound may begin.
void ShardCore::BoundStaleness(int64_t max_staleness) {
  if (max_staleness == max_staleness_) return;
  max_staleness_ = max_staleness;
  const bool unbounded = max_staleness < 0 || loosest_staleness_ < 0;
  loosest_staleness_ = unbounded ? -1 : std::max(loosest_staleness_, max_staleness);
  for (auto& entry : streams_) entry.second.wants = true;
}

// Version step + 1: the clock of the job has passed `step` in every chunk, and in the seals.
void ShardCore::PublishClock(const training::Decision& decision) {
  CAPSTAN_CHECK(decision.step == version_);
  training::Decision counted = decision;
  counted.apply = false;  // its contributions are applied
  Emit(ApplyStep{counted, -1});
  Emit(RetireVersion{version_});
  if (decision.base_learning_rate > 0)
    schedule_ = plan_.schedule.WithBaseRate(decision.base_learning_rate);
  if (decision.max_staleness.has_value()) BoundStaleness(*decision.max_staleness);
  ++version_;
  stop_ = decision.stop;
  evaluate_ = decision.evaluate;
  published_at_ = now_;
  repeat_part_at_ = absl::InfiniteDuration();
  report_.reset();
  BeginStep();
  if (lead_.has_value() && !stop_) {
    for (int32_t lane = 0; lane < plan_.samples.lanes(); ++lane) {
      if (tree_.HasLane(lane) && seal_marks_[lane] > version_) lane_times_.Sealed({lane, 1}, now_);
    }
    WatchLanes();
  }
  // A task without lanes is owed no answer. With newer weights it shows that it may get some.
  for (auto& entry : streams_) {
    Stream& stream = entry.second;
    if (stop_ || evaluate_ || !OwnsLanes(stream.index)) stream.wants = true;
  }
  if (decision.checkpoint) Save();
}

}  // namespace capstan::exchange::shard
