// Histories: where one begins, what ends it, and what comes after a fault.
//
// A lost worker costs its lanes of a step: others take them over in the same lineage. A lost shard
// costs the steps since the last manifest: a new lineage begins there, and counts as a restart. The
// newest manifest is the last one committed that nobody refused, never the one with the highest
// step; and no lineage begins while a link is in flight.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"
#include "coordinator/core/lane_owners.h"
#include "services/check/mutant.h"
#include "training/chunks/placement.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_SUSPENDED;

constexpr double kDefaultBackoffSeconds = 1;
constexpr double kDefaultMaxBackoffSeconds = 300;

bool NeverRetry(const JobRecord& job, const std::string& reason) {
  static constexpr const char* kDefault[] = {"InvalidSpec", "GpuOutOfMemory", "NonFiniteLoss",
                                             "DataMissing"};
  const auto& list = job.recovery().never_retry_on();
  if (list.empty()) {
    return std::find(std::begin(kDefault), std::end(kDefault), reason) != std::end(kDefault);
  }
  return std::find(list.begin(), list.end(), reason) != list.end();
}

// Before restart number `restarts` + 1.
absl::Duration Backoff(const job::v1::Recovery& recovery, int restarts) {
  const double initial = recovery.has_backoff_initial_seconds() ? recovery.backoff_initial_seconds()
                                                                : kDefaultBackoffSeconds;
  const double most =
      std::max(initial, recovery.has_backoff_max_seconds() ? recovery.backoff_max_seconds()
                                                           : kDefaultMaxBackoffSeconds);
  return absl::Seconds(std::min(most, std::ldexp(initial, std::min(restarts, 40))));
}

}  // namespace

// The view, the base and everything that belongs to one lineage alone. The gang is in job.ranks and
// job.shards; `owners` has one rank per lane.
void CoordinatorCore::BeginLineage(JobRecord& job, const std::vector<int32_t>& owners) {
  common::v1::View view;
  view.set_job_id(job.id);
  view.set_lineage(std::max(job.view.generation(), job.lineage_floor) + 1);
  view.set_generation(view.lineage());
  for (const int32_t owner : owners) view.add_lane_owners(owner);
  for (const Rank& rank : job.ranks) {
    if (rank.lost || !rank.probed) continue;  // a joiner enters once its data are known
    common::v1::WorkerRef* worker = view.add_workers();
    worker->set_rank(rank.index);
    worker->set_node(rank.node);
  }
  const int num_shards = static_cast<int>(job.shards.size());
  if (num_shards > 0) {
    const absl::StatusOr<training::Placement> placement =
        training::Placement::Create(job.resolved->chunk_count(), num_shards);
    if (!placement.ok()) {
      Fail(job, "InvalidSpec",
           absl::StrCat("resources.num_shards: ", placement.status().message()));
      return;
    }
    for (const Shard& shard : job.shards) {
      const training::ChunkRun run = placement->Run(shard.index);
      common::v1::ShardRoute* route = view.add_shards();
      route->set_index(shard.index);
      route->set_node(shard.node);
      route->set_address(shard.address);
      route->set_incarnation(shard.incarnation);
      route->set_first_chunk(run.first_chunk);
      route->set_chunk_count(run.chunk_count);
    }
  }
  job.view = std::move(view);
  job.probing = false;
  job.recover = job.recover_free = job.recover_by_loss = false;
  job.takeover_at = absl::InfiniteDuration();

  const SavedManifest* base = job.LastManifest();
  job.base = base == nullptr ? "" : base->saved.id();
  job.base_step = base == nullptr ? 0 : base->saved.step();
  job.samples_used = base == nullptr ? 0 : base->saved.samples_used();
  job.settled_step = job.base_step;
  job.collecting.clear();
  job.lead.Clear();
  job.weights_files.Clear();
  job.weights_sha256.clear();
  job.manifest = ManifestPhase::kNone;
  job.manifest_attempts = 0;
  job.manifest_error.clear();
  job.failed_step = -1;
  for (Shard& shard : job.shards) {
    shard.failure_told = false;
    shard.why.clear();
    shard.lineage_sent = shard.view_sent = -absl::InfiniteDuration();
    shard.generation_sent = job.view.generation();
  }
  for (Rank& rank : job.ranks) rank.view_sent = -absl::InfiniteDuration();

  const int64_t per_epoch = job.resolved->steps_per_epoch();
  const int64_t whole = per_epoch > 0 ? job.base_step / per_epoch : 0;
  job.epochs.erase(job.epochs.upper_bound(static_cast<int32_t>(whole)), job.epochs.end());
  job.progress.set_step(job.base_step);
  job.progress.clear_loss();
  job.progress.clear_accuracy();
  job.progress.clear_eta_seconds();
  job.progress_mark.clear();  // with the next look at it its clock begins anew
  job.waiting.clear();
  job.late_step = -1;
  job.late_lanes.clear();
  job.issued_at.clear();
  job.reissues.clear();
  job.weighed_generation = 0;
  for (Rank& rank : job.ranks) {  // steps count from the base again
    rank.deal_step = -1;
    rank.trial_step = job.base_step;
  }
  job.complete_since = absl::InfiniteDuration();
  job.orders_sent = -absl::InfiniteDuration();
  AnswerHandOvers(job);
  Changed(job);
}

