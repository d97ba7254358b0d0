#include "coordinator/core/change_desk.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_folders.h"
#include "training/spec/resolve.h"
#include "training/spec/rules.h"
#include "training/spec/validate.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_SUSPENDED;
constexpr int kMaxWorkers = 1024;
constexpr int kMaxMaxRestarts = 1000;
absl::Status Ended(const Job& job) {
  if (!job.ended()) {
    return absl::FailedPreconditionError(absl::StrCat("job ", job.id(), " is being cancelled"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "job ", job.id(),
      " has ended: ", common::v1::JobState_Name(job.state()).substr(sizeof("JOB_STATE_") - 1)));
}

absl::Status CheckStaleness(const Job& job, int64_t max_staleness) {
  if (!training::spec::IsAsynchronous(job.spec())) {
    return absl::FailedPreconditionError(
        absl::StrCat("max_staleness: job ", job.id(), " trains with kvstore '",
                     job.spec().kvstore().type(), "', want 'dist_async'"));
  }
  using training::spec::kMaxSteps;
  if (max_staleness < training::spec::kUnboundedStaleness || max_staleness > kMaxSteps) {
    return absl::InvalidArgumentError(absl::StrCat("max_staleness: want 0 to ", kMaxSteps,
                                                   ", or -1 for no bound, got ", max_staleness));
  }
  return absl::OkStatus();
}

absl::Status Needed(const std::string& what, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(what, " is not deleted: ", why));
}

}  // namespace

void ChangeDesk::Handle(const Control& control) {
  Reply reply{control.call, absl::OkStatus(), {}};
  const std::string& id = std::visit(
      [](const auto& request) -> const std::string& { return request.job_id(); }, control.request);
  Job* job = ctx_.jobs().Find(id);
  if (job == nullptr) {
    reply.status = absl::NotFoundError(absl::StrCat("no job ", id));
    ctx_.Emit(std::move(reply));
    return;
  }
  reply.status = CheckOwner(*job, control.caller);
  if (!reply.status.ok()) {
    ctx_.Emit(std::move(reply));
    return;
  }
  std::visit([this, job, &reply](const auto& request) { Change(*job, request, reply); },
             control.request);
  ctx_.Emit(std::move(reply));
  run_.Advance(*job);
}

void ChangeDesk::Change(Job& job, const job::v1::DeleteCheckpointRequest& request, Reply& reply) {
  const std::string& id = request.checkpoint();
  const SavedManifest* const found = job.checkpoints().Find(id);
  if (found == nullptr) {
    reply.status = NoCheckpoint(job, id);
    return;
  }
  if (job.unread()) {
    reply.status = absl::UnavailableError(
        absl::StrCat("job ", job.id(), ": the coordinator has not read its checkpoints yet"));
    return;
  }
  const std::string what = absl::StrCat("checkpoint ", id, " of job ", job.id());
  if (!job.ended()) {
    if (found == &job.checkpoints().all().back() || found == job.checkpoints().Last()) {
      reply.status = Needed(what, "it is the newest, and the job has not ended");
      return;
    }
    if (id == job.lineages().base()) {
      reply.status = Needed(what, "the job goes on from it, and has not ended");
      return;
    }
  }
  if (const std::string who = folders_.WhoBeginsFrom(job, id); !who.empty()) {
    reply.status = Needed(what, absl::StrCat("job ", who, " begins from it"));
    return;
  }
  job::v1::DeleteCheckpointResponse response;
  response.set_size_bytes(found->saved.size_bytes());
  job.checkpoints().Delete(id);
  job.AddEvent(ctx_.wall(), "CheckpointDeleted", id);
  ctx_.Changed(job);
  ctx_.Emit(RemoveCheckpoint{job.id(), folders_.StoragePath(job), id});
  reply.response = std::move(response);
}

