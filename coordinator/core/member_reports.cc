#include "coordinator/core/member_reports.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_changes.h"
#include "coordinator/core/reasons.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

constexpr int64_t kBehindVersions = 10;  // left out for a slow reader, then it is told
std::string EpochText(const common::v1::EpochRecord& epoch) {
  std::string text = absl::StrCat("epoch ", epoch.epoch(), " done");
  if (epoch.has_train_loss()) absl::StrAppend(&text, ", loss ", epoch.train_loss());
  if (epoch.has_validation_loss()) {
    absl::StrAppend(&text, ", validation loss ", epoch.validation_loss());
  }
  if (epoch.has_validation_accuracy()) {
    absl::StrAppend(&text, ", validation accuracy ", epoch.validation_accuracy());
  }
  return text;
}
// The process is gone without having said why: another one can do its work. What it said itself
// (no data, out of memory, a non-finite loss) would befall the next one too.
bool DiedSilently(const node::v1::TaskState& state) {
  const bool by_signal = state.has_exit_code() && state.exit_code() < 0;
  return state.reason() == "WorkerLost" ||
         (by_signal && (state.reason().empty() || state.reason() == kInternalError));
}

}  // namespace

void MemberReports::AcceptTask(Job& job, Task& task, const node::v1::TaskState& state) {
  if (job.unread()) {  // the next heartbeats say it again
    task.present = task.seen = true;
    task.gone = false;
    return;
  }
  if (task.state.phase() != state.phase() || task.state.step() != state.step()) ctx_.Changed(job);
  task.state = state;
  task.present = task.seen = true;
  task.gone = false;
  if (task.lost) losses_.FindTaskAgain(job, task);
  if (task.lost || job.state() == common::v1::JOB_STATE_SUCCEEDED) return;
  if (state.phase() == node::v1::TASK_PHASE_FAILED) {
    TaskFailed(job, task);
    return;
  }
  if (job.resting() || !job.in_history() || state.lineage() != job.view().lineage()) return;
  if (job.shards().empty()) {
    if (state.has_lead()) TakeLead(job, state.lead());
    if (state.has_files()) checkpoints_.TakeFiles(job, 0, state.files());
  }
  const int64_t total = job.resolved()->total_steps();
  if (!job.shards().empty() && job.KeepsResiduals() && state.has_files() &&
      state.files().step() < total) {
    checkpoints_.TakeResiduals(job, task.index, state.files());
  }
  // Any task may have been told to report; what it says of files that are not its own is no news.
  if (&task == job.LaneZeroOwner() && state.files().lineage() == job.view().lineage() &&
      state.files().step() == total && state.files().files_size() > 0 &&
      !state.weights_sha256().empty() && !job.written().has_weights()) {
    job.written().TakeWeights(state.files(), state.weights_sha256());
    ctx_.Changed(job);
  }
  if (&task == job.LaneZeroOwner() && !job.shards().empty() && job.lead().complete() &&
      state.files().lineage() == job.view().lineage() && state.files().step() == total &&
      !state.files().error().empty()) {
    checkpoints_.CheckpointFailed(
        job, total, absl::StrCat(NameOf(task), ": ", Sentence(state.files().error())));
  }
}

void MemberReports::AcceptShard(Job& job, Shard& shard, const node::v1::ShardState& state) {
  if (job.unread()) {
    shard.present = shard.seen = true;
    shard.gone = false;
    return;
  }
  if (shard.state.ready() != state.ready() || shard.state.version() != state.version())
    ctx_.Changed(job);
  shard.state = state;
  shard.present = shard.seen = true;
  shard.gone = false;
  if (shard.lost) losses_.FindShardAgain(job, shard);
  if (shard.lost) return;
  if (!state.reason().empty()) {
    ShardFailed(job, shard);
    return;
  }
  if (state.lineage() > job.view().lineage())
    recoveries_.BeginAbove(job, state.lineage(), NameOf(shard));
  const bool current =
      state.lineage() == job.view().lineage() || CAPSTAN_MUTANT("manifest_ignores_lineage");
  if (job.resting() || !job.in_history() || !current) return;
  if (shard.index == 0 && state.has_lead()) TakeLead(job, state.lead());
  if (job.in_history() && !job.resting() && state.has_files()) {
    checkpoints_.TakeFiles(job, shard.index, state.files());
  }
}