// A fault that nobody can take over: the job goes on from its last manifest, or fails.
void CoordinatorCore::BeginRecovery(JobRecord& job, const std::string& reason,
                                    const std::string& why) {
  if (job.resting() || job.cancel_asked || job.recover) return;
  if (NeverRetry(job, reason)) {
    Fail(job, reason, why);
    return;
  }
  if (!CountRestart(job, reason, why)) return;
  const absl::Duration backoff = Backoff(job.recovery(), job.restarts - 1);
  if (job.shards.empty()) {
    job.retry_at = now_ + backoff;
    job.retry_wall = wall_ + backoff;
    Rest(job, JOB_STATE_PENDING, "BackOff", absl::StrCat(reason, ": ", why));
    return;
  }
  job.recover = true;
  job.recover_by_loss = reason == "ShardLost";
  job.recover_at = now_ + backoff;
  job.progress_at = now_;
  SetState(job, JOB_STATE_RECOVERING, reason, why);
}

bool CoordinatorCore::CountRestart(JobRecord& job, const std::string& reason,
                                   const std::string& why) {
  if (job.restarts >= job.RestartLimit()) {
    Fail(job, "MaxRestartsExceeded",
         absl::StrCat(job.restarts, job.restarts == 1 ? " restart" : " restarts",
                      " of recovery.max_restarts ", job.RestartLimit(), " are used up; ", why));
    return false;
  }
  ++job.restarts;
  job.restart_reason = reason;
  job.restart_step = std::max(job.restart_step, job.lead.step());
  job.ran_since = absl::InfiniteDuration();
  return true;
}

// The limit is for what happens again and again, not for what happens in a week.
void CoordinatorCore::ForgiveRestarts(JobRecord& job) {
  const bool runs =
      job.state == common::v1::JOB_STATE_RUNNING && job.lead.step() > job.restart_step;
  job.ran_since = runs ? std::min(job.ran_since, now_) : absl::InfiniteDuration();
  if (job.restarts == 0 || !runs || now_ - job.ran_since < options_.restarts_forgiven) return;
  job.AddEvent(
      wall_, "RestartsForgiven",
      absl::StrCat(job.restarts, job.restarts == 1 ? " restart, " : " restarts, ", "beyond step ",
                   job.restart_step, " for ", absl::FormatDuration(options_.restarts_forgiven)));
  job.restarts = 0;
  job.restart_step = 0;
  Changed(job);
}

void CoordinatorCore::AdvanceRecovery(JobRecord& job) {
  if (!job.recover || job.manifest == ManifestPhase::kWriting || now_ < job.recover_at) return;
  if (!ReplaceShards(job)) return;
  std::set<int32_t> living;
  for (const Rank& rank : job.ranks) {
    if (!rank.lost && rank.probed) living.insert(rank.index);
  }
  std::vector<int32_t> owners(job.view.lane_owners().begin(), job.view.lane_owners().end());
  if (!living.empty()) owners = TakeOver(owners, EqualCosts(living));
  const bool is_restart = job.reason != kShardLeft;
  BeginLineage(job, owners);
  job.AddEvent(
      wall_, "LineageStarted",
      absl::StrCat("lineage ", job.view.lineage(), " from ",
                   job.base.empty() ? std::string("the initial weights")
                                    : absl::StrCat("checkpoint ", job.base),
                   is_restart ? absl::StrCat(", restart ", job.restarts, " of ", job.RestartLimit())
                              : std::string()));
  schedule_ = true;
}

