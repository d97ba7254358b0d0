// The states of a job: how it gets from one to the next, and what goes with each.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_STATES_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_STATES_H_

#include <cstdint>
#include <optional>
#include <string>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class JobStates {
 public:
  explicit JobStates(CoreContext& ctx) : ctx_(ctx) {}

  // Also notes how far the job was when it became RECOVERING.
  void SetState(Job& job, common::v1::JobState state, const std::string& reason,
                const std::string& message);
  // Ends the job as FAILED. A failure after its end, or after a cancel, is only an event: it follows from the
  // root cause, or from what a person wanted.
  void Fail(Job& job, const std::string& reason, const std::string& message);
  // `reason` and `message` may be empty.
  void End(Job& job, common::v1::JobState state, const std::string& reason,
           const std::string& message);
  // The job gives its gang back and waits: in the queue, or for a person.
  void Rest(Job& job, common::v1::JobState state, const std::string& reason,
            const std::string& message);
  // A gang that fell apart before it had a history is no failure: the job waits for another one, at its old
  // place in the queue.
  void Requeue(Job& job, const std::string& why);
  // A person wants the job to go on: back into the queue, at its old place. `type` is the event.
  void Requeued(Job& job, const std::string& type);
  // A manifest is being written, and a disk that answers may still be waited for.
  bool InManifestLimit(const Job& job) const;
  // Slots of the node that the job holds become free.
  void FreeSlots(Node& node, const std::string& job_id);
  // The same, except for slots of tasks that may still run.
  void FreeSlotsOfTheGone(Node& node, const Job& job);
  // The resolved spec was made or changed: it gets its bytes and its digest.
  void SealResolved(Job& job, job::v1::ResolvedSpec resolved);
  // The answer is its id. It is durable before the lead is told.
  int64_t AddChange(Job& job, node::v1::Order order, bool hand_over = false,
                    std::optional<job::v1::ShardMove> move = std::nullopt);

 private:
  // A move of shards that is under way is overtaken: people are told that nothing comes of it.
  void DropMove(Job& job, const std::string& why);
  // The job stops running: the next gang has as many shards as this one has now, after moves.
  void KeepNumberOfShards(Job& job);

  CoreContext& ctx_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_STATES_H_
