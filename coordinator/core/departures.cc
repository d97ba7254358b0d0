#include "coordinator/core/departures.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/reasons.h"
#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"
#include "services/check/mutant.h"

namespace capstan::coordinator::core {
namespace {

// A step needs all shards: while one has not loaded the base of the lineage, none was decided.
bool HasNotBegun(const Job& job) {
  return std::any_of(job.shards().begin(), job.shards().end(), [&job](const Shard& shard) {
    return !shard.lost && shard.present &&
           (shard.state.lineage() < job.view().lineage() || !shard.state.ready());
  });
}

// A move that is under way takes it away from where it is.
bool IsMoved(const Job& job, const Shard& shard) {
  const JobChange* const change = job.changes().Move();
  return change != nullptr && change->move->change() != job::v1::SHARD_CHANGE_ADD &&
         change->move->shard() == shard.index;
}

}  // namespace

std::set<int32_t> Departures::LeavingShards(const Job& job) {
  std::set<int32_t> leaving, drained;
  for (const Shard& shard : job.shards()) {
    const Node* const node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (shard.lost || node == nullptr || node->lost()) continue;
    if (node->leaving()) {
      leaving.insert(shard.index);
    } else if (node->drained() && !IsMoved(job, shard)) {
      drained.insert(shard.index);
    }
  }
  for (const int32_t index : drained) {
    std::set<int32_t> with = leaving;
    with.insert(index);
    std::map<int32_t, Node*> homes;
    if (recoveries_.FindHomes(job, with, &homes)) leaving = std::move(with);
  }
  return leaving;
}

void Departures::AdvanceLeaving(Job& job) {
  if (job.shards().empty() || job.EndIsReported()) return;
  const std::set<int32_t> leaving = LeavingShards(job);
  if (leaving.empty()) return;
  if (job.recovery().wanted()) {
    // The next lineage begins from the last manifest anyhow. A shard that only lost its lease has
    // its back-off to come back in.
    if (ctx_.now() >= job.recovery().at()) LetGo(job, leaving);
    return;
  }
  if (job.lead().complete()) return;  // it ends with the members that are there
  const bool must = std::any_of(leaving.begin(), leaving.end(), [&](int32_t index) {
    return ctx_.nodes().Find(job.shards()[static_cast<size_t>(index)].node)->leaving();
  });
  if (HasNotBegun(job)) return LetGo(job, leaving);
  if (job.lead().suspended() || job.changes().HandOverOrdered()) {
    // A move that was under way before has no clock of its own: nobody has to leave for it.
    const absl::Duration waited = job.changes().HandOverFor(ctx_.now());
    if (!must && waited >= ctx_.options().hand_over_limit) LetGo(job, leaving);
    // No task computes the step that the order waits for.
    if (must && job.members().living() == 0 && !job.lead().suspended()) LetGo(job, leaving);
    return;
  }
  if (job.members().living() == 0) {
    if (must) LetGo(job, leaving);
    return;
  }
  // If nothing can be written, a drain would only stop the job.
  if (!must && job.standing().Has(kCheckpointDegraded)) return;
  std::vector<std::string> who;
  for (const int32_t index : leaving) {
    who.push_back(NameOf(job.shards()[static_cast<size_t>(index)]));
  }
  OrderHandOver(job, "ShardLeaves",
                absl::StrCat(absl::StrJoin(who, ", "),
                             must ? ": its service stops" : ": its node is drained"));
}

void Departures::OrderHandOver(Job& job, const std::string& type, const std::string& why) {
  job.AddEvent(ctx_.wall(), type, absl::StrCat(why, "; the next version is saved first"));
  node::v1::Order order;  // beyond any limit, as a suspend
  order.set_suspend(true);
  states_.AddChange(job, std::move(order), /*hand_over=*/true);
  job.changes().BeginHandOver(ctx_.now());
}

void Departures::AdvanceLaneMoves(Job& job) {
  if (job.LanesAreFixed() && !job.shards().empty() && !job.recovery().wanted() &&
      job.changes().HandOverOrdered() && !job.SuspendOrdered() && LeavingShards(job).empty() &&
      (job.changes().Move() == nullptr || DrainsAnOwner(job))) {
    // A move of shards has no clock of its own: it begins with the first drain.
    const absl::Duration waited = job.changes().HandOverFor(ctx_.now());
    // If the version cannot be saved, and nobody computes on it, the steps since the last checkpoint are lost.
    if (job.standing().Has(kCheckpointDegraded) && waited >= ctx_.options().hand_over_limit) {
      return GoOnWithout(job);
    }
  }
  if (!job.LanesAreFixed() || job.shards().empty() || job.recovery().wanted() ||
      job.lead().suspended() || job.changes().HandOverOrdered() || job.SuspendOrdered() ||
      job.standing().Has(kCheckpointDegraded) || HasNotBegun(job)) {
    return;
  }
  std::vector<std::string> why;
  for (const int32_t index : DrainedTasks(job)) {
    if (!job.lineages().Owns(index)) continue;
    why.push_back(
        absl::StrCat(NameOf(job.tasks()[static_cast<size_t>(index)]), ": its node is drained"));
  }
  std::set<int32_t> able, idle;
  for (const Task& task : job.tasks()) {
    if (!job.IsAble(task) || !job.lineages().Lists(task)) continue;
    able.insert(task.index);
    if (task.dealt && !job.lineages().Owns(task.index)) idle.insert(task.index);
  }
  if (!idle.empty()) {
    const std::vector<int32_t> after = DealByCost(job.lineages().Owners(), EqualCosts(able));
    for (const int32_t index : idle) {
      if (std::find(after.begin(), after.end(), index) == after.end()) continue;
      why.push_back(absl::StrCat(NameOf(job.tasks()[static_cast<size_t>(index)]), ": gets lanes"));
    }
  }
  if (!why.empty()) OrderHandOver(job, kLanesMove, absl::StrJoin(why, ", "));
}

void Departures::LetGo(Job& job, const std::set<int32_t>& leaving) {
  for (const int32_t index : leaving) {
    Shard& shard = job.shards()[static_cast<size_t>(index)];
    const bool stops = ctx_.nodes().Find(shard.node)->leaving();
    losses_.LoseShard(job, shard,
                      {.why = stops ? "its service stops" : "its node is drained",
                       .goodbye = stops,
                       .drained = !stops});
  }
}

void Departures::GoOnWithout(Job& job) {
  if (job.recovery().wanted()) return;
  LetGo(job, LeavingShards(job));
  if (job.LanesAreFixed()) {
    for (const int32_t index : DrainedTasks(job)) {
      losses_.LoseTask(job, job.tasks()[static_cast<size_t>(index)],
                       {.why = "its node is drained", .reason = "", .drained = true});
    }
  }
  if (!job.recovery().wanted() && job.changes().Move() != nullptr) {
    job.recovery().Want(Recovery::Cause::kOther, ctx_.now());  // at once: the job stays RUNNING
    job.waiting().Excuse(ctx_.now());
    ctx_.Changed(job);
    return;
  }
  if (job.LanesAreFixed()) {
    if (!job.recovery().wanted())
      recoveries_.RecoverFreely(job, kLanesMove, "lanes move between workers");
    return;
  }
  // The shards that were to leave stay after all. The lineage has ended nevertheless.
  if (!job.recovery().wanted())
    recoveries_.RecoverFreely(job, kShardLeft, "nobody leaves any more");
}

bool Departures::DrainsAnOwner(const Job& job) const {
  const std::vector<int32_t> drained = DrainedTasks(job);
  return std::any_of(drained.begin(), drained.end(),
                     [&](int32_t index) { return job.lineages().Owns(index); });
}

std::vector<int32_t> Departures::DrainedTasks(const Job& job) const {
  std::vector<int32_t> drained;
  if (ctx_.nodes().drained().empty() || job.resting() || job.cancel_asked() || !job.in_history() ||
      job.shards().empty() || job.lead().complete() || job.SuspendOrdered()) {
    return drained;
  }
  const scheduler::GangRequest request = RequestOf(job.resolved()->spec());
  if (request.min_workers <= 0 || request.min_workers >= request.num_workers) return drained;
  int living = job.living_workers();
  for (const Task& task : job.tasks()) {
    const Node* const node = ctx_.nodes().Find(task.node);
    if (task.lost || node == nullptr || !node->drained()) continue;
    living -= scheduler::WorkersFor(task.devices.size(), request.devices_per_worker);
    if (living < request.min_workers) return drained;
    drained.push_back(task.index);
  }
  return drained;
}

void Departures::ReleaseDrained(Job& job) {
  for (const int32_t index : DrainedTasks(job)) {
    // Residuals are saved first.
    if (job.LanesAreFixed() && job.lineages().Owns(index)) continue;
    losses_.LoseTask(job, job.tasks()[static_cast<size_t>(index)],
                     {.why = "its node is drained", .reason = "", .drained = true});
  }
}

void Departures::AdvanceSuspend(Job& job) {
  if (!job.lead().suspended() || job.lead().complete()) return;
  const SavedManifest* last = job.checkpoints().Last();
  const bool saved = last != nullptr && last->saved.lineage() == job.view().lineage() &&
                     last->saved.step() == job.lead().step();
  if (!saved && !(CAPSTAN_MUTANT("moved_before_saved") && job.changes().Move() != nullptr)) return;
  bool by_person = false;
  bool by_hand_over = false;
  for (const JobChange& change : job.changes()) {
    // One with a step of later belongs there.
    if (!change.order.suspend()) continue;
    if (change.lineage != job.view().lineage() && change.order.has_step()) continue;
    (change.hand_over ? by_hand_over : by_person) = true;
  }
  if (by_hand_over && !by_person) return GoOnWithout(job);
  states_.Rest(
      job, common::v1::JOB_STATE_SUSPENDED, "",
      absl::StrCat("at step ", last->saved.step(), ", goes on from checkpoint ", last->saved.id()));
}

}  // namespace capstan::coordinator::core
