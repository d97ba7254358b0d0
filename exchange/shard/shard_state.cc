// What a shard reports about itself.
#include <algorithm>
#include <set>

#include "exchange/shard/shard_core.h"
#include "training/spec/lead_messages.h"

namespace capstan::exchange::shard {
node::v1::ShardState ShardCore::State(absl::Duration now) const {
  node::v1::ShardState state;
  state.set_job_id(plan_.job_id);
  state.set_shard(plan_.shard);
  state.set_lineage(lineage_);
  state.set_version(std::max<int64_t>(version_, 0));
  state.set_ready(ready_);
  state.set_stopped(stop_);
  state.set_reason(reason_);
  state.set_message(message_);
  state.set_generation(generation_);
  state.set_checkpoint_failures(checkpoint_failures_);
  // The oldest, and nothing newer before it is let go.
  if (!checkpoints_.empty() && checkpoints_.front().report.has_value())
    *state.mutable_files() = *checkpoints_.front().report;
  if (ready_) {
    node::v1::Waiting waiting;
    FillWaiting(&waiting);
    if (waiting.lanes_size() + waiting.parts_size() + waiting.evaluation_blocks_size() +
            waiting.missing_chunks() >
        0) {
      waiting.set_step(version_);
      waiting.set_chunks(run_.chunk_count);
      waiting.set_seconds(absl::ToDoubleSeconds(now - published_at_));
      *state.mutable_waiting() = std::move(waiting);
    }
  }
  if (lead_.has_value()) {
    if (state.has_waiting() && !stop_) {
      for (const int32_t lane : lane_times_.Late(now))
        state.mutable_waiting()->add_late_lanes(lane);
    }
    // The lanes of an asynchronous job run ahead of each other, so a step does not show their speed.
    static const std::map<int32_t, WorkerTimes> kNone;
    for (const auto& [rank, times] : asynchronous() ? kNone : lane_times_.workers()) {
      node::v1::WorkerPace* pace = state.add_paces();
      pace->set_rank(rank);
      pace->set_steps(times.steps);
      pace->set_lanes(times.lanes);
      pace->set_seconds(times.seconds);
    }
    *state.mutable_lead() = training::spec::MakeLeadState(*lead_, lineage_);
    for (const auto& [rank, missed] : missed_) {
      node::v1::SlowReader* const reader = state.mutable_lead()->add_slow_readers();
      reader->set_rank(rank);
      reader->set_missed_versions(missed.versions);
    }
  }
  return state;
}

void ShardCore::FillWaiting(node::v1::Waiting* waiting) const {
  std::set<int32_t> lanes;
  if (asynchronous()) {
    if (!stop_) {
      waiting->set_missing_chunks(marks_.MissingChunks(version_));
      const std::vector<int32_t> missing = marks_.MissingLanes(version_);
      lanes.insert(missing.begin(), missing.end());
    }
  } else if (!stop_) {
    waiting->set_missing_chunks(run_.chunk_count - complete_chunks_);
    for (const training::ChunkFold& chunk : chunks_) {
      const std::vector<int32_t> missing = chunk.held().MissingLanes();
      lanes.insert(missing.begin(), missing.end());
    }
  }
  if (lead_.has_value()) {
    const training::LeadWaiting lead = lead_->Waiting();
    lanes.insert(lead.lanes.begin(), lead.lanes.end());
    for (const int32_t part : lead.parts) waiting->add_parts(part);
    for (const int32_t block : lead.evaluation_blocks) waiting->add_evaluation_blocks(block);
  }
  for (const int32_t lane : lanes) waiting->add_lanes(lane);
}

int32_t ShardCore::waiting_workers() const {
  if (!ready_ || stop_ || complete_chunks_ == run_.chunk_count) return 0;
  if (asynchronous()) return 0;  // they wait for nobody, or for who is named in State()
  std::set<int32_t> busy;
  for (const training::ChunkFold& chunk : chunks_) {
    for (const int32_t lane : chunk.held().MissingLanes()) {
      if (lane < static_cast<int32_t>(lane_owners_.size())) busy.insert(lane_owners_[lane]);
    }
  }
  const std::set<int32_t> owners(lane_owners_.begin(), lane_owners_.end());
  return static_cast<int32_t>(owners.size() - busy.size());
}

}  // namespace capstan::exchange::shard
