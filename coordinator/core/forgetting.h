// What is forgotten: logs that are too long, ended jobs beyond the limit, and ended jobs with
// limits.ttl_after_finished, whose checkpoints go first and then the record.
//
// Counted by the core's clock, so a wall clock that jumps removes nothing: a coordinator that starts gives
// every ended job its whole time again.
#ifndef CAPSTAN_COORDINATOR_CORE_FORGETTING_H_
#define CAPSTAN_COORDINATOR_CORE_FORGETTING_H_

#include <cstddef>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class Forgetting {
 public:
  Forgetting(CoreContext& ctx, JobFolders& folders) : ctx_(ctx), folders_(folders) {}

  // Beyond the limits of logs and of ended jobs.
  void ForgetOldJobs();
  // Those whose time after their end is over.
  void ForgetExpiredJobs();

 private:
  // `index` is a place in JobTable::ended().
  void ForgetEnded(size_t index);
  // All that no other job begins from. True: none is left, on record or on the disk.
  bool RemoveCheckpoints(Job& job);
  // Logs are what is large: first those of ended jobs go, then the longest of all others becomes shorter.
  void BoundLogs();

  CoreContext& ctx_;
  JobFolders& folders_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_FORGETTING_H_
