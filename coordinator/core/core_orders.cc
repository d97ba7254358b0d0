// What people want of a job that is there: suspend, resume, retry, update.
//
// An order is durable before the lead is told; the lead picks its step and names it until it is
// journaled. A new lineage gets what its manifest lacks: with the step where it had one.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_SUSPENDED;

constexpr int kMaxWorkers = 1024;
constexpr int kMaxShards = 256;
constexpr int kMaxMaxRestarts = 1000;

absl::Status Ended(const JobRecord& job) {
  if (!job.ended()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id, " is being cancelled"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.id,
      " has ended: ", common::v1::JobState_Name(job.state).substr(sizeof("JOB_STATE_") - 1)));
}

std::string OrderText(const JobOrder& order) {
  if (order.hand_over) return "hand-over";
  switch (order.order.what_case()) {
    case node::v1::Order::kLearningRate:
      return absl::StrCat("learning rate ", order.order.learning_rate());
    case node::v1::Order::kSuspend:
      return "suspend";
    default:
      return "checkpoint";
  }
}

bool InBase(const JobRecord& job, int64_t id) {
  const SavedManifest* base = job.FindManifest(job.base);
  return base != nullptr &&
         std::find(base->orders.begin(), base->orders.end(), id) != base->orders.end();
}

}  // namespace

void CoordinatorCore::Handle(const Control& control) {
  Reply reply{control.call, absl::OkStatus(), {}};
  const std::string& id = std::visit(
      [](const auto& request) -> const std::string& { return request.job_id(); }, control.request);
  JobRecord* job = FindJob(id);
  if (job == nullptr) {
    reply.status = absl::NotFoundError(absl::StrCat("no job ", id));
    Emit(std::move(reply));
    return;
  }
  reply.status = CheckOwner(*job, control.caller);
  if (!reply.status.ok()) {
    Emit(std::move(reply));
    return;
  }
  if (log_marks_.count(job->id) == 0) log_marks_[job->id] = job->logs.next();
  std::visit([this, job, &reply](const auto& request) { Order(*job, request, reply); },
             control.request);
  Emit(std::move(reply));
  Advance(*job);
}

int64_t CoordinatorCore::AddOrder(JobRecord& job, node::v1::Order order, bool hand_over) {
  order.set_id(static_cast<int64_t>(job.orders.size()) + 1);
  job.orders.push_back({order, 0, hand_over});
  job.orders_sent = -absl::InfiniteDuration();
  job.AddEvent(wall_, "OrderGiven",
               absl::StrCat("order ", order.id(), ": ", OrderText(job.orders.back())));
  Changed(job);
  return order.id();
}

void CoordinatorCore::Order(JobRecord& job, const job::v1::SuspendJobRequest&, Reply& reply) {
  if (job.ended() || job.cancel_asked) {
    reply.status = Ended(job);
    return;
  }
  if (job.state == JOB_STATE_PENDING || job.probing) {
    Rest(job, JOB_STATE_SUSPENDED, "", "before it started");
  } else if (job.state != JOB_STATE_SUSPENDED && !job.SuspendOrdered()) {
    node::v1::Order order;  // beyond any limit: there is one for each time that the job ran
    order.set_suspend(true);
    AddOrder(job, std::move(order));
  }
  job::v1::SuspendJobResponse response;
  response.set_state(job.state);
  reply.response = std::move(response);
}

// Resuming a job answers every suspend that was ordered: one that a later history repeats, or that
// had not taken effect, is a checkpoint from now on. It keeps its number and its step.
void CoordinatorCore::AnswerSuspends(JobRecord& job) {
  for (JobOrder& order : job.orders) {
    if (!order.order.suspend()) continue;
    order.order.clear_suspend();
    order.order.set_checkpoint(true);
  }
}

