#include "coordinator/core/job_run.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/reasons.h"
#include "coordinator/core/waiting_text.h"
#include "training/spec/resolve.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUSPENDED;
std::string DataText(const common::v1::DatasetInfo& data) {
  return absl::StrCat(
      data.train_samples(), " + ", data.test_samples(), " samples of ", data.channels(), "x",
      data.height(), "x", data.width(), ", ",
      data.target_size() > 0 ? absl::StrCat("targets of ", data.target_size(), " numbers")
                             : absl::StrCat(data.num_classes(), " classes"),
      data.train_batches() > 0 ? absl::StrCat(", ", data.train_batches(), " of 5 batches") : "");
}

}  // namespace

void JobRun::Advance(Job& job) {
  ctx_.jobs().Touch(job);
  if (job.unread() && !job.resting() &&
      !(job.cancel_asked() &&
        job.standing().CancelledFor(ctx_.now()) >= ctx_.options().manifest_limit)) {
    return SayUnread(job);
  }
  const bool suspended = job.state() == JOB_STATE_SUSPENDED;
  if (job.state() == JOB_STATE_PENDING && job.cancel_asked()) {
    states_.End(job, JOB_STATE_CANCELLED, "", "cancelled before it started");
  } else if (job.cancel_asked() && (suspended || !job.resting())) {
    AdvanceCancel(job);
  } else if (!job.resting() && !job.members().broken().empty()) {
    states_.Requeue(job, job.members().broken());
  } else if (!job.resting()) {
    using Part = void (*)(JobRun&, Job&);
    static constexpr Part kInHistory[] = {
        [](JobRun& run, Job& its) { run.departures_.ReleaseDrained(its); },
        [](JobRun& run, Job& its) { run.generations_.AdvanceTakeover(its); },
        [](JobRun& run, Job& its) { run.checkpoints_.AdvanceCheckpoints(its); },
        [](JobRun& run, Job& its) { run.departures_.AdvanceSuspend(its); },
        [](JobRun& run, Job& its) { run.departures_.AdvanceLeaving(its); },
        [](JobRun& run, Job& its) { run.recoveries_.AdvanceRecovery(its); },
        [](JobRun& run, Job& its) { run.filler_.FillGang(its); },
        [](JobRun& run, Job& its) { run.lanes_.AdvanceJoiners(its); },
        [](JobRun& run, Job& its) { run.pace_.WeighPaces(its); },
        [](JobRun& run, Job& its) { run.lanes_.ReissueLate(its); },
        [](JobRun& run, Job& its) { run.AdvanceStart(its); }};
    if (job.members().probing()) AdvanceProbe(job);
    if (job.in_history()) {
      for (const Part part : kInHistory) {
        if (!job.resting()) part(*this, job);
      }
    }
    if (!job.resting()) recoveries_.ForgiveRestarts(job);
    if (!job.resting()) CheckWaiting(job);
    if (!job.resting()) sender_.SendLacking(job);
  }
  if (job.resting()) sender_.WindDown(job);
}

void JobRun::AdvanceProbe(Job& job) {
  // Waits for all answers: a person wants to know which hosts do have the data.
  const Task* bad = nullptr;
  std::vector<std::string> good;
  for (const Task& task : job.tasks()) {
    if (!task.probed) return;
    if (task.probe.reason().empty()) {
      good.push_back(task.host);
    } else if (bad == nullptr) {
      bad = &task;
    }
  }
  if (bad != nullptr) {
    std::string message = absl::StrCat(NameOf(*bad), ": ", bad->probe.message());
    if (!good.empty())
      absl::StrAppend(&message, "; it is there on host ", absl::StrJoin(good, ", "));
    states_.Fail(job, bad->probe.reason(), message);
    return;
  }
  const common::v1::DatasetInfo& first = job.tasks()[0].probe.dataset();
  for (const Task& task : job.tasks()) {
    if (SameData(task.probe.dataset(), first)) continue;
    states_.Fail(
        job, "DataMissing",
        absl::StrCat("the data differ: ", DataText(first), " on host ", job.tasks()[0].host, ", ",
                     DataText(task.probe.dataset()), " on host ", task.host));
    return;
  }
  if (!job.resolved().has_value()) {
    ResolveJob(job, first);
  } else if (!SameData(job.resolved()->dataset(), first)) {
    states_.Fail(job, "DataMissing",
                 absl::StrCat("the data are not those that the job began with: ",
                              DataText(job.resolved()->dataset()), ", now ", DataText(first),
                              " on host ", job.tasks()[0].host));
    return;
  }
  if (job.resting()) return;
  recoveries_.BeginLineage(job, DealLanes(job.resolved()->lanes(), job.Shares()));
  if (job.resting() || job.view().lineage() == 1) return;
  job.AddEvent(ctx_.wall(), "LineageStarted",
               absl::StrCat("lineage ", job.view().lineage(), " from ",
                            job.lineages().base().empty()
                                ? std::string("the initial weights")
                                : absl::StrCat("checkpoint ", job.lineages().base())));
}

