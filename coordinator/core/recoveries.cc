#include "coordinator/core/recoveries.h"

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/reasons.h"
#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"
#include "training/chunks/placement.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;

}  // namespace

void Recoveries::BeginLineage(Job& job, const std::vector<int32_t>& owners) {
  common::v1::View view = job.lineages().NextLineage(owners, job.tasks());
  view.set_job_id(job.id());
  const int num_shards = static_cast<int>(job.shards().size());
  if (num_shards > 0) {
    const absl::StatusOr<training::Placement> placement =
        training::Placement::Create(job.resolved()->chunk_count(), num_shards);
    if (!placement.ok()) {
      states_.Fail(job, "InvalidSpec",
                   absl::StrCat("resources.num_shards: ", placement.status().message()));
      return;
    }
    for (const Shard& shard : job.shards()) {
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
  const SavedManifest* base = job.checkpoints().Last();
  const int64_t base_step = base == nullptr ? 0 : base->saved.step();
  job.lineages().Begin(std::move(view), base == nullptr ? "" : base->saved.id(), base_step);
  job.members().EndProbe();
  job.recovery().Clear();
  job.written().BeginLineage(base_step);
  job.link().BeginLineage();
  job.history().BeginLineage(base_step, base == nullptr ? 0 : base->saved.samples_used(),
                             job.resolved()->steps_per_epoch());
  for (Shard& shard : job.shards()) {
    shard.failure_told = false;
    shard.why.clear();
    shard.lineage_sent = shard.view_sent = -absl::InfiniteDuration();
    shard.generation_sent = job.view().generation();
  }
  for (Task& task : job.tasks()) task.view_sent = -absl::InfiniteDuration();

  job.waiting().BeginAnew();
  job.waiting().SayNothing();
  job.late().BeginLineage();
  job.paces().BeginLineage();
  for (Task& task : job.tasks()) {  // steps count from the base again
    task.deal_step = -1;
    task.trial_step = job.lineages().base_step();
  }
  job.changes().GiveAtOnce();
  job.changes().AnswerHandOvers();
  ctx_.Changed(job);
}

void Recoveries::BeginRecovery(Job& job, const std::string& reason, const std::string& why) {
  if (job.resting() || job.cancel_asked() || job.recovery().wanted()) return;
  if (NeverRetried(job.recovery_spec(), reason)) {
    states_.Fail(job, reason, why);
    return;
  }
  if (!CountRestart(job, reason, why)) return;
  const absl::Duration backoff = BackoffOf(job.recovery_spec(), job.restarts().count() - 1);
  if (job.shards().empty()) {
    job.recovery().RetryAfter(backoff, ctx_.now(), ctx_.wall());
    states_.Rest(job, JOB_STATE_PENDING, "BackOff", absl::StrCat(reason, ": ", why));
    return;
  }
  const auto cause = reason == "ShardLost"                           ? Recovery::Cause::kShardsLost
                     : job.LanesAreFixed() && reason == "WorkerLost" ? Recovery::Cause::kOwnersLost
                                                                     : Recovery::Cause::kOther;
  job.recovery().Want(cause, ctx_.now() + backoff);
  job.waiting().Excuse(ctx_.now());
  states_.SetState(job, JOB_STATE_RECOVERING, reason, why);
}

const Task* Recoveries::LostOwner(const Job& job) const {
  for (const int32_t owner : job.view().lane_owners()) {
    const Task& task = job.tasks()[static_cast<size_t>(owner)];
    if (task.lost) return &task;
  }
  return nullptr;
}

void Recoveries::RecoverLanes(Job& job) {
  if (!job.KeepsResiduals() || job.shards().empty()) return;
  if (job.lead().complete() && job.recovery().cause() == Recovery::Cause::kOwnersLost &&
      !job.members().AnyShardLost()) {
    // The last step had all that the owner sent, and nobody needs residuals any more.
    job.recovery().CallOff();
    job.recovery().TakeOverAt(ctx_.now());
    job.restarts().TakeBack();  // it was none
    ctx_.Changed(job);
    return;
  }
  if (!job.LanesAreFixed() || job.recovery().wanted()) return;
  const Task* const lost = LostOwner(job);
  if (lost != nullptr) {
    BeginRecovery(job, "WorkerLost", absl::StrCat(NameOf(*lost), ": ", lost->why));
  }
}

bool Recoveries::CountRestart(Job& job, const std::string& reason, const std::string& why) {
  if (job.restarts().count() >= job.RestartLimit()) {
    states_.Fail(
        job, "MaxRestartsExceeded",
        absl::StrCat(job.restarts().count(), job.restarts().count() == 1 ? " restart" : " restarts",
                     " of recovery.max_restarts ", job.RestartLimit(), " are used up; ", why));
    return false;
  }
  job.restarts().Count(reason, job.lead().step());
  return true;
}

void Recoveries::ForgiveRestarts(Job& job) {
  if (!job.restarts().Forgivable(job.state() == common::v1::JOB_STATE_RUNNING, job.lead().step(),
                                 ctx_.now(), ctx_.options().restarts_forgiven)) {
    return;
  }
  job.AddEvent(ctx_.wall(), "RestartsForgiven",
               absl::StrCat(job.restarts().count(),
                            job.restarts().count() == 1 ? " restart, " : " restarts, ",
                            "beyond step ", job.restarts().step(), " for ",
                            absl::FormatDuration(ctx_.options().restarts_forgiven)));
  job.restarts().Clear();
  ctx_.Changed(job);
}

void Recoveries::AdvanceRecovery(Job& job) {
  if (!job.recovery().wanted() || job.link().writing() || ctx_.now() < job.recovery().at()) return;
  std::set<int32_t> living;
  for (const Task& task : job.tasks()) {
    if (!task.lost && job.HasItsData(task)) living.insert(task.index);
  }
  // A later one could not take the lanes up. No shard is replaced before: if the worker comes back, the
  // lineage goes on.
  if (living.empty() && job.LanesAreFixed()) return;
  if (!ReplaceShards(job)) return;
  std::vector<int32_t> owners(job.view().lane_owners().begin(), job.view().lane_owners().end());
  if (!living.empty()) owners = TakeOver(owners, EqualCosts(living));
  if (job.LanesAreFixed()) {
    owners = DealByCost(owners, EqualCosts(living));
    for (const int32_t owner : owners) job.tasks()[static_cast<size_t>(owner)].dealt = true;
  }
  NoteResidualsLost(job);
  // A move begins it while the job is RUNNING, or while it waits for a worker, which is no restart.
  const std::string& reason = job.standing().reason();
  const bool waited = reason == "WorkerLost" && job.changes().Move() != nullptr &&
                      job.recovery().cause() == Recovery::Cause::kOther;
  const bool is_restart = job.state() == JOB_STATE_RECOVERING && reason != kShardLeft &&
                          reason != kLanesMove && !waited;
  mover_.Apply(job);
  BeginLineage(job, owners);
  job.AddEvent(ctx_.wall(), "LineageStarted",
               absl::StrCat("lineage ", job.view().lineage(), " from ",
                            job.lineages().base().empty()
                                ? std::string("the initial weights")
                                : absl::StrCat("checkpoint ", job.lineages().base()),
                            is_restart ? absl::StrCat(", restart ", job.restarts().count(), " of ",
                                                      job.RestartLimit())
                                       : std::string()));
  ctx_.Reschedule();
}

void Recoveries::NoteResidualsLost(Job& job) {
  if (!job.DropsResiduals()) return;
  double squares = 0;
  for (const Task& task : job.tasks()) {
    if (!job.lineages().Owns(task.index)) continue;
    squares += task.state.residual_norm() * task.state.residual_norm();
  }
  if (squares <= 0) return;
  job.AddEvent(
      ctx_.wall(), "ResidualsLost",
      absl::StrCat("a new lineage begins, and what ",
                   job.resolved()->spec().kvstore().gradient_compression().type(),
                   " had left out of the gradients is lost; its norm was ", std::sqrt(squares)));
}

// New homes for lost shards. False: one of them has none yet, and nothing was changed.
bool Recoveries::ReplaceShards(Job& job) {
  std::map<int32_t, Node*> homes;
  if (!FindHomes(job, {}, &homes)) return false;
  for (const auto& entry : homes) {
    job.members().ReplaceShard(entry.first, *entry.second, job.id());
  }
  return true;
}

bool Recoveries::FindHomes(const Job& job, const std::set<int32_t>& going,
                           std::map<int32_t, Node*>* homes) {
  scheduler::HomesRequest request;
  for (const Shard& shard : job.shards()) {
    request.shards.push_back({shard.index, shard.node, shard.lost || going.count(shard.index) > 0});
  }
  request.version = VersionOf(job, ctx_.nodes());
  request.exclude = StraysOf(ctx_.nodes())[job.id()];  // of a former shard
  const auto found = mover_.FindHomes(job, request);
  if (!found.has_value()) return false;
  for (const auto& [shard, node] : *found) (*homes)[shard] = ctx_.nodes().Find(node);
  return true;
}

void Recoveries::RefuseBase(Job& job, const std::string& why) {
  job.checkpoints().Refuse(job.lineages().base());
  job.AddEvent(ctx_.wall(), "CheckpointRefused", absl::StrCat(job.lineages().base(), ": ", why));
  ctx_.Changed(job);
  if (job.checkpoints().Last() == nullptr) {
    states_.Fail(job, "CheckpointCorrupt",
                 absl::StrCat("no checkpoint is left that is whole; ", why));
    return;
  }
  RecoverFreely(job, "CheckpointCorrupt", why);
}

void Recoveries::RecoverFreely(Job& job, const std::string& reason, const std::string& why) {
  if (job.shards().empty()) {
    states_.Rest(job, JOB_STATE_PENDING, "BackOff", absl::StrCat(reason, ": ", why));
    return;
  }
  job.recovery().Want(Recovery::Cause::kOther, ctx_.now());
  job.waiting().Excuse(ctx_.now());
  states_.SetState(job, JOB_STATE_RECOVERING, reason, why);
}

void Recoveries::BeginAbove(Job& job, int64_t lineage, const std::string& who) {
  const int64_t known = job.lineages().HighestKnown();
  switch (job.lineages().Judge(lineage)) {
    case Lineages::Claim::kKnown:
    case Lineages::Claim::kAbsurdAgain:
      return;
    case Lineages::Claim::kAbsurd:
      job.AddLog(ctx_.wall(), "warning",
                 absl::StrCat(who, " is of lineage ", lineage, ", far above the record's ", known,
                              ": it is none of this job and does not count"));
      return;
    case Lineages::Claim::kNew:
      break;
  }
  const std::string why =
      absl::StrCat(who, " is of lineage ", lineage, ", above the record's ", job.view().lineage());
  job.AddEvent(ctx_.wall(), "RecordIsOld", why);
  ctx_.Changed(job);
  if (job.in_history() && !job.resting() && !job.cancel_asked()) {
    RecoverFreely(job, kInternalError, why);
  }
}

void Recoveries::RecoverTheLost(Job& job) {
  if (job.resting() || job.cancel_asked() || job.recovery().wanted() || !job.in_history()) return;
  for (const Shard& shard : job.shards()) {
    if (!shard.lost) continue;
    BeginRecovery(job, "ShardLost", absl::StrCat(NameOf(shard), ": ", shard.why));
    return;
  }
  if (job.members().living() > 0) return;
  const std::string none = "no worker is left";
  if (job.shards().empty()) {
    BeginRecovery(job, "WorkerLost", none);
  } else if (job.state() != common::v1::JOB_STATE_RECOVERING) {
    states_.SetState(job, common::v1::JOB_STATE_RECOVERING, "WorkerLost", none);
  }
}

}  // namespace capstan::coordinator::core
