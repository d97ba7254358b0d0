// Members that leave on purpose, and jobs that are suspended. A shard leaves if its service was told to
// stop, or if its node is drained and another one is free.
//
// The lead is ordered to make the next version the last of its lineage, as for a suspend. Once that is
// committed, the next lineage begins from it without the shards that leave. So no step is done twice, and
// nothing counts as a restart. If the version cannot be saved, because no task computes or the time is
// over, the steps since the last manifest are lost; that is no restart either.
#ifndef CAPSTAN_COORDINATOR_CORE_DEPARTURES_H_
#define CAPSTAN_COORDINATOR_CORE_DEPARTURES_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/losses.h"
#include "coordinator/core/recoveries.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Departures {
 public:
  Departures(CoreContext& ctx, JobStates& states, Recoveries& recoveries, Losses& losses)
      : ctx_(ctx), states_(states), recoveries_(recoveries), losses_(losses) {}

  // Orders the hand-over of shards that leave, or lets them go.
  void AdvanceLeaving(Job& job);
  // An elastic job goes on without the workers of drained nodes as long as that leaves it enough. Other jobs
  // keep theirs: to go would cost them a takeover, or their slots, for nothing.
  void ReleaseDrained(Job& job);
  // A job that keeps residuals orders a hand-over if a worker has joined that is to have lanes, or if one with
  // lanes is to be released.
  void AdvanceLaneMoves(Job& job);
  // The version that a suspend ordered is saved: the gang is given back. After a hand-over the job goes on,
  // except if a person wants it suspended, too: what is saved is saved for both.
  void AdvanceSuspend(Job& job);

 private:
  // The next version is saved and ends the lineage.
  void OrderHandOver(Job& job, const std::string& type, const std::string& why);
  // Those that ReleaseDrained may release.
  std::vector<int32_t> DrainedTasks(const Job& job) const;
  bool DrainsAnOwner(const Job& job) const;
  // Shards whose service stops, in any case. Shards of drained nodes if every shard that goes has somewhere to
  // go; else they stay until their service stops.
  std::set<int32_t> LeavingShards(const Job& job);
  // They are lost on purpose.
  void LetGo(Job& job, const std::set<int32_t>& leaving);
  // The version that a hand-over ordered is committed.
  void GoOnWithout(Job& job);

  CoreContext& ctx_;
  JobStates& states_;
  Recoveries& recoveries_;
  Losses& losses_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_DEPARTURES_H_