void ChangeDesk::Change(Job& job, const job::v1::SuspendJobRequest&, Reply& reply) {
  if (job.ended() || job.cancel_asked()) {
    reply.status = Ended(job);
    return;
  }
  if (job.state() == JOB_STATE_PENDING || job.members().probing()) {
    states_.Rest(job, JOB_STATE_SUSPENDED, "", "before it started");
  } else if (job.state() != JOB_STATE_SUSPENDED && !job.SuspendOrdered()) {
    node::v1::Order order;  // beyond any limit: there is one for each time that the job ran
    order.set_suspend(true);
    states_.AddChange(job, std::move(order));
  }
  job::v1::SuspendJobResponse response;
  response.set_state(job.state());
  reply.response = std::move(response);
}

// Resuming a job answers every suspend that was ordered, and also one that had not taken effect.
void ChangeDesk::Change(Job& job, const job::v1::ResumeJobRequest& request, Reply& reply) {
  if (job.state() != JOB_STATE_SUSPENDED || job.cancel_asked()) {
    reply.status =
        job.cancel_asked() && !job.ended()
            ? Ended(job)
            : absl::FailedPreconditionError(absl::StrCat("job ", job.id(), " is not suspended"));
    return;
  }
  const bool local = job.resolved().has_value() && job.resolved()->num_shards() == 0;
  if (request.has_num_workers() &&
      (request.num_workers() < 1 || request.num_workers() > kMaxWorkers ||
       (local && request.num_workers() != 1))) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("num_workers: want ", local ? "1" : absl::StrCat("1 to ", kMaxWorkers),
                     ", got ", request.num_workers()));
    return;
  }
  const int64_t chunks = job.resolved().has_value() ? job.resolved()->chunk_count() : kMaxShards;
  const int64_t most = local ? 1 : std::min<int64_t>(kMaxShards, chunks);
  if (request.has_num_shards() && (request.num_shards() < 1 || request.num_shards() > most)) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("num_shards: want 1 to ", most, ", got ", request.num_shards()));
    return;
  }
  if (!job.resolved().has_value()) {
    // Never resolved: another number of workers may make other lanes, but none was computed yet.
    job::v1::JobSpec spec = job.spec();
    if (request.has_num_workers()) spec.mutable_resources()->set_num_workers(request.num_workers());
    if (request.has_num_shards()) spec.mutable_resources()->set_num_shards(request.num_shards());
    reply.status = ctx_.options().validate(spec);
    if (!reply.status.ok()) return;
    job.ChangeSpec(std::move(spec));
  } else if (request.has_num_workers() || (request.has_num_shards() && !local)) {
    job::v1::ResolvedSpec resolved = *job.resolved();
    job::v1::Resources& resources = *resolved.mutable_spec()->mutable_resources();
    if (request.has_num_workers()) {
      // A batch per worker or device would be another global batch now. The members derive it
      // again, and would refuse it.
      resolved.mutable_spec()->mutable_training()->set_global_batch_size(
          resolved.global_batch() / training::spec::StepBatches(resolved.spec()));
      resolved.set_num_workers(request.num_workers());
      resources.set_num_workers(request.num_workers());
      // As elastic as it was submitted.
      const auto& asked = job.spec().resources();
      resources.set_min_workers(asked.min_workers() > 0
                                    ? std::min(asked.min_workers(), request.num_workers())
                                    : request.num_workers());
    }
    if (request.has_num_shards()) {
      resolved.set_num_shards(request.num_shards());
      resources.set_num_shards(request.num_shards());
    }
    states_.SealResolved(job, std::move(resolved));
  }
  job.recovery().RetryAtOnce();
  job.changes().AnswerSuspends();
  states_.Requeued(job, "Resumed");
  job::v1::ResumeJobResponse response;
  response.set_state(job.state());
  reply.response = std::move(response);
}

