#include "coordinator/core/restorer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/durable_job.h"
#include "coordinator/core/reasons.h"

namespace capstan::coordinator::core {

absl::Status Restorer::Restore(const DurableState& state, absl::Duration now, absl::Time wall) {
  LastNumbers& last = ctx_.last();
  last.incarnation = state.last_incarnation;
  for (const std::string& name : state.drained) ctx_.nodes().SetDrained(name, true);
  // They may still live, and come back with the number that they have.
  for (const auto& entry : state.nodes) {
    if (!ctx_.options().only_job.empty())
      break;  // these ended with the coordinator before this one
    ctx_.nodes().AddAbsent(entry.second.reg, entry.second.incarnation, now, wall);
  }
  std::vector<Job*> ended;
  for (const auto& entry : state.jobs) {
    v1::DurableJob durable;
    if (!durable.ParseFromString(entry.second) || durable.job_id() != entry.first) {
      return absl::DataLossError(absl::StrCat("the record of job ", entry.first, " is damaged"));
    }
    static const std::map<int64_t, job::v1::Event> kNone;
    const auto events = state.events.find(entry.first);
    absl::StatusOr<std::unique_ptr<Job>> loaded = FromDurable(
        durable, events == state.events.end() ? kNone : events->second, ctx_.options(), now, wall);
    if (!loaded.ok()) return loaded.status();
    Job& job = **loaded;
    if (ctx_.jobs().HasSequence(job.sequence()) ||
        ctx_.jobs().OfRequest(job.request_id()) != nullptr) {
      return absl::DataLossError(
          absl::StrCat("job ", job.id(), " and another one have one number or request id"));
    }
    if (const auto pages = state.history.find(entry.first); pages != state.history.end()) {
      for (const auto& [number, page] : pages->second) {
        if (!job.history().metrics().LoadPage(number, page)) {
          return absl::DataLossError(
              absl::StrCat("the history of job ", entry.first, " is damaged: page ", number));
        }
      }
    }
    job.set_saved(FactsOf(durable));
    job.TakeNews();
    job.set_unread(!job.ended());
    ctx_.WatchLog(job);
    last.sequence = std::max(last.sequence, job.sequence());
    last.probe = std::max(last.probe, job.members().probe_id());
    ctx_.jobs().Add(*std::move(loaded));
    ctx_.jobs().Touch(job);
    if (job.ended()) {
      ended.push_back(&job);
      if (!job.wound_down()) ctx_.jobs().Activate(job);
    } else if (job.state() == common::v1::JOB_STATE_PENDING) {
      ctx_.jobs().Queue(job);
      if (!job.wound_down()) ctx_.jobs().Activate(job);
    } else if (!job.resting()) {
      ctx_.jobs().Activate(job);
      job.AddLog(wall, "warning", "the coordinator has started anew: lines from before are gone");
    }
    if (job.state() == common::v1::JOB_STATE_SUSPENDED && !job.wound_down()) {
      ctx_.jobs().Activate(job);
    }
  }
  std::sort(ended.begin(), ended.end(), [](const Job* a, const Job* b) {
    return std::pair(a->standing().finished_at(), a->sequence()) <
           std::pair(b->standing().finished_at(), b->sequence());
  });
  for (const Job* job : ended) ctx_.jobs().NoteEnd(*job);

  // First those that hold their slots for sure: what a lost or ended task held may have been given
  // to another job since.
  for (const bool surely : {true, false}) {
    for (const auto& entry : ctx_.jobs().active()) PlaceMembers(*entry.second, surely);
  }
  ctx_.jobs().UpdateIndexes();
  ctx_.Reschedule();
  return absl::OkStatus();
}

void Restorer::Handle(const Restored& restored) {
  std::vector<Job*> read;
  for (const auto& entry : ctx_.jobs().all()) {
    Job* const job = entry.second;
    const bool meant = !restored.jobs.has_value() || restored.jobs->count(job->id()) > 0;
    if (!meant || (!job->unread() && !job->ended())) continue;
    read.push_back(job);
    job->set_unread(false);  // of an ended one too: it may be retried
    folders_.RemoveDeleted(*job);
    if (job->ended()) continue;
    job->waiting().SayNothing();
    job->waiting().Excuse(ctx_.now());
    ctx_.Reschedule();
    if (const auto found = restored.manifests.find(job->id()); found != restored.manifests.end()) {
      if (job->resolved().has_value()) {
        for (const FoundManifest& manifest : found->second) {
          if (checkpoints_.TakeManifest(*job, manifest)) run_.Advance(*job);
        }
      } else {
        job->HoldFound(found->second);  // whether they fit, its digest will tell
      }
    }
    const auto lineage = restored.lineages.find(job->id());
    if (lineage != restored.lineages.end() && !job->ended()) {
      recoveries_.BeginAbove(*job, lineage->second, "a checkpoint folder");
    }
  }
  for (Job* job : read) {
    if (ctx_.jobs().IsActive(*job)) GoOn(*job);
  }
}

void Restorer::GoOn(Job& job) {
  if (!ctx_.options().only_job.empty() && !job.resting() && !job.cancel_asked()) {
    const SavedManifest* last = job.checkpoints().Last();
    states_.Rest(job, common::v1::JOB_STATE_SUSPENDED, kInterrupted,
                 absl::StrCat("its services ended before it did; it goes on from ",
                              last == nullptr ? std::string("the initial weights")
                                              : absl::StrCat("checkpoint ", last->saved.id())));
    run_.Advance(job);
    return;
  }
  for (Task& task : job.tasks()) {
    if (ctx_.nodes().FindIncarnation(task.node, task.incarnation) == nullptr) {
      losses_.LoseTask(job, task, {.why = "its service is not known any more"});
    }
  }
  for (Shard& shard : job.shards()) {
    if (ctx_.nodes().FindIncarnation(shard.node, shard.incarnation) == nullptr) {
      losses_.LoseShard(job, shard, {.why = "its service is not known any more"});
    }
  }
  // A loss whose lanes had not got new owners yet.
  const auto& owners = job.view().lane_owners();
  const bool ownerless = !job.resting() && job.in_history() &&
                         std::any_of(owners.begin(), owners.end(),
                                     [&job](int32_t owner) { return job.tasks()[owner].lost; });
  if (ownerless) job.recovery().TakeOverAt(ctx_.now());
  recoveries_.RecoverTheLost(job);
  run_.Advance(job);
}

void Restorer::PlaceMembers(Job& job, bool surely) {
  for (const Task& task : job.tasks()) {
    if ((!job.resting() && !task.lost) != surely) continue;
    Node* node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
    if (node == nullptr) continue;
    node->AddJob(job.id());
    for (const int device : task.devices) {
      if (device < 0 || device >= static_cast<int>(node->slots().size())) continue;
      if (node->slots()[device].empty()) node->HoldSlot(static_cast<size_t>(device), job.id());
    }
  }
  for (const Shard& shard : job.shards()) {
    Node* node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (node != nullptr) node->AddJob(job.id());
  }
}

}  // namespace capstan::coordinator::core