// A task has ended by an error. What would befall every other one too ends the job; the rest is a
// worker less.
void MemberReports::TaskFailed(Job& job, Task& task) {
  const node::v1::TaskState& state = task.state;
  if (task.failure_told) return;
  if (job.resting() || job.cancel_asked()) {
    // Stopped tasks report how they ended; only what they say of themselves is news.
    if (state.reason().empty() || DiedSilently(state)) return;
  }
  if (DiedSilently(state)) {
    std::string why = Sentence(state.message());
    if (why.empty()) {
      why = state.exit_code() < 0
                ? absl::StrCat("its task was ended by signal ", -int64_t{state.exit_code()})
                : "its task is lost";
    }
    losses_.LoseTask(job, task, {.why = std::move(why)});
    return;
  }
  task.failure_told = true;
  task.why = Sentence(state.message());
  const std::string reason = KnownReason(state.reason());
  const std::string why = task.why.empty()
                              ? absl::StrCat("its task ended with exit code ", state.exit_code())
                              : task.why;
  const std::string text = absl::StrCat(NameOf(task), ": ", why);
  if (job.resting() || job.cancel_asked() || !job.in_history()) {
    states_.Fail(job, reason, text);
  } else if (job.shards().empty() && !job.lineages().base().empty() &&
             job.lead().step() <= job.lineages().base_step() &&
             (reason == "CheckpointCorrupt" || reason == "DataMissing")) {
    recoveries_.RefuseBase(job, text);
  } else if (state.refuses_base() && job.KeepsResiduals() && !job.shards().empty()) {
    // Only owners read of the base, and a task may speak late of the base before.
    const bool of_this_base = state.lineage() == job.view().lineage() &&
                              job.lineages().Owns(task.index) && !job.lineages().base().empty();
    if (of_this_base && !job.recovery().wanted()) recoveries_.RefuseBase(job, text);
    // The shards and the other tasks go on, and this process has ended.
    losses_.LoseTask(job, task, {.why = why, .reason = "WorkerLost"});
  } else {
    losses_.LoseTask(job, task, {.why = why, .reason = reason, .reported = true});
  }
}

void MemberReports::ShardFailed(Job& job, Shard& shard) {
  const node::v1::ShardState& state = shard.state;
  if (shard.failure_told || job.resting() || job.cancel_asked() || !job.in_history() ||
      state.lineage() != job.view().lineage()) {
    return;
  }
  shard.failure_told = true;
  shard.why = Sentence(state.message());
  const std::string reason = KnownReason(state.reason());
  const std::string text = absl::StrCat(NameOf(shard), ": ", shard.why);
  if (!job.lineages().base().empty() && !state.ready() &&
      (reason == "CheckpointCorrupt" || reason == "DataMissing")) {
    recoveries_.RefuseBase(job, text);
  } else {
    recoveries_.BeginRecovery(job, reason, text);
  }
}

void MemberReports::TakeLead(Job& job, const node::v1::LeadState& lead) {
  if (lead.lineage() != job.view().lineage() || lead.step() < job.lead().step()) return;
  const int64_t total = job.resolved()->total_steps();
  if (lead.step() > total || lead.samples_used() < 0 || lead.skipped_steps() < 0 ||
      lead.skipped_steps() > total) {
    return;  // it cannot be: the job waits for a lead that makes sense
  }
  const bool advanced = lead.step() > job.lead().step();
  for (const common::v1::EpochRecord& epoch : job.history().AddEpochs(lead)) {
    job.AddLog(ctx_.wall(), "info", EpochText(epoch));
    ctx_.Changed(job);
  }
  if (lead.complete() != job.lead().complete() || lead.suspended() != job.lead().suspended()) {
    ctx_.Changed(job);
  }
  JournalChanges(job, lead);
  NoteSkipped(job, lead);
  NoteSlowReaders(job, lead);
  if (advanced) NoteStepTime(job, lead.samples_per_second());
  job.history().SetLead(lead);
  if (!lead.reason().empty()) {
    states_.Fail(job, KnownReason(lead.reason()), Sentence(lead.message()));
    return;
  }
  if (!advanced && !lead.complete()) return;
  ctx_.Changed(job);
  job.history().TakeProgress(*job.resolved());
  if (!advanced) return;
  job.history().NoteUpdated(ctx_.wall());
  NotePoint(job);
}

