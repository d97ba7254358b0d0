// Going on from what a coordinator before this one made durable.
#ifndef CAPSTAN_COORDINATOR_CORE_RESTORER_H_
#define CAPSTAN_COORDINATOR_CORE_RESTORER_H_

#include "absl/status/status.h"
#include "coordinator/core/checkpoint_desk.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/job_run.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/journal.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/recoveries.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Restorer {
 public:
  Restorer(CoreContext& ctx, JobStates& states, JobFolders& folders, CheckpointDesk& checkpoints,
           Recoveries& recoveries, Losses& losses, JobRun& run)
      : ctx_(ctx),
        states_(states),
        folders_(folders),
        checkpoints_(checkpoints),
        recoveries_(recoveries),
        losses_(losses),
        run_(run) {}

  // Adds all jobs and nodes of `state` to those of the context, which has none. DataLoss: a record is not
  // what was written.
  absl::Status Restore(const DurableState& state, absl::Duration now, absl::Time wall);
  void Handle(const Restored& restored);

 private:
  // What is known of its gang, and then what follows from that. The gang of an only job has ended with the
  // coordinator: that is no loss of its own, so it costs no restart.
  void GoOn(Job& job);
  // Gives the members of a job the slots that they hold; `surely`: those that are not lost.
  void PlaceMembers(Job& job, bool surely);

  CoreContext& ctx_;
  JobStates& states_;
  JobFolders& folders_;
  CheckpointDesk& checkpoints_;
  Recoveries& recoveries_;
  Losses& losses_;
  JobRun& run_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_RESTORER_H_
