// A person's orders while the job runs. Each must take effect once, at the step that was reported.
#include <map>

#include "absl/strings/str_cat.h"
#include "tests/sim/cluster.h"

namespace capstan::sim {
namespace {

namespace core = coordinator::core;

constexpr absl::Duration kAskAgain = absl::Milliseconds(500);

}  // namespace

void Cluster::PlanOrders() {
  bool suspends = false;
  for (size_t i = 0; i < plan_.orders.size(); ++i) {
    queue_.After(plan_.orders[i].at, [this, i] { Give(i); });
    suspends = suspends || plan_.orders[i].what == training::Order::What::kSuspend;
  }
  if (suspends) Watch();
}

// Repeats the order until it is answered. A person who hears nothing may order twice.
void Cluster::Give(size_t order) {
  if (answered_[order]) return;
  queue_.After(kAskAgain, [this, order] { Give(order); });
  if (job_id_.empty()) return;
  const PlannedOrder& planned = plan_.orders[order];
  core::Control control{
      kFirstOrder + static_cast<core::CallId>(order), {}, {.name = "", .any_job = true}};
  if (planned.what == training::Order::What::kSuspend) {
    job::v1::SuspendJobRequest request;
    request.set_job_id(job_id_);
    control.request = request;
  } else {
    job::v1::UpdateJobRequest request;
    request.set_job_id(job_id_);
    if (planned.what == training::Order::What::kLearningRate) {
      request.set_learning_rate(planned.learning_rate);
    } else if (planned.what == training::Order::What::kMaxStaleness) {
      request.set_max_staleness(planned.max_staleness);
    } else {
      request.set_checkpoint(true);
    }
    control.request = request;
  }
  Ask(control);
}

void Cluster::Ask(const core::Control& control) {
  if (!coordinator_process_.alive()) return;
  queue_.After(random_.Between(absl::Microseconds(50), absl::Milliseconds(2)),
               coordinator_process_.Guard([this, control] { Tell(control); }));
}

// Resumes a suspended job after `rest` of the last suspend that was answered.
void Cluster::Watch() {
  queue_.After(absl::Milliseconds(100), [this] { Watch(); });
  const core::Job* const job =
      coordinator_ == nullptr || job_id_.empty() ? nullptr : coordinator_->Peek(job_id_);
  if (job == nullptr || job->state() != common::v1::JOB_STATE_SUSPENDED) {
    suspended_at_ = absl::InfiniteDuration();
    return;
  }
  if (suspended_at_ == absl::InfiniteDuration()) {
    suspended_at_ = queue_.now();
    ++result_.suspends;
  }
  const PlannedOrder* last = nullptr;
  for (size_t i = 0; i < plan_.orders.size(); ++i) {
    if (plan_.orders[i].what == training::Order::What::kSuspend && answered_[i])
      last = &plan_.orders[i];
  }
  if (last == nullptr || queue_.now() < suspended_at_ + last->rest) return;
  job::v1::ResumeJobRequest request;
  request.set_job_id(job_id_);
  if (last->workers > 0 && !plan_.local) request.set_num_workers(last->workers);
  if (last->shards > 0 && !plan_.local) request.set_num_shards(last->shards);
  Ask({kResume, request, {.name = "", .any_job = true}});
}

// Called with a durable job, whose steps are reported to people.
void Cluster::NoteOrders(const core::Job& job) {
  for (const core::JobChange& change : job.changes()) {
    if (!change.order.has_step()) continue;
    const auto [told, fresh] = told_steps_.emplace(change.order.id(), change.order.step());
    if (fresh || told->second == change.order.step()) continue;
    Violation(absl::StrCat("order ", change.order.id(), " took effect at step ", told->second,
                           ", and again at step ", change.order.step()));
  }
}

// Checks the orders in the history of the final weights.
void Cluster::CheckOrders(const core::Job& job) {
  std::map<int64_t, int64_t> steps;  // order id -> step
  double rate = job.resolved()->spec().training().optimizer().learning_rate();
  std::optional<int64_t> bound;
  for (const training::Decision& decision : histories_.Decisions(job.view().lineage())) {
    for (const int64_t id : decision.order_ids) {
      if (id < 1 || id > static_cast<int64_t>(job.changes().size()))
        return Violation(absl::StrCat("order ", id, " was never given"));
      const node::v1::Order& order = job.changes()[static_cast<size_t>(id - 1)].order;
      if (!steps.emplace(id, decision.step).second)
        Violation(absl::StrCat("order ", id, " took effect twice"));
      if (order.has_learning_rate()) rate = order.learning_rate();
      if (order.has_max_staleness()) bound = order.max_staleness();
    }
    if (plan_.asynchronous && decision.max_staleness != bound)
      Violation(absl::StrCat("step ", decision.step, ": bound of staleness ",
                             decision.max_staleness.value_or(-2), ", ordered is ",
                             bound.value_or(-2)));
    if (decision.learning_rate != rate)
      Violation(absl::StrCat("step ", decision.step, ": learning rate ", decision.learning_rate,
                             ", ordered is ", rate));
  }
  for (const auto& [id, told] : told_steps_) {
    const auto step = steps.find(id);
    if (step == steps.end() || step->second != told)
      Violation(absl::StrCat("order ", id, " did not take effect at step ", told, " as told"));
  }
  result_.orders += static_cast<int>(steps.size());
}

}  // namespace capstan::sim
