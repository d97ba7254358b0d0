// The life of a job, from its gang to its end.
#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/waiting_text.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUCCEEDED;
using common::v1::JOB_STATE_SUSPENDED;

std::string DataText(const common::v1::DatasetInfo& data) {
  return absl::StrCat(
      data.train_samples(), " + ", data.test_samples(), " samples of ", data.channels(), "x",
      data.height(), "x", data.width(), ", ", data.num_classes(), " classes",
      data.train_batches() > 0 ? absl::StrCat(", ", data.train_batches(), " of 5 batches") : "");
}

// The folder of a file:// URI, or a plain path as it is; the validator has judged it.
std::string FolderOf(const std::string& uri) {
  constexpr char kScheme[] = "file://";
  return uri.rfind(kScheme, 0) == 0 ? uri.substr(sizeof(kScheme) - 1) : uri;
}

absl::Duration Limit(bool set, double seconds, double otherwise) {
  const double value = set ? seconds : otherwise;
  return value > 0 ? absl::Seconds(value) : absl::InfiniteDuration();
}

}  // namespace

absl::Duration DeadlineOf(const JobRecord& job) {
  const job::v1::Limits& limits = job.spec.limits();
  return Limit(limits.has_active_deadline_seconds(), limits.active_deadline_seconds(), 0);
}

void CoordinatorCore::Advance(JobRecord& job) {
  if (job.unread && !job.resting() &&
      !(job.cancel_asked && now_ - job.cancel_since >= options_.manifest_limit)) {
    return SayUnread(job);
  }
  const bool suspended = job.state == JOB_STATE_SUSPENDED;
  if (job.state == JOB_STATE_PENDING && job.cancel_asked) {
    End(job, JOB_STATE_CANCELLED, "", "cancelled before it started");
  } else if (job.cancel_asked && (suspended || !job.resting())) {
    AdvanceCancel(job);
  } else if (!job.resting() && !job.requeue.empty()) {
    Requeue(job, job.requeue);
  } else if (!job.resting()) {
    using Part = void (CoordinatorCore::*)(JobRecord&);
    constexpr Part kInHistory[] = {
        &CoordinatorCore::ReleaseDrained,     &CoordinatorCore::AdvanceTakeover,
        &CoordinatorCore::AdvanceCheckpoints, &CoordinatorCore::AdvanceSuspend,
        &CoordinatorCore::AdvanceLeaving,     &CoordinatorCore::AdvanceRecovery,
        &CoordinatorCore::FillRanks,          &CoordinatorCore::AdvanceJoiners,
        &CoordinatorCore::WeighPaces,         &CoordinatorCore::ReissueLate,
        &CoordinatorCore::AdvanceStart};
    if (job.probing) AdvanceProbe(job);
    if (job.in_history()) {
      for (const Part part : kInHistory) {
        if (!job.resting()) (this->*part)(job);
      }
    }
    if (!job.resting()) ForgiveRestarts(job);
    if (!job.resting()) CheckWaiting(job);
    if (!job.resting()) SendLacking(job);
  }
  if (job.resting()) WindDown(job);
}

void CoordinatorCore::AdvanceTakeover(JobRecord& job) {
  if (job.takeover_at > now_) return;
  job.takeover_at = absl::InfiniteDuration();
  if (!job.recover) TakeOverLanes(job);  // else the new lineage deals its lanes
}

