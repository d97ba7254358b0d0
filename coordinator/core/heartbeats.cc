#include "coordinator/core/heartbeats.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reasons.h"

namespace capstan::coordinator::core {
namespace {

constexpr int kMaxStates = 4096;  // in one heartbeat
constexpr int kMaxLinesInBatch = 4096;
constexpr int64_t kMaxDropped = int64_t{1} << 32;  // lines, of one batch

}  // namespace

void Heartbeats::OnHeartbeat(Node& node, const node::v1::Heartbeat& heartbeat) {
  if (heartbeat.tasks_size() + heartbeat.shards_size() > kMaxStates) {
    const SessionId session = node.session();
    ctx_.nodes().Disconnect(session);
    ctx_.Emit(CloseSession{session, absl::InvalidArgumentError(absl::StrCat(
                                        "heartbeat: more than ", kMaxStates, " states"))});
    return;
  }
  if (node.is_worker() ? !heartbeat.shards().empty() : !heartbeat.tasks().empty()) {
    const SessionId session = node.session();
    ctx_.nodes().Disconnect(session);
    ctx_.Emit(CloseSession{session,
                           absl::InvalidArgumentError(absl::StrCat(
                               "heartbeat: node ", node.name(), " speaks for ",
                               node.is_worker() ? "shards" : "tasks", ", which is not its role"))});
    return;
  }
  if (heartbeat.has_usage()) node.SetUsage(heartbeat.usage());
  const bool stays = node.leaving() && heartbeat.leaving_ms() <= 0;
  node.set_leaving(heartbeat.leaving_ms() > 0);
  if (stays) ctx_.NoteFreed();
  if (node.unheard()) ctx_.Reschedule();
  node.set_unheard(false);
  // A heartbeat is complete: what it does not name is not there.
  std::set<std::string> ids = node.jobs();
  for (const std::string& id : ids) {
    Job* job = ctx_.jobs().Find(id);
    if (job == nullptr) continue;
    for (Task& task : job->tasks()) {
      if (task.node == node.name() && task.incarnation == node.incarnation()) task.present = false;
    }
    for (Shard& shard : job->shards()) {
      if (shard.node == node.name() && shard.incarnation == node.incarnation())
        shard.present = false;
    }
  }
  std::set<std::string> strays;
  std::string unknown;  // a task's job that the journal does not have
  for (const node::v1::TaskState& state : heartbeat.tasks()) {
    Job* job = ctx_.jobs().Find(state.job_id());
    Task* task = job == nullptr
                     ? nullptr
                     : job->members().FindTask(state.rank(), node.name(), node.incarnation());
    if (task == nullptr) {
      if (job == nullptr) unknown = state.job_id();
      if (job == nullptr && Spared(node, state.job_id())) continue;
      strays.insert(state.job_id());
      StopStray(node, state.job_id(), /*is_task=*/true);
      continue;
    }
    ids.insert(job->id());
    node.AddJob(job->id());
    reports_.AcceptTask(*job, *task, state);
  }
  for (const node::v1::ShardState& state : heartbeat.shards()) {
    Job* job = ctx_.jobs().Find(state.job_id());
    Shard* shard = job == nullptr
                       ? nullptr
                       : job->members().FindShard(state.shard(), node.name(), node.incarnation());
    if (shard == nullptr) {
      if (job == nullptr && Spared(node, state.job_id())) continue;
      if (job != nullptr && IsRenumbered(node, *job, state)) continue;
      strays.insert(state.job_id());
      StopStray(node, state.job_id(), /*is_task=*/false);
      continue;
    }
    ids.insert(job->id());
    node.AddJob(job->id());
    reports_.AcceptShard(*job, *shard, state);
  }
  if (node.KeepStrays(strays)) ctx_.Reschedule();
  // A task does not say what it computes on. It may be any device that no other job here has, so the
  // free ones are held before jobs look for devices.
  node.HoldFreeSlots(unknown);
  for (const std::string& id : ids) {
    Job* job = ctx_.jobs().Find(id);
    if (job == nullptr) {
      states_.FreeSlots(node, id);
      continue;
    }
    SettleMembers(node, *job);
    run_.Advance(*job);
  }
  // Slots of jobs that were taken from this node while its lease had lapsed.
  for (const std::string& slot : std::vector<std::string>(node.slots())) {
    if (!slot.empty() && slot != unknown && node.jobs().count(slot) == 0)
      states_.FreeSlots(node, slot);
  }
  node.HoldFreeSlots(unknown);
}

void Heartbeats::OnProbeResult(Node& node, const node::v1::ProbeResult& result) {
  Job* job = ctx_.jobs().Find(result.job_id());
  if (job == nullptr || job->resting() || result.probe_id() != job->members().probe_id()) {
    return;  // of an earlier gang, or answered
  }
  for (Task& task : job->tasks()) {
    if (task.node != node.name() || task.incarnation != node.incarnation() || task.probed ||
        task.lost)
      continue;
    task.probed = true;
    task.probe = result;
    task.probe.set_message(Sentence(result.message()));
    if (!result.reason().empty()) task.probe.set_reason(KnownReason(result.reason()));
  }
  run_.Advance(*job);
}

void Heartbeats::OnLogs(Node& node, const node::v1::LogBatch& batch) {
  Job* job = ctx_.jobs().Find(batch.job_id());
  if (job == nullptr || batch.lines_size() > kMaxLinesInBatch) return;
  const common::v1::Role role = node.reg().role();
  const bool member =
      role == common::v1::ROLE_WORKER
          ? std::any_of(job->tasks().begin(), job->tasks().end(),
                        [&](const Task& task) { return task.node == node.name(); })
          : std::any_of(job->shards().begin(), job->shards().end(),
                        [&](const Shard& shard) { return shard.node == node.name(); });
  if (!member) return;
  for (job::v1::LogLine line : batch.lines()) {
    line.set_role(role);  // a node speaks for itself only
    if (line.host().empty() || line.host().size() > 253) line.set_host(node.host());
    if (line.level().empty() || line.level().size() > 16) line.set_level("info");
    job->logs().Append(std::move(line));
  }
  if (batch.dropped() > 0) {
    job->logs().CountLost(std::min(batch.dropped(), kMaxDropped));
    job->AddLog(
        ctx_.wall(), "warning",
        absl::StrCat(batch.dropped(), " lines of node ", node.name(), " were dropped there"));
  }
}

void Heartbeats::SettleMembers(Node& node, Job& job) {
  bool anything = false;
  const bool stopping = job.resting() || job.cancel_asked();
  // A stop may overtake no start on one stream, but the heartbeat may have left before both.
  const absl::Duration quiet = 2 * ctx_.options().heartbeat;
  for (Task& task : job.tasks()) {
    if (task.node != node.name() || task.incarnation != node.incarnation()) continue;
    if (task.present) {
      anything = true;
      continue;
    }
    const bool unwanted = stopping || task.lost;
    if (unwanted) {
      task.gone = task.gone || task.seen || ctx_.Due(task.start_sent, quiet);
    } else if (task.seen) {
      losses_.LoseTask(job, task, {.why = "its service does not report the task any more"});
      task.gone = true;
    }
    if (!task.gone) anything = true;
  }
  states_.FreeSlotsOfTheGone(node, job);
  for (Shard& shard : job.shards()) {
    if (shard.node != node.name() || shard.incarnation != node.incarnation()) continue;
    // It was not told of the job yet: another gang is found.
    if (node.leaving() && job.members().probing())
      losses_.LoseShard(job, shard, {.why = "its service stops"});
    if (shard.present) {
      anything = true;
      continue;
    }
    if (stopping) {
      shard.gone = shard.gone || shard.seen || ctx_.Due(shard.lineage_sent, quiet);
    } else if (shard.seen) {
      losses_.LoseShard(job, shard, {.why = "its service does not hold the job any more"});
    }
    if (!shard.gone) anything = true;
  }
  if (!anything) node.RemoveJob(job.id());
}

// Its number is another one since shards were moved. The StartLineage of that one ends it, if that lineage is
// above its own. The record may have been put back from a copy: then the job goes on above both.
bool Heartbeats::IsRenumbered(const Node& node, Job& job, const node::v1::ShardState& state) {
  const Shard* const now = job.members().FindShardOn(node.name(), node.incarnation());
  if (job.resting() || now == nullptr) return false;
  if (job.unread() || state.lineage() < job.view().lineage()) return true;
  if (state.lineage() == job.view().lineage()) return false;
  recoveries_.BeginAbove(job, state.lineage(), NameOf(*now));
  return state.lineage() <= job.lineages().HighestKnown();
}

void Heartbeats::StopStray(Node& node, const std::string& job_id, bool is_task) {
  const auto sent = node.strays().find(job_id);
  if (sent != node.strays().end() && !ctx_.Due(sent->second, ctx_.options().resend)) return;
  node.NoteStray(job_id, ctx_.now());
  node::v1::ConnectResponse response;
  if (is_task) {
    response.mutable_stop_task()->set_job_id(job_id);
    response.mutable_stop_task()->set_grace_ms(
        static_cast<int32_t>(absl::ToInt64Milliseconds(ctx_.options().stop_grace)));
  } else {
    response.mutable_end_job()->set_job_id(job_id);
  }
  ctx_.Emit(Send{node.session(), std::move(response)});
}

bool Heartbeats::Spared(const Node& node, const std::string& job_id) {
  if (ctx_.now() >= spare_until_) return false;
  ctx_.Emit(TaskSpared{node.name(), job_id, spare_until_ - ctx_.now()});
  return true;
}

}  // namespace capstan::coordinator::core
