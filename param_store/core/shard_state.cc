// What a shard reports about itself.
#include <algorithm>
#include <set>

#include "param_store/core/shard_core.h"

namespace capstan::param_store::core {
namespace {

// So many epochs are repeated in each report; the coordinator has taken older ones long ago.
constexpr size_t kReportedEpochs = 1000;

}  // namespace

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
  if (files_.has_value()) *state.mutable_files() = *files_;
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
  if (lead_.has_value()) FillLeadState(state.mutable_lead());
  return state;
}

void ShardCore::FillWaiting(node::v1::Waiting* waiting) const {
  std::set<int32_t> lanes;
  if (!stop_) {
    waiting->set_missing_chunks(run_.chunk_count - complete_chunks_);
    for (const training::HeldNodes& held : held_) {
      const std::vector<int32_t> missing = held.MissingLanes();
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

void ShardCore::FillLeadState(node::v1::LeadState* state) const {
  const training::Lead& lead = *lead_;
  state->set_lineage(lineage_);
  state->set_step(lead.step());
  if (lead.last_loss().has_value()) state->set_loss(*lead.last_loss());
  if (lead.running_accuracy().has_value()) state->set_accuracy(*lead.running_accuracy());
  if (lead.last_learning_rate().has_value()) state->set_learning_rate(*lead.last_learning_rate());
  state->set_samples_used(lead.samples_used());
  const auto& epochs = lead.epochs();
  for (size_t i = epochs.size() - std::min(epochs.size(), kReportedEpochs); i < epochs.size();
       ++i) {
    const training::EpochRecord& from = epochs[i];
    common::v1::EpochRecord* const to = state->add_epochs();
    to->set_epoch(from.epoch);
    if (from.train_loss.has_value()) to->set_train_loss(*from.train_loss);
    if (from.train_accuracy.has_value()) to->set_train_accuracy(*from.train_accuracy);
    if (from.validation_loss.has_value()) to->set_validation_loss(*from.validation_loss);
    if (from.validation_accuracy.has_value()) {
      to->set_validation_accuracy(*from.validation_accuracy);
    }
    if (from.samples_per_second.has_value()) to->set_samples_per_second(*from.samples_per_second);
    to->set_seconds(from.seconds);
  }
  state->set_complete(lead.complete());
  if (lead.failure().has_value()) {
    state->set_reason(lead.failure()->reason);
    state->set_message(lead.failure()->message);
  }
  state->set_skipped_steps(lead.skipped_steps());
  state->set_samples_per_second(lead.samples_per_second());
}

int32_t ShardCore::waiting_workers() const {
  if (!ready_ || stop_ || complete_chunks_ == run_.chunk_count) return 0;
  std::set<int32_t> busy;
  for (const training::HeldNodes& held : held_) {
    for (const int32_t lane : held.MissingLanes()) {
      if (lane < static_cast<int32_t>(lane_owners_.size())) busy.insert(lane_owners_[lane]);
    }
  }
  const std::set<int32_t> owners(lane_owners_.begin(), lane_owners_.end());
  return static_cast<int32_t>(owners.size() - busy.size());
}

}  // namespace capstan::param_store::core