// The node of the same name, or any param_store that the job does not use.
bool CoordinatorCore::FindHomes(const JobRecord& job, const std::set<int32_t>& going,
                                std::map<int32_t, Node*>* homes) {
  const auto needs = [&going](const Shard& shard) {
    return shard.lost || going.count(shard.index) > 0;
  };
  std::set<std::string> used;
  for (const Shard& shard : job.shards) {
    if (!needs(shard)) used.insert(shard.node);
  }
  const std::optional<std::string> version = VersionOf(job, nodes_);
  for (const bool same_name : {true, false}) {
    for (const Shard& shard : job.shards) {
      if (!needs(shard) || homes->count(shard.index) > 0) continue;
      Node* best = nullptr;
      for (auto& entry : nodes_.all()) {
        Node& node = entry.second;
        if (!node.takes_work() || node.is_worker() || used.count(node.name()) > 0) continue;
        if (version.has_value() && node.reg.version() != *version) continue;
        if (same_name && node.name() != shard.node) continue;
        if (node.stray_stop_sent.count(job.id) > 0) continue;  // of a former shard of this job
        if (best == nullptr || node.jobs.size() < best->jobs.size()) best = &node;
      }
      if (best == nullptr) continue;
      (*homes)[shard.index] = best;
      used.insert(best->name());
    }
  }
  return std::all_of(job.shards.begin(), job.shards.end(), [&](const Shard& shard) {
    return !needs(shard) || homes->count(shard.index) > 0;
  });
}

// New homes for lost shards. False: somebody's is not there yet, and nothing was changed.
bool CoordinatorCore::ReplaceShards(JobRecord& job) {
  std::map<int32_t, Node*> homes;
  if (!FindHomes(job, {}, &homes)) return false;
  for (const auto& entry : homes) {
    Node& node = *entry.second;
    Shard fresh;
    fresh.index = entry.first;
    fresh.node = node.name();
    fresh.host = node.host();
    fresh.incarnation = node.incarnation;
    fresh.address = node.reg.data_address();
    node.jobs.insert(job.id);
    job.shards[static_cast<size_t>(entry.first)] = std::move(fresh);
  }
  return true;
}

// The base is damaged: the one before it, without a restart on anybody's account. Without any the
// job fails, for to begin anew would throw work away that a person may still save.
void CoordinatorCore::RefuseBase(JobRecord& job, const std::string& why) {
  for (SavedManifest& manifest : job.manifests) {
    if (manifest.saved.id() == job.base) manifest.refused = true;
  }
  job.AddEvent(wall_, "CheckpointRefused", absl::StrCat(job.base, ": ", why));
  Changed(job);
  if (job.LastManifest() == nullptr) {
    Fail(job, "CheckpointCorrupt", absl::StrCat("no checkpoint is left that is whole; ", why));
    return;
  }
  RecoverFreely(job, "CheckpointCorrupt", why);
}

// What nobody lost by a fault of the job's own is no restart.
void CoordinatorCore::RecoverFreely(JobRecord& job, const std::string& reason,
                                    const std::string& why) {
  if (job.shards.empty()) {
    Rest(job, JOB_STATE_PENDING, "BackOff", absl::StrCat(reason, ": ", why));
    return;
  }
  job.recover = job.recover_free = true;
  job.recover_by_loss = false;
  job.recover_at = job.progress_at = now_;
  SetState(job, JOB_STATE_RECOVERING, reason, why);
}

// A history that our record does not know, as where it was put back from a copy: what we tell in a
// lineage up to that one is void, so the job goes on in one above it.
void CoordinatorCore::BeginAbove(JobRecord& job, int64_t lineage, const std::string& who) {
  const int64_t known = std::max(job.view.generation(), job.lineage_floor);
  if (lineage <= known) return;
  if (lineage > known + kMostLineagesAhead) {
    if (job.told_foreign) return;
    job.told_foreign = true;
    job.AddLog(wall_, "warning",
               absl::StrCat(who, " is of lineage ", lineage, ", far above the record's ", known,
                            ": it is none of this job and does not count"));
    return;
  }
  job.lineage_floor = lineage;
  const std::string why =
      absl::StrCat(who, " is of lineage ", lineage, ", above the record's ", job.view.lineage());
  job.AddEvent(wall_, "RecordIsOld", why);
  Changed(job);
  if (job.in_history() && !job.resting() && !job.cancel_asked) {
    RecoverFreely(job, kInternalError, why);
  }
}

