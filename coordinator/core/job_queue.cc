#include "coordinator/core/job_queue.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/scheduling.h"
#include "coordinator/scheduler/gang.h"
#include "coordinator/scheduler/plan.h"

namespace capstan::coordinator::core {
namespace {

// A queue that is longer is not gone through more often than this, however much changes.
constexpr absl::Duration kLongQueuePace = absl::Milliseconds(100);

}  // namespace

void JobQueue::Schedule() {
  ctx_.NotePass();
  scheduled_at_ = ctx_.now();
  // What runs already is helped first.
  ctx_.jobs().UpdateIndexes();
  std::optional<GangFiller::NodesShown> shown;
  for (const int64_t sequence : ctx_.jobs().lacking()) {
    Job& job = *ctx_.jobs().active().at(sequence);
    if (!job.unread()) filler_.FillGang(job, &shown);
  }
  queue_ = scheduler::Queue();
  std::vector<Job*> jobs;
  for (const auto& entry : ctx_.jobs().pending()) jobs.push_back(entry.second);
  PlanJobs(std::move(jobs));
}

void JobQueue::PlanJobs(std::vector<Job*> jobs) {
  while (!jobs.empty()) {
    scheduler::Snapshot snapshot;
    std::optional<std::map<std::string, std::set<std::string>>> strays;
    for (Job* job : jobs) {
      std::optional<scheduler::PendingJob> pending = PendingOf(*job);
      if (!pending.has_value()) continue;
      if (job->resolved().has_value()) {  // it has had a gang
        if (!strays.has_value()) strays = StraysOf(ctx_.nodes());
        if (const auto its = strays->find(job->id()); its != strays->end()) {
          pending->request.exclude = its->second;
        }
      }
      snapshot.pending.push_back(*std::move(pending));
    }
    snapshot.queue = std::move(queue_);
    size_t places = snapshot.queue.places;
    if (std::any_of(snapshot.pending.begin(), snapshot.pending.end(), [&](const auto& job) {
          return job.not_before <= ctx_.now() && !snapshot.queue.Knows(job.request);
        })) {
      snapshot.nodes = NodesOf(ctx_.nodes());
    }
    snapshot.nobody_else_comes = AllExpectedAreThere();
    scheduler::Planned planned = scheduler::Plan(std::move(snapshot), ctx_.now());
    queue_ = std::move(planned.queue);

    const Job* ended_at_once = nullptr;
    for (const scheduler::Decision& decision : planned.decisions) {
      if (const auto* explain = std::get_if<scheduler::Explain>(&decision)) {
        if (!explain->for_ever) ++places;
        Explain(*ctx_.jobs().Find(explain->job), *explain);
      } else if (const auto* start = std::get_if<scheduler::Start>(&decision)) {
        Job& job = *ctx_.jobs().Find(start->job);
        StartGang(job, start->gang, start->kind);
        if (!job.resting()) continue;
        ended_at_once = &job;
        break;
      }
    }
    if (ended_at_once == nullptr) return;
    // The time that it may run was over: what it was to hold is free, so a new plan is made for the
    // jobs behind it.
    jobs.erase(jobs.begin(), std::find(jobs.begin(), jobs.end(), ended_at_once) + 1);
    scheduler::Queue rest;
    rest.places = places;
    rest.next_retry = queue_.next_retry;
    queue_ = std::move(rest);
  }
}

std::optional<scheduler::PendingJob> JobQueue::PendingOf(Job& job) {
  scheduler::PendingJob pending{
      .id = job.id(), .request = {}, .not_before = job.recovery().retry_at()};
  if (pending.not_before > ctx_.now()) return pending;
  if (job.unread()) {
    run_.SayUnread(job);
    return std::nullopt;
  }
  if (ctx_.jobs().IsActive(job)) {
    Say(job, job.standing().reason(), "its tasks of before are still being ended");
    return std::nullopt;
  }
  pending.request = RequestOf(job.resolved().has_value() ? job.resolved()->spec() : job.spec());
  pending.request.one_per_node = ctx_.options().expected_nodes > 0;
  return pending;
}

void JobQueue::Say(Job& job, const std::string& reason, const std::string& text) {
  if (job.standing().Say(reason, text)) ctx_.Changed(job);
}

void JobQueue::Explain(Job& job, const scheduler::Explain& explain) {
  if (explain.for_ever) {
    states_.Fail(job, "InvalidSpec", explain.text);
    run_.Advance(job);
    return;
  }
  // A lost gang is the reason until the job has another one.
  Say(job, job.standing().reason() == "GangLost" ? job.standing().reason() : "WaitingForSlots",
      explain.text);
}

void JobQueue::StartGang(Job& job, const scheduler::Gang& gang, const std::string& kind) {
  job.members().Clear();
  for (const scheduler::Gang::Worker& worker : gang.workers) {
    job.members().AddTask(*ctx_.nodes().Find(worker.node), worker.devices, job.id());
  }
  for (const std::string& name : gang.shards)
    job.members().AddShard(*ctx_.nodes().Find(name), job.id());
  ctx_.jobs().Unqueue(job);
  ctx_.jobs().Activate(job);
  job.clock().Run(ctx_.now());
  job.standing().NoteStarted(ctx_.wall());
  job.members().BeginProbe(++ctx_.last().probe);
  job.set_wound_down(false);
  job.members().set_on_gpus(gang.on_gpus);
  job.waiting().BeginAnew();
  states_.SetState(job, common::v1::JOB_STATE_STARTING, "", "");
  job.AddEvent(ctx_.wall(), "Admitted",
               absl::StrCat("gang ready: ", WorkersText(gang.num_workers, job.tasks().size()), ", ",
                            job.shards().size(), job.shards().size() == 1 ? " shard" : " shards",
                            ", on ", kind));
  run_.Advance(job);
}

bool JobQueue::AllExpectedAreThere() const {
  if (ctx_.options().expected_nodes <= 0) return false;
  const auto there = std::count_if(ctx_.nodes().all().begin(), ctx_.nodes().all().end(),
                                   [](const auto& entry) { return entry.second.usable(); });
  return there >= ctx_.options().expected_nodes;
}

void JobQueue::Plan(Job* submitted) {
  if (ctx_.pass_due()) {
    // A job that came meanwhile waits behind those that have not been looked at yet.
    if (ctx_.jobs().pending().size() <= scheduler::kMaxQueueTexts ||
        ctx_.now() >= scheduled_at_ + kLongQueuePace) {
      Schedule();
    }
  } else if (submitted != nullptr) {
    PlanJobs({submitted});
  }
}

void JobQueue::LookAtRetries() {
  if (queue_.next_retry > ctx_.now()) return;
  queue_.next_retry = absl::InfiniteDuration();
  ctx_.Reschedule();
}

absl::Duration JobQueue::NextDue() const {
  return ctx_.pass_due() ? std::min(queue_.next_retry, scheduled_at_ + kLongQueuePace)
                         : queue_.next_retry;
}

}  // namespace capstan::coordinator::core