void CoordinatorCore::AdvanceProbe(JobRecord& job) {
  // All answers first: a person wants to know which hosts do have the data.
  const Rank* bad = nullptr;
  std::vector<std::string> good;
  for (const Rank& rank : job.ranks) {
    if (!rank.probed) return;
    if (rank.probe.reason().empty()) {
      good.push_back(rank.host);
    } else if (bad == nullptr) {
      bad = &rank;
    }
  }
  if (bad != nullptr) {
    std::string message = absl::StrCat(NameOf(*bad), ": ", bad->probe.message());
    if (!good.empty())
      absl::StrAppend(&message, "; it is there on host ", absl::StrJoin(good, ", "));
    Fail(job, bad->probe.reason(), message);
    return;
  }
  const common::v1::DatasetInfo& first = job.ranks[0].probe.dataset();
  for (const Rank& rank : job.ranks) {
    if (SameData(rank.probe.dataset(), first)) continue;
    Fail(job, "DataMissing",
         absl::StrCat("the data differ: ", DataText(first), " on host ", job.ranks[0].host, ", ",
                      DataText(rank.probe.dataset()), " on host ", rank.host));
    return;
  }
  if (!job.resolved.has_value()) {
    ResolveJob(job, first);
  } else if (!SameData(job.resolved->dataset(), first)) {
    Fail(job, "DataMissing",
         absl::StrCat(
             "the data are not those that the job began with: ", DataText(job.resolved->dataset()),
             ", now ", DataText(first), " on host ", job.ranks[0].host));
    return;
  }
  if (job.resting()) return;
  BeginLineage(job, DealLanes(job.resolved->lanes(), job.Shares()));
  if (job.resting() || job.view.lineage() == 1) return;
  job.AddEvent(wall_, "LineageStarted",
               absl::StrCat("lineage ", job.view.lineage(), " from ",
                            job.base.empty() ? std::string("the initial weights")
                                             : absl::StrCat("checkpoint ", job.base)));
}

void CoordinatorCore::ResolveJob(JobRecord& job, const common::v1::DatasetInfo& dataset) {
  absl::StatusOr<job::v1::ResolvedSpec> resolved =
      options_.resolve(job.spec, dataset, job.id, StorageRoot(job.spec));
  if (!resolved.ok()) {
    Fail(job, absl::IsInvalidArgument(resolved.status()) ? "InvalidSpec" : kInternalError,
         std::string(resolved.status().message()));
    return;
  }
  const int num_shards = static_cast<int>(job.shards.size());
  if (resolved->num_workers() < static_cast<int>(job.ranks.size()) ||
      resolved->num_shards() != num_shards || resolved->lanes() < 1 ||
      resolved->total_steps() < 1 || resolved->devices_per_worker() < 1 ||
      static_cast<int>(job.ranks[0].devices.size()) % resolved->devices_per_worker() != 0) {
    Fail(job, kInternalError,
         absl::StrCat("the resolved spec has ", resolved->num_workers(), " workers x ",
                      resolved->devices_per_worker(), " devices and ", resolved->num_shards(),
                      " shards, the gang ", job.ranks.size(), " x ", job.ranks[0].devices.size(),
                      " and ", num_shards));
    return;
  }
  job.resolved = *std::move(resolved);
  SealResolved(job);
  job.AddEvent(wall_, "Resolved",
               absl::StrCat(job.resolved->lanes(), " lanes, ", job.resolved->total_steps(),
                            " steps, ", job.resolved->chunk_count(), " chunks"));
  for (const FoundManifest& found : std::exchange(job.found, {})) TakeManifest(job, found);
}

// The job's own folder lies in it.
std::string CoordinatorCore::StorageRoot(const job::v1::JobSpec& spec) const {
  const std::string& path = spec.checkpoint().storage_path();
  return path.empty() ? options_.storage_root : FolderOf(path);
}

void CoordinatorCore::AdvanceStart(JobRecord& job) {
  const bool recovers = job.state == JOB_STATE_RECOVERING;
  if (job.state != JOB_STATE_STARTING && !recovers) return;
  if (job.recover || job.living() == 0) return;
  bool all_run = true;
  int members = 0;
  for (const Rank& rank : job.ranks) {
    if (rank.lost || !rank.dealt) continue;
    const node::v1::TaskPhase phase = rank.present && rank.state.lineage() == job.view.lineage()
                                          ? rank.state.phase()
                                          : node::v1::TASK_PHASE_UNSPECIFIED;
    ++members;
    all_run = all_run &&
              (phase == node::v1::TASK_PHASE_RUNNING || phase == node::v1::TASK_PHASE_FINISHED);
  }
  const bool stepped = job.lead.step() > job.base_step && job.AllShardsReady() &&
                       !(recovers && job.lead.step() == job.recovering_step);
  if (!(all_run && members > 0 && job.AllShardsReady()) && !stepped) return;
  SetState(job, JOB_STATE_RUNNING, "", "");
  if (job.progress.epoch() == 0) job.progress.set_epoch(1);
  job.AddEvent(
      wall_, recovers ? "Recovered" : "Started",
      absl::StrCat(WorkersText(job.living_workers(), static_cast<size_t>(job.living())), ", ",
                   job.shards.size(), job.shards.size() == 1 ? " shard" : " shards"));
}

