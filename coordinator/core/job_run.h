// The life of a job, from its gang to its end.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_RUN_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_RUN_H_

#include <cstdint>
#include <vector>

#include "coordinator/core/checkpoint_desk.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/departures.h"
#include "coordinator/core/gang_filler.h"
#include "coordinator/core/generations.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/lane_dealer.h"
#include "coordinator/core/pace_dealer.h"
#include "coordinator/core/recoveries.h"
#include "coordinator/core/sender.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class JobRun {
 public:
  JobRun(CoreContext& ctx, JobStates& states, JobFolders& folders, CheckpointDesk& checkpoints,
         Recoveries& recoveries, Generations& generations, PaceDealer& pace, LaneDealer& lanes,
         Sender& sender, GangFiller& filler, Departures& departures)
      : ctx_(ctx),
        states_(states),
        folders_(folders),
        checkpoints_(checkpoints),
        recoveries_(recoveries),
        generations_(generations),
        pace_(pace),
        lanes_(lanes),
        sender_(sender),
        filler_(filler),
        departures_(departures) {}

  // Does all that is due for a job, and sends what its members lack. To be called after anything about it has
  // changed, and at every tick.
  void Advance(Job& job);
  // Its folder is on a disk that hangs: people are told.
  void SayUnread(Job& job);
  // People are told if the files of the job do not fit. It goes on all the same: others may make room, and its
  // last version is tried again and again.
  void Handle(const RoomMeasured& room);

 private:
  void AdvanceProbe(Job& job);
  void AdvanceStart(Job& job);
  void AdvanceCancel(Job& job);
  void ResolveJob(Job& job, const common::v1::DatasetInfo& dataset);
  // Says what a job waits for, and ends one that has waited too long.
  void CheckWaiting(Job& job);
  // Numbers that only grow while a job gets on. Membership alone is no progress, except that it gives a job
  // its time.
  std::vector<int64_t> ProgressMark(const Job& job) const;

  CoreContext& ctx_;
  JobStates& states_;
  JobFolders& folders_;
  CheckpointDesk& checkpoints_;
  Recoveries& recoveries_;
  Generations& generations_;
  PaceDealer& pace_;
  LaneDealer& lanes_;
  Sender& sender_;
  GangFiller& filler_;
  Departures& departures_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_RUN_H_