void CoordinatorCore::LoseRank(JobRecord& job, Rank& rank, const Loss& loss) {
  if (rank.lost || job.resting() || job.cancel_asked) return;
  rank.why = loss.why;
  const std::string text = absl::StrCat(NameOf(rank), ": ", loss.why);
  if (!job.in_history()) {
    job.requeue = text;
    return;
  }
  rank.lost = true;
  rank.lapsed_at = loss.lapsed ? job.view.generation() : 0;
  job.AddEvent(wall_, loss.drained ? "WorkerDrained" : "WorkerLost", text);
  Changed(job);
  if (job.unread) return;           // GoOn sees to it
  if (job.EndIsReported()) return;  // the manifest can be made of files that are there
  schedule_ = true;
  if (!loss.lapsed && !loss.drained) {
    JobRecord::Rejoin& rejoin = job.rejoin[rank.node];
    if (now_ - rank.deal_at >= options_.rejoin_forgiven) rejoin.failures = 0;
    rejoin.not_before = now_ + options_.rejoin_delay * (1 << std::min(rejoin.failures, 8));
    ++rejoin.failures;
  }
  if (NeverRetry(job, loss.reason)) {
    Fail(job, loss.reason, text);
    return;
  }
  if (job.living() > 0) {
    // Many may be lost by one cause: they make one generation.
    const absl::Duration due = loss.goodbye ? now_ : now_ + options_.takeover_batch;
    job.takeover_at = std::min(job.takeover_at, due);
    return;
  }
  const std::string none = absl::StrCat("no worker is left; ", text);
  if (job.shards.empty()) {
    if (loss.goodbye) return RecoverFreely(job, loss.reason, none);
    BeginRecovery(job, loss.reason, none);
    return;
  }
  // The shards hold the version: whoever comes goes on from it, in the same lineage. A task that
  // said why it failed would say so again and again: that is a restart.
  job.takeover_at = absl::InfiniteDuration();
  if (loss.reported && !CountRestart(job, loss.reason, text)) return;
  job.loss_counted = loss.reported || loss.goodbye;
  if (!job.recover) SetState(job, JOB_STATE_RECOVERING, loss.reason, none);
}

void CoordinatorCore::LoseShard(JobRecord& job, Shard& shard, const Loss& loss) {
  if (shard.lost || job.resting() || job.cancel_asked) return;
  shard.why = loss.why;
  const std::string text = absl::StrCat(NameOf(shard), ": ", loss.why);
  if (!job.in_history()) {
    job.requeue = text;
    return;
  }
  const bool planned = loss.goodbye || loss.drained;
  shard.lost = true;
  shard.lapsed = loss.lapsed && !planned;
  job.AddEvent(wall_, planned ? kShardLeft : "ShardLost", text);
  Changed(job);
  if (job.unread || job.EndIsReported()) return;
  if (!planned) {
    BeginRecovery(job, "ShardLost", text);
  } else if (!job.recover) {
    RecoverFreely(job, kShardLeft, text);
  }
}

// A shard whose lease alone had lapsed is back with its memory before a new lineage was recorded.
void CoordinatorCore::FindShardAgain(JobRecord& job, Shard& shard) {
  if (!shard.lapsed || !job.recover || !job.recover_by_loss || !shard.state.ready() ||
      !shard.state.reason().empty() || shard.state.lineage() != job.view.lineage()) {
    return;
  }
  shard.lost = shard.lapsed = false;
  shard.why.clear();
  job.AddEvent(wall_, "ShardBack", NameOf(shard));
  Changed(job);
  if (std::any_of(job.shards.begin(), job.shards.end(), [](const Shard& s) { return s.lost; }))
    return;
  if (CAPSTAN_MUTANT("shard_back_recovery_stays")) {
    job.recover_at = absl::InfiniteDuration();
  } else {
    job.recover = job.recover_by_loss = false;
  }
  job.takeover_at = now_;  // of workers that were lost meanwhile
  --job.restarts;          // it was none
}

// Likewise a task whose lanes nobody has taken over.
void CoordinatorCore::FindRankAgain(JobRecord& job, Rank& rank) {
  if (rank.lapsed_at == 0 || rank.lapsed_at != job.view.generation() || !job.in_history() ||
      job.resting() || job.cancel_asked || rank.state.phase() == node::v1::TASK_PHASE_FAILED) {
    return;
  }
  rank.lost = false;
  rank.lapsed_at = 0;
  rank.why.clear();
  job.AddEvent(wall_, "WorkerBack", NameOf(rank));
  Changed(job);
}

// The job gives its gang back and waits: in the queue, or for a person.
void CoordinatorCore::Rest(JobRecord& job, common::v1::JobState state, const std::string& reason,
                           const std::string& message) {
  job.takeover_at = absl::InfiniteDuration();
  job.recover = job.recover_free = job.recover_by_loss = false;
  job.probing = false;
  job.requeue.clear();
  job.waiting.clear();
  job.progress.clear_eta_seconds();
  job.PauseClock(now_);
  SetState(job, state, reason, message);
  active_[job.sequence] = &job;  // until it is wound down
  pending_.erase(job.sequence);
  if (state == JOB_STATE_PENDING) pending_[job.sequence] = &job;
  job.AddEvent(wall_, state == JOB_STATE_SUSPENDED ? "Suspended" : "Requeued", message);
  schedule_ = true;
}

}  // namespace capstan::coordinator::core