void CoordinatorCore::Order(JobRecord& job, const job::v1::ResumeJobRequest& request,
                            Reply& reply) {
  if (job.state != JOB_STATE_SUSPENDED || job.cancel_asked) {
    reply.status =
        job.cancel_asked && !job.ended()
            ? Ended(job)
            : absl::FailedPreconditionError(absl::StrCat("job ", job.id, " is not suspended"));
    return;
  }
  const bool local = job.resolved.has_value() && job.resolved->num_shards() == 0;
  if (request.has_num_workers() &&
      (request.num_workers() < 1 || request.num_workers() > kMaxWorkers ||
       (local && request.num_workers() != 1))) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("num_workers: want ", local ? "1" : absl::StrCat("1 to ", kMaxWorkers),
                     ", got ", request.num_workers()));
    return;
  }
  const int64_t chunks = job.resolved.has_value() ? job.resolved->chunk_count() : kMaxShards;
  const int64_t most = local ? 1 : std::min<int64_t>(kMaxShards, chunks);
  if (request.has_num_shards() && (request.num_shards() < 1 || request.num_shards() > most)) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("num_shards: want 1 to ", most, ", got ", request.num_shards()));
    return;
  }
  if (!job.resolved.has_value()) {
    // Never resolved: another number of workers may make other lanes, but none was computed yet.
    job::v1::JobSpec spec = job.spec;
    if (request.has_num_workers()) spec.mutable_resources()->set_num_workers(request.num_workers());
    if (request.has_num_shards()) spec.mutable_resources()->set_num_shards(request.num_shards());
    reply.status = options_.validate(spec);
    if (!reply.status.ok()) return;
    job.spec = std::move(spec);
    job.spec_changed = true;
  } else if (request.has_num_workers() || (request.has_num_shards() && !local)) {
    job::v1::ResolvedSpec& resolved = *job.resolved;
    job::v1::Resources& resources = *resolved.mutable_spec()->mutable_resources();
    if (request.has_num_workers()) {
      // A batch per worker or device would be another global batch now, which those who derive it again refuse.
      resolved.mutable_spec()->mutable_training()->set_global_batch_size(resolved.global_batch());
      resolved.set_num_workers(request.num_workers());
      resources.set_num_workers(request.num_workers());
      // As elastic as it was submitted.
      const auto& asked = job.spec.resources();
      resources.set_min_workers(asked.min_workers() > 0
                                    ? std::min(asked.min_workers(), request.num_workers())
                                    : request.num_workers());
    }
    if (request.has_num_shards()) {
      resolved.set_num_shards(request.num_shards());
      resources.set_num_shards(request.num_shards());
    }
    SealResolved(job);
  }
  job.retry_at = -absl::InfiniteDuration();
  AnswerSuspends(job);
  Requeued(job, "Resumed");
  job::v1::ResumeJobResponse response;
  response.set_state(job.state);
  reply.response = std::move(response);
}

void CoordinatorCore::Order(JobRecord& job, const job::v1::RetryJobRequest&, Reply& reply) {
  if (job.state != JOB_STATE_FAILED && job.state != JOB_STATE_CANCELLED) {
    reply.status = absl::FailedPreconditionError(
        absl::StrCat("job ", job.id, " did not fail and was not cancelled: ",
                     common::v1::JobState_Name(job.state).substr(sizeof("JOB_STATE_") - 1)));
    return;
  }
  const auto at = std::find(ended_.begin(), ended_.end(), job.id);
  if (at != ended_.end()) ended_.erase(at);
  job.cancel_asked = false;
  job.restarts = 0;
  job.restart_step = 0;
  job.ran = absl::ZeroDuration();
  job.rejoin.clear();
  job.finished_at = absl::InfinitePast();
  job.retry_at = -absl::InfiniteDuration();
  AnswerSuspends(job);
  // The damage that made it fail may have been repaired.
  for (SavedManifest& manifest : job.manifests) manifest.refused = false;
  Requeued(job, "Retried");
  job::v1::RetryJobResponse response;
  response.set_state(job.state);
  if (const SavedManifest* base = job.LastManifest(); base != nullptr) {
    response.set_from(base->saved.uri());
  }
  reply.response = std::move(response);
}

void CoordinatorCore::Order(JobRecord& job, const job::v1::UpdateJobRequest& request,
                            Reply& reply) {
  if (job.ended() || job.cancel_asked) {
    reply.status = Ended(job);
    return;
  }
  if (!request.has_learning_rate() && !request.has_max_restarts() && !request.checkpoint()) {
    reply.status = absl::InvalidArgumentError("nothing to change");
    return;
  }
  if (request.has_learning_rate() &&
      !(std::isfinite(request.learning_rate()) && request.learning_rate() > 0)) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("learning_rate: want a finite number above 0, got ", request.learning_rate()));
    return;
  }
  if (request.has_max_restarts() &&
      (request.max_restarts() < 0 || request.max_restarts() > kMaxMaxRestarts)) {
    reply.status = absl::InvalidArgumentError(absl::StrCat(
        "max_restarts: want 0 to ", kMaxMaxRestarts, ", got ", request.max_restarts()));
    return;
  }
  std::vector<node::v1::Order> orders;
  if (request.has_learning_rate()) {
    orders.emplace_back().set_learning_rate(request.learning_rate());
  }
  if (request.checkpoint()) orders.emplace_back().set_checkpoint(true);
  if (job.orders.size() + orders.size() > static_cast<size_t>(options_.max_orders)) {
    reply.status =
        absl::ResourceExhaustedError(absl::StrCat("job ", job.id, " has had ", job.orders.size(),
                                                  " orders, the limit is ", options_.max_orders));
    return;
  }
  job::v1::UpdateJobResponse response;
  for (node::v1::Order& order : orders) response.add_order_ids(AddOrder(job, std::move(order)));
  if (request.has_max_restarts()) {
    job.max_restarts = request.max_restarts();
    job.AddEvent(wall_, "Updated", absl::StrCat("max_restarts ", request.max_restarts()));
    Changed(job);
  }
  reply.response = std::move(response);
}