void ChangeDesk::Change(Job& job, const job::v1::RetryJobRequest&, Reply& reply) {
  if (job.state() != JOB_STATE_FAILED && job.state() != JOB_STATE_CANCELLED) {
    reply.status = absl::FailedPreconditionError(
        absl::StrCat("job ", job.id(), " did not fail and was not cancelled: ",
                     common::v1::JobState_Name(job.state()).substr(sizeof("JOB_STATE_") - 1)));
    return;
  }
  ctx_.jobs().Reopen(job);
  job.standing().Reopen();
  job.restarts().Clear();
  job.clock().Set(absl::ZeroDuration());
  job.vacancies().ForgetFailures();
  job.recovery().RetryAtOnce();
  job.changes().AnswerSuspends();
  // The damage that made it fail may have been repaired.
  job.checkpoints().ForgiveRefusals();
  states_.Requeued(job, "Retried");
  job::v1::RetryJobResponse response;
  response.set_state(job.state());
  if (const SavedManifest* base = job.checkpoints().Last(); base != nullptr) {
    response.set_from(base->saved.uri());
  }
  reply.response = std::move(response);
}

void ChangeDesk::Change(Job& job, const job::v1::UpdateJobRequest& request, Reply& reply) {
  if (job.ended() || job.cancel_asked()) {
    reply.status = Ended(job);
    return;
  }
  if (!request.has_learning_rate() && !request.has_max_staleness() && !request.has_max_restarts() &&
      !request.checkpoint()) {
    reply.status = absl::InvalidArgumentError("nothing to change");
    return;
  }
  if (request.has_learning_rate() &&
      !(std::isfinite(request.learning_rate()) && request.learning_rate() > 0)) {
    reply.status = absl::InvalidArgumentError(
        absl::StrCat("learning_rate: want a finite number above 0, got ", request.learning_rate()));
    return;
  }
  if (request.has_learning_rate() && training::spec::LocalSteps(job.spec()) > 1) {
    reply.status = absl::FailedPreconditionError(absl::StrCat(
        "learning_rate: job ", job.id(), " has kvstore.local_steps ",
        training::spec::LocalSteps(job.spec()), ", so workers follow the rate of its file"));
    return;
  }
  if (request.has_max_staleness()) {
    reply.status = CheckStaleness(job, request.max_staleness());
    if (!reply.status.ok()) return;
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
  if (request.has_max_staleness()) {
    orders.emplace_back().set_max_staleness(request.max_staleness());
  }
  if (request.checkpoint()) orders.emplace_back().set_checkpoint(true);
  if (job.changes().size() + orders.size() > static_cast<size_t>(ctx_.options().max_changes)) {
    reply.status = absl::ResourceExhaustedError(
        absl::StrCat("job ", job.id(), " has had ", job.changes().size(), " orders, the limit is ",
                     ctx_.options().max_changes));
    return;
  }
  job::v1::UpdateJobResponse response;
  for (node::v1::Order& order : orders)
    response.add_order_ids(states_.AddChange(job, std::move(order)));
  if (request.has_max_restarts()) {
    job.restarts().SetLimit(request.max_restarts());
    job.AddEvent(ctx_.wall(), "Updated", absl::StrCat("max_restarts ", request.max_restarts()));
    ctx_.Changed(job);
  }
  reply.response = std::move(response);
}

void ChangeDesk::Change(Job& job, const job::v1::MoveShardRequest& request, Reply& reply) {
  if (job.ended()) {
    reply.status = Ended(job);
    return;
  }
  const absl::StatusOr<int64_t> order = mover_.Order(job, request.move());
  if (!order.ok()) {
    reply.status = order.status();
    return;
  }
  job::v1::MoveShardResponse response;
  response.set_order_id(*order);
  reply.response = std::move(response);
}

void ChangeDesk::Handle(const CheckpointRemoved& removed) {
  Job* const job = ctx_.jobs().Find(removed.job_id);
  if (job == nullptr || !removed.status.ok()) return;
  if (!job->checkpoints().NoteRemoved(removed.checkpoint)) return;
  ctx_.Changed(*job);
  if (job->ended()) ctx_.LookForExpiredAt(ctx_.now());
}

}  // namespace capstan::coordinator::core
