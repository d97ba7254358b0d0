// Lineages: where one begins, and what comes after a fault.
//
// A lost shard costs the steps since the last manifest: a new lineage begins there, and counts as a
// restart. The newest manifest is the last one committed that nobody refused, never the one with the
// highest step. No lineage begins while a manifest is in flight.
#ifndef CAPSTAN_COORDINATOR_CORE_RECOVERIES_H_
#define CAPSTAN_COORDINATOR_CORE_RECOVERIES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/shard_mover.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Recoveries {
 public:
  Recoveries(CoreContext& ctx, JobStates& states, ShardMover& mover)
      : ctx_(ctx), states_(states), mover_(mover) {}

  // The view, the base and everything that belongs to one lineage alone. The gang is in the job; `owners` has
  // the index of a task for each lane.
  void BeginLineage(Job& job, const std::vector<int32_t>& owners);
  // A fault that no member can take over: the job goes on from its last manifest, or fails. Counts a restart.
  void BeginRecovery(Job& job, const std::string& reason, const std::string& why);
  // A job whose lanes are fixed, and one of them has lost its owner: it recovers. If its last step is decided
  // meanwhile, it ends with the members that are there.
  void RecoverLanes(Job& job);
  // A lost task that owns a lane, or null.
  const Task* LostOwner(const Job& job) const;
  // False: the job has failed by it.
  bool CountRestart(Job& job, const std::string& reason, const std::string& why);
  // The limit of restarts is for what happens again and again, not for what happens in a week.
  void ForgiveRestarts(Job& job);
  // Begins the next lineage once its back-off is over and every shard has a home.
  void AdvanceRecovery(Job& job);
  // Homes for the lost shards, except one that a move takes away, and for those of `going`. False: some would
  // have none.
  bool FindHomes(const Job& job, const std::set<int32_t>& going, std::map<int32_t, Node*>* homes);
  // The base is damaged: the job goes on from the one before it, and no restart is counted. Without another
  // one it fails, because to begin anew would throw work away that a person may still save.
  void RefuseBase(Job& job, const std::string& why);
  // A loss that is no fault of the job is no restart.
  void RecoverFreely(Job& job, const std::string& reason, const std::string& why);
  // `who` knows a lineage that the record does not, as after a return to a copy: all that the core tells in a
  // lineage up to that one is void, so the job goes on in one above it.
  void BeginAbove(Job& job, int64_t lineage, const std::string& who);
  // After a restart. A member that was lost once all had reported the end needed no recovery, for the files
  // were there. The reports went with the coordinator that had them, and the member cannot repeat its own.
  void RecoverTheLost(Job& job);

 private:
  bool ReplaceShards(Job& job);
  // A job that drops residuals: people are told how much.
  void NoteResidualsLost(Job& job);

  CoreContext& ctx_;
  JobStates& states_;
  ShardMover& mover_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_RECOVERIES_H_