// Back into the queue, at its old place.
void CoordinatorCore::Requeued(JobRecord& job, const std::string& type) {
  job.waiting.clear();
  SetState(job, JOB_STATE_PENDING, "WaitingForSlots", "");
  job.AddEvent(wall_, type, "");
  pending_[job.sequence] = &job;
  schedule_ = true;
}

// The resolved spec's bytes and digest, after it was made or changed.
void CoordinatorCore::SealResolved(JobRecord& job) {
  job.resolved_bytes = job.resolved->SerializeAsString();
  training::Sha256 sha256;
  sha256.Update(job.resolved_bytes);
  const auto digest = sha256.Finish();
  job.digest.assign(digest.begin(), digest.end());
  job.progress.set_total_steps(job.resolved->total_steps());
  Changed(job);
}

// The lead says at which step an order took effect: from then on it does so there and nowhere else.
void CoordinatorCore::JournalOrders(JobRecord& job, const node::v1::LeadState& lead) {
  const int count = std::min(lead.applied_order_ids_size(), lead.applied_order_steps_size());
  for (int i = 0; i < count; ++i) {
    const int64_t id = lead.applied_order_ids(i);
    if (id < 1 || id > static_cast<int64_t>(job.orders.size())) continue;
    JobOrder& order = job.orders[static_cast<size_t>(id - 1)];
    if (order.lineage == job.view.lineage()) continue;
    const int64_t step = lead.applied_order_steps(i);
    if (step < 0 || step >= job.resolved->total_steps()) continue;
    const bool news = !order.order.has_step() || order.order.step() != step;
    order.lineage = job.view.lineage();
    order.order.set_step(step);
    if (news) {
      job.AddEvent(wall_, "OrderApplied",
                   absl::StrCat("order ", id, ": ", OrderText(order), ", from step ", step));
    }
    Changed(job);
  }
}

// What the lineage's base lacks.
std::vector<node::v1::Order> CoordinatorCore::OrdersBeyondBase(const JobRecord& job) const {
  std::vector<node::v1::Order> out;
  for (const JobOrder& order : job.orders) {
    if (!InBase(job, order.order.id())) out.push_back(order.order);
  }
  return out;
}

// To the lead, until it shows them.
void CoordinatorCore::SendOrders(JobRecord& job) {
  if (job.orders.empty() || !Due(job.orders_sent, options_.resend)) return;
  node::v1::ConnectResponse response;
  node::v1::GiveOrders* give = response.mutable_give_orders();
  give->set_job_id(job.id);
  give->set_lineage(job.view.lineage());
  for (const JobOrder& order : job.orders) {
    if (order.lineage == job.view.lineage() || InBase(job, order.order.id())) continue;
    *give->add_orders() = order.order;
  }
  if (give->orders().empty()) return;
  const Node* node = nullptr;
  if (!job.shards.empty()) {
    const Shard& lead = job.shards[0];
    if (lead.present) node = nodes_.FindIncarnation(lead.node, lead.incarnation);
  } else {
    for (const Rank& rank : job.ranks) {
      if (!rank.lost && rank.present) node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    }
  }
  if (node == nullptr || !node->usable()) return;
  job.orders_sent = now_;
  Emit(Send{node->session, std::move(response)});
}

// The version that a suspend ordered is saved: the gang is given back. A hand-over goes on, except
// where a person wants the job suspended, too: what is saved is saved for both.
void CoordinatorCore::AdvanceSuspend(JobRecord& job) {
  if (!job.lead.suspended() || job.lead.complete()) return;
  const SavedManifest* last = job.LastManifest();
  if (last == nullptr || last->saved.lineage() != job.view.lineage() ||
      last->saved.step() != job.lead.step()) {
    return;
  }
  bool by_person = false;
  bool by_hand_over = false;
  for (const JobOrder& order : job.orders) {
    // One with a step of later belongs there.
    if (!order.order.suspend()) continue;
    if (order.lineage != job.view.lineage() && order.order.has_step()) continue;
    (order.hand_over ? by_hand_over : by_person) = true;
  }
  if (by_hand_over && !by_person) return GoOnWithout(job);
  Rest(
      job, JOB_STATE_SUSPENDED, "",
      absl::StrCat("at step ", last->saved.step(), ", goes on from checkpoint ", last->saved.id()));
}

}  // namespace capstan::coordinator::core
