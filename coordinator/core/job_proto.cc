#include "coordinator/core/job_proto.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {
namespace {

const char* StateText(const Job& job, const Task& task) {
  if (task.lost) return "FAILED";
  switch (task.state.phase()) {
    case node::v1::TASK_PHASE_FAILED:
      // A task that was stopped because the job ended did not fail by itself.
      if (task.failure_told || !job.ended()) return "FAILED";
      break;
    case node::v1::TASK_PHASE_FINISHED:
      return "FINISHED";
    case node::v1::TASK_PHASE_RUNNING:
      if (!job.ended()) return "RUNNING";
      break;
    default:  // nothing reported since the journal was read, or yet
      if (!job.ended()) return "STARTING";
  }
  return job.state() == common::v1::JOB_STATE_SUCCEEDED ? "FINISHED" : "CANCELLED";
}

const char* StateText(const Job& job, const Shard& shard) {
  if (shard.lost || !shard.state.reason().empty()) return "FAILED";
  if (job.state() == common::v1::JOB_STATE_SUCCEEDED) return "FINISHED";
  if (job.resolved().has_value() &&
      job.written().Of(shard.index, job.resolved()->total_steps()) != nullptr) {
    return "FINISHED";
  }
  if (job.ended()) return "CANCELLED";
  return shard.present && shard.state.ready() ? "RUNNING" : "STARTING";
}

}  // namespace

job::v1::Job ToProto(const Job& job, bool with_history) {
  job::v1::Job out;
  out.set_job_id(job.id());
  out.set_owner(job.owner());
  out.set_name(job.spec().name());
  out.set_state(job.state());
  out.set_reason(job.standing().reason());
  out.set_message(job.waiting().text().empty() ? job.standing().message() : job.waiting().text());
  if (job.standing().started()) out.set_device(job.members().on_gpus() ? "gpu" : "cpu");
  *out.mutable_progress() = job.history().progress();
  out.set_weights_sha256(job.written().weights_sha256());
  out.set_checkpoint_uri(job.checkpoints().uri());
  out.set_samples_used(job.history().samples_used());
  auto lost =
      std::count_if(job.tasks().begin(), job.tasks().end(), [](const Task& t) { return t.lost; });
  for (const Task& task : job.tasks()) {
    if (task.lost && lost-- > kLostKept) {
      out.set_workers_left_out(out.workers_left_out() + 1);
      continue;
    }
    job::v1::Member* member = out.add_workers();
    member->set_index(task.index);
    member->set_node(task.node);
    member->set_state(StateText(job, task));
    member->set_step(task.state.step());
    member->set_message(task.why);
    if (task.state.has_exit_code()) member->set_exit_code(task.state.exit_code());
    member->set_host(task.host);
    for (const int device : task.devices) member->add_devices(device);
    member->set_files_way(task.state.files_way());
  }
  for (const Shard& shard : job.shards()) {
    job::v1::Member* member = out.add_shards();
    member->set_index(shard.index);
    member->set_node(shard.node);
    member->set_state(StateText(job, shard));
    member->set_step(shard.state.version());
    member->set_message(shard.why);
    member->set_host(shard.host);
    member->set_files_way(shard.state.files_way());
    if (shard.state.has_load()) *member->mutable_load() = shard.state.load();
    if (shard.index < job.view().shards_size())
      *member->mutable_route() = job.view().shards(shard.index);
  }
  if (with_history) {
    for (const auto& entry : job.history().epochs()) *out.add_epochs() = entry.second;
    for (const JobEvents::Numbered& event : job.events()) *out.add_events() = event.event;
  }
  *out.mutable_spec() = job.spec();
  if (job.resolved().has_value()) *out.mutable_resolved() = *job.resolved();
  SetTime(job.standing().submitted_at(), out.mutable_submitted_at());
  if (job.standing().started()) SetTime(job.standing().started_at(), out.mutable_started_at());
  if (job.standing().finished_at() != absl::InfinitePast()) {
    SetTime(job.standing().finished_at(), out.mutable_finished_at());
  }
  out.set_lineage(job.view().lineage());
  out.set_generation(job.view().generation());
  out.set_restarts(job.restarts().count());
  out.set_max_restarts(job.RestartLimit());
  for (job::v1::SavedCheckpoint& saved : job.SavedCheckpoints()) {
    saved.clear_files();
    *out.add_checkpoints() = std::move(saved);
  }
  for (const std::string& condition : job.standing().conditions()) out.add_conditions(condition);
  if (job.state() == common::v1::JOB_STATE_PENDING && job.standing().reason() == "BackOff") {
    SetTime(job.recovery().retry_wall(), out.mutable_retry_at());
  }
  return out;
}

}  // namespace capstan::coordinator::core
