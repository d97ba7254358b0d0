#include "coordinator/core/job_states.h"

#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/job_changes.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_SUCCEEDED;
using common::v1::JOB_STATE_SUSPENDED;

}  // namespace

void JobStates::SetState(Job& job, common::v1::JobState state, const std::string& reason,
                         const std::string& message) {
  if (state == JOB_STATE_RECOVERING) job.recovery().NoteStep(job.lead().step());
  job.standing().Set(state, reason, message);
  ctx_.Changed(job);
}

void JobStates::Fail(Job& job, const std::string& reason, const std::string& message) {
  if (job.ended() || job.cancel_asked()) {
    // The root cause stands; this followed from it, or from a person's wish.
    job.AddEvent(ctx_.wall(), "Consequence", absl::StrCat(reason, ": ", message));
    ctx_.Changed(job);
    return;
  }
  if (InManifestLimit(job) && job.EndIsReported()) {
    job.AddEvent(ctx_.wall(), "Consequence", absl::StrCat(reason, ": ", message));
    return;  // all files are in: nothing that happens to a process now can undo them
  }
  End(job, JOB_STATE_FAILED, reason, message);
}

void JobStates::End(Job& job, common::v1::JobState state, const std::string& reason,
                    const std::string& message) {
  DropMove(job, "the job ends first");
  if (state != JOB_STATE_SUCCEEDED) KeepNumberOfShards(job);  // it may be tried again
  job.waiting().SayNothing();
  job.clock().Pause(ctx_.now());
  job.recovery().Clear();
  job.members().EndProbe();
  job.standing().NoteEnded(ctx_.wall(), ctx_.now());
  ctx_.LookForExpiredAt(ctx_.now());
  job.history().ForgetEta();
  SetState(job, state, reason, message);
  const char* type = state == JOB_STATE_SUCCEEDED   ? "Succeeded"
                     : state == JOB_STATE_CANCELLED ? "Cancelled"
                                                    : "Failed";
  job.AddEvent(
      ctx_.wall(), type,
      reason.empty() ? message : absl::StrCat(reason, message.empty() ? "" : ": ", message));
  ctx_.jobs().Unqueue(job);
  ctx_.jobs().NoteEnd(job);
  job.history().metrics().Shrink(ctx_.options().max_ended_history_points);
  ctx_.Reschedule();
}

void JobStates::Rest(Job& job, common::v1::JobState state, const std::string& reason,
                     const std::string& message) {
  DropMove(job, "the job gives its gang back first");
  KeepNumberOfShards(job);
  job.recovery().Clear();
  job.members().EndProbe();
  job.members().ForgetBreak();
  job.waiting().SayNothing();
  job.history().ForgetEta();
  job.clock().Pause(ctx_.now());
  SetState(job, state, reason, message);
  ctx_.jobs().Activate(job);  // until it is wound down
  ctx_.jobs().Unqueue(job);
  if (state == JOB_STATE_PENDING) ctx_.jobs().Queue(job);
  job.AddEvent(ctx_.wall(), state == JOB_STATE_SUSPENDED ? "Suspended" : "Requeued", message);
  ctx_.Reschedule();
}

void JobStates::Requeue(Job& job, const std::string& why) {
  for (const Task& task : job.tasks()) {
    Node* node = ctx_.nodes().FindIncarnation(task.node, task.incarnation);
    if (node == nullptr) continue;
    FreeSlots(*node, job.id());
    node->RemoveJob(job.id());
  }
  for (const Shard& shard : job.shards()) {
    Node* node = ctx_.nodes().FindIncarnation(shard.node, shard.incarnation);
    if (node != nullptr) node->RemoveJob(job.id());
  }
  job.AddEvent(ctx_.wall(), "GangLost", why);
  job.members().Clear();
  job.members().ForgetBreak();
  job.waiting().SayNothing();
  job.members().EndProbe();
  job.clock().Pause(ctx_.now());
  ctx_.jobs().Deactivate(job);
  ctx_.jobs().Queue(job);
  SetState(job, JOB_STATE_PENDING, "WaitingForSlots", "its gang was lost: " + why);
  ctx_.Reschedule();
}

void JobStates::Requeued(Job& job, const std::string& type) {
  job.waiting().SayNothing();
  SetState(job, JOB_STATE_PENDING, "WaitingForSlots", "");
  job.AddEvent(ctx_.wall(), type, "");
  ctx_.jobs().Queue(job);
  ctx_.Reschedule();
}

void JobStates::DropMove(Job& job, const std::string& why) {
  const JobChange* const change = job.changes().Move();
  if (change == nullptr) return;
  job.AddEvent(ctx_.wall(), "ShardsStay", absl::StrCat("order ", change->order.id(), ": ", why));
  job.changes().AnswerHandOvers();
}

// While a job runs, its resolved spec has the number that its first gang had: members know the job by the
// spec's digest, and each view has the shards. Now no member of this gang goes on. A job that rests already
// may have been given another number since, and still have the members of its last gang.
void JobStates::KeepNumberOfShards(Job& job) {
  if (job.resting()) return;
  const auto shards = static_cast<int32_t>(job.shards().size());
  if (!job.resolved().has_value() || shards == 0 || job.resolved()->num_shards() == shards) return;
  job::v1::ResolvedSpec resolved = *job.resolved();
  resolved.set_num_shards(shards);
  resolved.mutable_spec()->mutable_resources()->set_num_shards(shards);
  SealResolved(job, std::move(resolved));
}

bool JobStates::InManifestLimit(const Job& job) const {
  return job.link().WritingFor(ctx_.options().manifest_limit, ctx_.now());
}

void JobStates::FreeSlots(Node& node, const std::string& job_id) {
  if (node.FreeSlots(job_id)) ctx_.Reschedule();
}

void JobStates::FreeSlotsOfTheGone(Node& node, const Job& job) {
  std::set<int> taken;
  for (const Task& task : job.tasks()) {
    if (task.gone || task.node != node.name() || task.incarnation != node.incarnation()) continue;
    taken.insert(task.devices.begin(), task.devices.end());
  }
  if (node.FreeSlots(job.id(), taken)) ctx_.Reschedule();
}

void JobStates::SealResolved(Job& job, job::v1::ResolvedSpec resolved) {
  job.resolution().Set(std::move(resolved));
  job.history().SetTotalSteps(job.resolved()->total_steps());
  ctx_.Changed(job);
}

int64_t JobStates::AddChange(Job& job, node::v1::Order order, bool hand_over,
                             std::optional<job::v1::ShardMove> move) {
  const int64_t id = job.changes().Add(std::move(order), hand_over, std::move(move));
  job.AddEvent(ctx_.wall(), "OrderGiven",
               absl::StrCat("order ", id, ": ", ChangeText(*job.changes().Find(id))));
  ctx_.Changed(job);
  return id;
}

}  // namespace capstan::coordinator::core