// A step whose loss or gradient was not finite changed nothing; people are told of each.
void MemberReports::NoteSkipped(Job& job, const node::v1::LeadState& lead) {
  const int64_t before = job.history().progress().skipped_steps();
  if (lead.skipped_steps() == before) return;
  job.history().SetSkipped(lead.skipped_steps());
  ctx_.Changed(job);
  if (lead.skipped_steps() < before) return;  // gone on from a checkpoint before them
  std::string text = absl::StrCat(lead.skipped_steps() - before, " since then");
  if (lead.has_last_skipped_step()) text = absl::StrCat("step ", lead.last_skipped_step());
  job.AddEvent(
      ctx_.wall(), "StepSkipped",
      absl::StrCat(text, ": loss or gradient was not finite, the weights stayed as they were; ",
                   lead.skipped_steps(), " skipped in all"));
}

// A worker that needs longer than a step for the weights gets no lanes: people should know why.
void MemberReports::NoteSlowReaders(Job& job, const node::v1::LeadState& lead) {
  std::set<int32_t> slow;
  for (const node::v1::SlowReader& reader : lead.slow_readers()) {
    slow.insert(reader.rank());
    if (reader.rank() < 0 || reader.rank() >= static_cast<int32_t>(job.tasks().size())) continue;
    Task& task = job.tasks()[static_cast<size_t>(reader.rank())];
    if (task.behind || task.lost || reader.missed_versions() < kBehindVersions) continue;
    task.behind = true;
    job.AddEvent(ctx_.wall(), "WorkerBehind",
                 absl::StrCat(NameOf(task), ": it needs longer than a step to take the weights; ",
                              reader.missed_versions(), " versions were left out for it"));
    ctx_.Changed(job);
  }
  for (Task& task : job.tasks()) {
    if (slow.count(task.index) == 0) task.behind = false;
  }
}

void MemberReports::NoteStepTime(Job& job, double samples_per_second) {
  if (!(samples_per_second > 0)) return;  // nor NaN
  job.late().NoteStep(static_cast<double>(job.resolved()->global_batch()) / samples_per_second);
}

void MemberReports::NotePoint(Job& job) {
  job.history().AddPoint(job.tasks(), ctx_.wall());
  ctx_.jobs().NoteNewPoint(job);
}

// The lead says at which step an order took effect: from then on it does so there and nowhere else.
void MemberReports::JournalChanges(Job& job, const node::v1::LeadState& lead) {
  const int count = std::min(lead.applied_order_ids_size(), lead.applied_order_steps_size());
  for (int i = 0; i < count; ++i) {
    const int64_t id = lead.applied_order_ids(i);
    JobChange* const change = job.changes().Find(id);
    if (change == nullptr || change->lineage == job.view().lineage()) continue;
    const int64_t step = lead.applied_order_steps(i);
    if (step < 0 || step >= job.resolved()->total_steps()) continue;
    const bool news = !change->order.has_step() || change->order.step() != step;
    change->lineage = job.view().lineage();
    change->order.set_step(step);
    if (news) {
      job.AddEvent(ctx_.wall(), "OrderApplied",
                   absl::StrCat("order ", id, ": ", ChangeText(*change), ", from step ", step));
    }
    ctx_.Changed(job);
  }
}

}  // namespace capstan::coordinator::core
