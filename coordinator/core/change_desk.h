// What people change in a job that is there: suspend, resume, retry, update, move a shard, delete a
// checkpoint.
//
// A change is durable before the lead is told. The lead picks its step and names it until it is journaled.
// A new lineage gets the changes that its manifest lacks, with the step of those that had one.
//
// A deletion is durable before the answer goes out. The folder is removed after that, and again after
// every restart until it is gone, so that what a person deleted never comes back.
#ifndef CAPSTAN_COORDINATOR_CORE_CHANGE_DESK_H_
#define CAPSTAN_COORDINATOR_CORE_CHANGE_DESK_H_

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/shard_mover.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class ChangeDesk {
 public:
  ChangeDesk(CoreContext& ctx, JobStates& states, JobFolders& folders, ShardMover& mover,
             JobRun& run)
      : ctx_(ctx), states_(states), folders_(folders), mover_(mover), run_(run) {}

  void Handle(const Control& control);
  void Handle(const CheckpointRemoved& removed);

 private:
  void Change(Job& job, const job::v1::DeleteCheckpointRequest& request, Reply& reply);
  void Change(Job& job, const job::v1::SuspendJobRequest& request, Reply& reply);
  void Change(Job& job, const job::v1::ResumeJobRequest& request, Reply& reply);
  void Change(Job& job, const job::v1::RetryJobRequest& request, Reply& reply);
  void Change(Job& job, const job::v1::UpdateJobRequest& request, Reply& reply);
  void Change(Job& job, const job::v1::MoveShardRequest& request, Reply& reply);

  CoreContext& ctx_;
  JobStates& states_;
  JobFolders& folders_;
  ShardMover& mover_;
  JobRun& run_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CHANGE_DESK_H_