// Somebody writes the manifest, and a disk that answers may still be waited for.
bool CoordinatorCore::InManifestLimit(const JobRecord& job) const {
  return job.manifest == ManifestPhase::kWriting &&
         now_ - job.manifest_since < options_.manifest_limit;
}

void CoordinatorCore::AdvanceCancel(JobRecord& job) {
  std::vector<std::string> alive;
  for (Rank& rank : job.ranks) {
    StopRank(job, rank);
    if (!rank.gone) alive.push_back(NameOf(rank));
  }
  if (InManifestLimit(job)) alive.push_back("its manifest");  // what is on disk decides
  if (alive.empty()) {
    End(job, JOB_STATE_CANCELLED, "", "");
  } else if (!InManifestLimit(job) &&
             now_ - job.cancel_since > options_.stop_grace + options_.stop_limit) {
    End(job, JOB_STATE_CANCELLED, "",
        absl::StrCat("still reported after its time was over: ", absl::StrJoin(alive, ", ")));
  } else {
    std::string text = absl::StrCat("cancelling: waits for ", absl::StrJoin(alive, ", "));
    if (job.message != text) {
      job.message = std::move(text);
      Changed(job);
    }
  }
}

// A gang that fell apart before it had a history is no failure: the job waits for another one, at
// its old place in the queue.
void CoordinatorCore::Requeue(JobRecord& job, const std::string& why) {
  for (const Rank& rank : job.ranks) {
    Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    if (node == nullptr) continue;
    FreeSlots(*node, job.id);
    node->jobs.erase(job.id);
  }
  for (const Shard& shard : job.shards) {
    Node* node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (node != nullptr) node->jobs.erase(job.id);
  }
  job.AddEvent(wall_, "GangLost", why);
  job.ranks.clear();
  job.shards.clear();
  job.requeue.clear();
  job.waiting.clear();
  job.probing = false;
  job.PauseClock(now_);
  active_.erase(job.sequence);
  pending_[job.sequence] = &job;
  SetState(job, JOB_STATE_PENDING, "WaitingForSlots", "its gang was lost: " + why);
  schedule_ = true;
}

// Numbers that only grow while a job gets on. Membership alone is no progress, but gives its time.
std::vector<int64_t> CoordinatorCore::ProgressMark(const JobRecord& job) const {
  int64_t probed = 0, ready = 0, running = 0, files = 0, blocks = 0;
  for (const Rank& rank : job.ranks) {
    probed += rank.probed ? 1 : 0;
    running += rank.seen && rank.state.phase() >= node::v1::TASK_PHASE_RUNNING ? 1 : 0;
  }
  for (const Shard& shard : job.shards) {
    ready += shard.seen && shard.state.ready() ? 1 : 0;
    const bool written = job.resolved.has_value() &&
                         job.FilesOf(shard.index, job.resolved->total_steps()) != nullptr;
    files += written ? 1 : 0;
    if (shard.index == 0) blocks = shard.state.waiting().evaluation_blocks_size();
  }
  files += job.weights_files.files_size() > 0 ? 1 : 0;
  // Within a step, fewer blocks left to evaluate is more done.
  const int64_t step = std::min(job.lead.step(), int64_t{1} << 36);
  const int64_t evaluated = step * 10000000 - std::min<int64_t>(blocks, 9999999);
  // A lane that is issued again and again is not progress.
  return {job.view.generation() - job.reissue_generations,
          probed,
          ready,
          running,
          job.lead.step(),
          job.lead.complete() ? 1 : 0,
          evaluated,
          files,
          job.manifest_attempts};
}