void JobRun::AdvanceStart(Job& job) {
  const bool recovers = job.state() == JOB_STATE_RECOVERING;
  if (job.state() != JOB_STATE_STARTING && !recovers) return;
  if (job.recovery().wanted() || job.members().living() == 0) return;
  bool all_run = true;
  int members = 0;
  for (const Task& task : job.tasks()) {
    if (task.lost || !task.dealt) continue;
    const node::v1::TaskPhase phase = task.present && task.state.lineage() == job.view().lineage()
                                          ? task.state.phase()
                                          : node::v1::TASK_PHASE_UNSPECIFIED;
    ++members;
    all_run = all_run &&
              (phase == node::v1::TASK_PHASE_RUNNING || phase == node::v1::TASK_PHASE_FINISHED);
  }
  const bool stepped = job.lead().step() > job.lineages().base_step() && job.AllShardsReady() &&
                       !(recovers && job.lead().step() == job.recovery().since_step());
  if (!(all_run && members > 0 && job.AllShardsReady()) && !stepped) return;
  states_.SetState(job, JOB_STATE_RUNNING, "", "");
  job.history().EnterFirstEpoch();
  job.AddEvent(
      ctx_.wall(), recovers ? "Recovered" : "Started",
      absl::StrCat(WorkersText(job.living_workers(), static_cast<size_t>(job.members().living())),
                   ", ", job.shards().size(), job.shards().size() == 1 ? " shard" : " shards"));
}

void JobRun::AdvanceCancel(Job& job) {
  std::vector<std::string> alive;
  for (Task& task : job.tasks()) {
    sender_.StopTask(job, task);
    if (!task.gone) alive.push_back(NameOf(task));
  }
  if (states_.InManifestLimit(job)) alive.push_back("its manifest");  // what is on disk decides
  if (alive.empty()) {
    states_.End(job, JOB_STATE_CANCELLED, "", "");
  } else if (!states_.InManifestLimit(job) &&
             job.standing().CancelledFor(ctx_.now()) >
                 ctx_.options().stop_grace + ctx_.options().stop_limit) {
    states_.End(
        job, JOB_STATE_CANCELLED, "",
        absl::StrCat("still reported after its time was over: ", absl::StrJoin(alive, ", ")));
  } else {
    std::string text = absl::StrCat("cancelling: waits for ", absl::StrJoin(alive, ", "));
    if (job.standing().Say(job.standing().reason(), text)) ctx_.Changed(job);
  }
}

void JobRun::ResolveJob(Job& job, const common::v1::DatasetInfo& dataset) {
  absl::StatusOr<job::v1::ResolvedSpec> resolved =
      ctx_.options().resolve(job.spec(), dataset, job.id(), folders_.StorageRoot(job.spec()));
  if (!resolved.ok()) {
    states_.Fail(job, absl::IsInvalidArgument(resolved.status()) ? "InvalidSpec" : kInternalError,
                 std::string(resolved.status().message()));
    return;
  }
  const int num_shards = static_cast<int>(job.shards().size());
  if (resolved->num_workers() < static_cast<int>(job.tasks().size()) ||
      resolved->num_shards() != num_shards || resolved->lanes() < 1 ||
      resolved->total_steps() < 1 || resolved->devices_per_worker() < 1 ||
      static_cast<int>(job.tasks()[0].devices.size()) % resolved->devices_per_worker() != 0) {
    states_.Fail(job, kInternalError,
                 absl::StrCat("the resolved spec has ", resolved->num_workers(), " workers x ",
                              resolved->devices_per_worker(), " devices and ",
                              resolved->num_shards(), " shards, the gang ", job.tasks().size(),
                              " x ", job.tasks()[0].devices.size(), " and ", num_shards));
    return;
  }
  states_.SealResolved(job, *std::move(resolved));
  job.AddEvent(ctx_.wall(), "Resolved",
               absl::StrCat(job.resolved()->lanes(), " lanes, ", job.resolved()->total_steps(),
                            " steps, ", job.resolved()->chunk_count(), " chunks"));
  ctx_.Emit(MeasureRoom{job.id(), folders_.StorageRoot(job.spec())});
  // The job has no view yet, so none of these is of the lineage at hand.
  for (const FoundManifest& found : job.TakeFound()) (void)checkpoints_.TakeManifest(job, found);
}

