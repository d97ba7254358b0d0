// Members that a job loses, and those that come back.
//
// A lost worker costs its lanes of a step: others take them over in the same lineage. A lost shard costs
// the steps since the last manifest (recoveries.h).
#ifndef CAPSTAN_COORDINATOR_CORE_LOSSES_H_
#define CAPSTAN_COORDINATOR_CORE_LOSSES_H_

#include <string>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/recoveries.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// How a member was lost.
struct Loss {
  std::string why;  // a sentence
  std::string reason = "WorkerLost";
  bool lapsed = false;    // its lease, and nothing else is known
  bool goodbye = false;   // its service ended itself, or had said that it would
  bool reported = false;  // its task said `reason`
  bool drained = false;   // it is well, but its node is drained
};

// Not thread-safe. Borrows the parts that it is made of.
class Losses {
 public:
  Losses(CoreContext& ctx, JobStates& states, Recoveries& recoveries)
      : ctx_(ctx), states_(states), recoveries_(recoveries) {}

  // Others take its lanes over. Without others the job recovers.
  void LoseTask(Job& job, Task& task, const Loss& loss);
  // The job recovers in a new lineage, except if the loss was planned or all files are in.
  void LoseShard(Job& job, Shard& shard, const Loss& loss);
  // A shard of which only the lease had lapsed is back with its memory, before a new lineage was recorded.
  void FindShardAgain(Job& job, Shard& shard);
  // Likewise a task whose lanes nobody has taken over.
  void FindTaskAgain(Job& job, Task& task);

 private:
  CoreContext& ctx_;
  JobStates& states_;
  Recoveries& recoveries_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_LOSSES_H_
