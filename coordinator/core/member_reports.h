// What heartbeats say of tasks and shards: states, ends, the lead's news.
#ifndef CAPSTAN_COORDINATOR_CORE_MEMBER_REPORTS_H_
#define CAPSTAN_COORDINATOR_CORE_MEMBER_REPORTS_H_

#include "coordinator/core/checkpoint_desk.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/recoveries.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class MemberReports {
 public:
  MemberReports(CoreContext& ctx, JobStates& states, Recoveries& recoveries, Losses& losses,
                CheckpointDesk& checkpoints)
      : ctx_(ctx),
        states_(states),
        recoveries_(recoveries),
        losses_(losses),
        checkpoints_(checkpoints) {}

  // `task` is in a heartbeat, in this state.
  void AcceptTask(Job& job, Task& task, const node::v1::TaskState& state);
  // The same of a shard.
  void AcceptShard(Job& job, Shard& shard, const node::v1::ShardState& state);

 private:
  void TaskFailed(Job& job, Task& task);
  void ShardFailed(Job& job, Shard& shard);
  void TakeLead(Job& job, const node::v1::LeadState& lead);
  void NoteSkipped(Job& job, const node::v1::LeadState& lead);
  void NoteSlowReaders(Job& job, const node::v1::LeadState& lead);
  void NoteStepTime(Job& job, double samples_per_second);
  void NotePoint(Job& job);
  void JournalChanges(Job& job, const node::v1::LeadState& lead);

  CoreContext& ctx_;
  JobStates& states_;
  Recoveries& recoveries_;
  Losses& losses_;
  CheckpointDesk& checkpoints_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_MEMBER_REPORTS_H_