void JobRun::CheckWaiting(Job& job) {
  if (job.waiting().Note(ProgressMark(job), ctx_.now()) && job.waiting().SayNothing())
    ctx_.Changed(job);
  if (states_.InManifestLimit(job)) return;
  if (job.recovery().wanted() && ctx_.now() < job.recovery().at())
    job.waiting().Excuse(ctx_.now());  // backs off
  const absl::Duration deadline = job.Deadline();
  if (job.clock().Ran(ctx_.now()) >= deadline) {
    states_.Fail(
        job, "DeadlineExceeded",
        absl::StrCat("limits.active_deadline: ", absl::FormatDuration(deadline), " are over"));
    return;
  }
  if (deadline < absl::InfiniteDuration() &&
      job.clock().UnsavedFor(ctx_.now()) >= absl::Minutes(1)) {
    ctx_.Changed(job);  // to save its clock
  }
  const absl::Duration waited = job.waiting().Waited(ctx_.now());
  if (waited >= job.StallTimeout()) {
    const bool shard_lost = job.members().AnyShardLost();
    const std::string text = WaitingText(job, ctx_.nodes(), ctx_.now());
    const bool gang_lost = shard_lost || (job.in_history() && job.members().living() == 0);
    if (gang_lost && !job.link().writing()) {
      // No member is there to go on with: the job waits for another gang and gives back what it holds. The
      // steps since the last checkpoint are lost: a restart. That of a lost shard is counted already,
      // and so is that of a task which said why it failed.
      if (!shard_lost && !job.restarts().loss_counted() &&
          !recoveries_.CountRestart(job, "WorkerLost", text))
        return;
      job.AddEvent(ctx_.wall(), "GangLost", text);
      states_.Rest(job, JOB_STATE_PENDING, "GangLost", absl::StrCat("its gang was lost: ", text));
    } else {
      states_.Fail(job, shard_lost ? "ShardLost" : gang_lost ? "WorkerLost" : "Stalled", text);
    }
    return;
  }
  // An error is told at once.
  const bool cannot_save = !CannotSaveText(job).empty();
  if ((waited < ctx_.options().say_waiting_after && !cannot_save) ||
      !job.waiting().TimeToSay(ctx_.now()))
    return;
  std::string text = WaitingText(job, ctx_.nodes(), ctx_.now());
  if (job.waiting().TimeToLog(ctx_.now())) {
    job.AddLog(ctx_.wall(), "warning", absl::StrCat(cannot_save ? "" : "waits for ", text));
  }
  if (job.waiting().Say(std::move(text))) ctx_.Changed(job);
}

std::vector<int64_t> JobRun::ProgressMark(const Job& job) const {
  int64_t probed = 0, ready = 0, running = 0, files = 0, blocks = 0;
  for (const Task& task : job.tasks()) {
    probed += task.probed ? 1 : 0;
    running += task.seen && task.state.phase() >= node::v1::TASK_PHASE_RUNNING ? 1 : 0;
  }
  for (const Shard& shard : job.shards()) {
    ready += shard.seen && shard.state.ready() ? 1 : 0;
    const bool written = job.resolved().has_value() &&
                         job.written().Of(shard.index, job.resolved()->total_steps()) != nullptr;
    files += written ? 1 : 0;
    if (shard.index == 0) blocks = shard.state.waiting().evaluation_blocks_size();
  }
  files += job.written().weights().files_size() > 0 ? 1 : 0;
  // Within a step, fewer blocks left to evaluate is more done.
  const int64_t step = std::min(job.lead().step(), int64_t{1} << 36);
  const int64_t evaluated = step * 10000000 - std::min<int64_t>(blocks, 9999999);
  // A lane that is issued again and again is not progress.
  return {job.view().generation() - job.paces().moves(),
          probed,
          ready,
          running,
          job.lead().step(),
          job.lead().complete() ? 1 : 0,
          evaluated,
          files,
          job.link().attempts()};
}

void JobRun::SayUnread(Job& job) {
  if (job.waiting().Waited(ctx_.now()) < ctx_.options().say_waiting_after) return;
  std::string text = absl::StrCat("its checkpoint folder ", folders_.StoragePath(job),
                                  ", which has not answered since the coordinator started");
  if (job.waiting().Say(std::move(text))) ctx_.Changed(job);
}

void JobRun::Handle(const RoomMeasured& room) {
  using training::spec::BytesText;
  Job* const job = ctx_.jobs().Find(room.job_id);
  if (job == nullptr || !job->resolved().has_value() || job->ended()) return;
  const training::spec::StorageNeed need = training::spec::StorageNeedOf(*job->resolved());
  if (need.Most() <= room.usable_bytes) return;
  const bool last_fits = need.LastVersion() <= room.usable_bytes;
  job->AddEvent(
      ctx_.wall(), "StorageShort",
      absl::StrCat("files of at most ", BytesText(need.Most()), ", and ",
                   BytesText(room.usable_bytes), " can be used in ", room.folder, " (",
                   BytesText(room.free_bytes), " free): ",
                   last_fits ? "checkpoints will fail; a lower checkpoint.keep_latest or another "
                               "checkpoint.storage_path helps"
                             : "not even the last version and weights fit"));
  ctx_.Changed(*job);
}

}  // namespace capstan::coordinator::core