void CoordinatorCore::CheckWaiting(JobRecord& job) {
  const std::vector<int64_t> mark = ProgressMark(job);
  if (job.progress_mark.empty()) {
    job.progress_mark = mark;
    job.progress_at = now_;
  }
  bool grown = false;
  for (size_t i = 0; i < mark.size(); ++i) {
    if (mark[i] <= job.progress_mark[i]) continue;
    job.progress_mark[i] = mark[i];
    grown = true;
  }
  if (grown) {
    job.progress_at = now_;
    job.waiting_logged_at = -absl::InfiniteDuration();
    if (!job.waiting.empty()) {
      job.waiting.clear();
      Changed(job);
    }
  }
  if (InManifestLimit(job)) return;
  if (job.recover && now_ < job.recover_at) job.progress_at = now_;  // backs off
  const absl::Duration deadline = DeadlineOf(job);
  if (job.Ran(now_) >= deadline) {
    Fail(job, "DeadlineExceeded",
         absl::StrCat("limits.active_deadline: ", absl::FormatDuration(deadline), " are over"));
    return;
  }
  if (deadline < absl::InfiniteDuration() && now_ - job.ran_saved_at >= absl::Minutes(1)) {
    Changed(job);  // to save its clock
  }
  const absl::Duration waited = now_ - job.progress_at;
  if (waited >= job.StallTimeout()) {
    const bool shard_lost = std::any_of(job.shards.begin(), job.shards.end(),
                                        [](const Shard& shard) { return shard.lost; });
    const std::string text = WaitingText(job, nodes_, now_);
    const bool gang_lost = shard_lost || (job.in_history() && job.living() == 0);
    if (gang_lost && job.manifest != ManifestPhase::kWriting) {
      // Nobody is there to go on with: it waits for another gang and gives back what it holds. The
      // steps since the last checkpoint are lost: a restart. That of a lost shard is counted already,
      // and so is that of a task which said why it failed.
      if (!shard_lost && !job.loss_counted && !CountRestart(job, "WorkerLost", text)) return;
      job.AddEvent(wall_, "GangLost", text);
      Rest(job, JOB_STATE_PENDING, "GangLost", absl::StrCat("its gang was lost: ", text));
    } else {
      Fail(job, shard_lost ? "ShardLost" : gang_lost ? "WorkerLost" : "Stalled", text);
    }
    return;
  }
  // An error is no matter of patience.
  const bool cannot_save = !CannotSaveText(job).empty();
  if ((waited < options_.say_waiting_after && !cannot_save) ||
      now_ - job.waiting_said_at < absl::Seconds(1)) {
    return;
  }
  std::string text = WaitingText(job, nodes_, now_);
  job.waiting_said_at = now_;
  if (now_ - job.waiting_logged_at >= absl::Minutes(1)) {
    job.waiting_logged_at = now_;
    job.AddLog(wall_, "warning", absl::StrCat(cannot_save ? "" : "waits for ", text));
  }
  if (job.waiting != text) {
    job.waiting = std::move(text);
    Changed(job);
  }
}

void CoordinatorCore::SetState(JobRecord& job, common::v1::JobState state,
                               const std::string& reason, const std::string& message) {
  if (state == JOB_STATE_RECOVERING) job.recovering_step = job.lead.step();
  job.state = state;
  job.reason = reason;
  job.message = message;
  Changed(job);
}

void CoordinatorCore::Fail(JobRecord& job, const std::string& reason, const std::string& message) {
  if (job.ended() || job.cancel_asked) {
    // The root cause stands; this followed from it, or from a person's wish.
    job.AddEvent(wall_, "Consequence", absl::StrCat(reason, ": ", message));
    Changed(job);
    return;
  }
  if (InManifestLimit(job) && job.EndIsReported()) {
    job.AddEvent(wall_, "Consequence", absl::StrCat(reason, ": ", message));
    return;  // all files are in: nothing that happens to a process now can undo them
  }
  End(job, JOB_STATE_FAILED, reason, message);
}

void CoordinatorCore::End(JobRecord& job, common::v1::JobState state, const std::string& reason,
                          const std::string& message) {
  job.waiting.clear();
  job.PauseClock(now_);
  job.takeover_at = absl::InfiniteDuration();
  job.recover = job.recover_free = job.recover_by_loss = job.probing = false;
  job.finished_at = wall_;
  job.ended_at = expiry_at_ = now_;
  job.progress.clear_eta_seconds();
  SetState(job, state, reason, message);
  const char* type = state == JOB_STATE_SUCCEEDED   ? "Succeeded"
                     : state == JOB_STATE_CANCELLED ? "Cancelled"
                                                    : "Failed";
  job.AddEvent(
      wall_, type,
      reason.empty() ? message : absl::StrCat(reason, message.empty() ? "" : ": ", message));
  pending_.erase(job.sequence);
  ended_.push_back(job.id);
  job.history.Shrink(options_.max_ended_history_points);
  schedule_ = true;
}

}  // namespace capstan::coordinator::core
