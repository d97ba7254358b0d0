// Checkpoints: files of one version from all members, the manifest that makes them one, what is kept.
//
// Only versions of the current lineage are collected, in their order, and one manifest is in flight at
// most. FilesTaken goes out for a version once its manifest is durable or it was given up.
#ifndef CAPSTAN_COORDINATOR_CORE_CHECKPOINT_DESK_H_
#define CAPSTAN_COORDINATOR_CORE_CHECKPOINT_DESK_H_

#include <cstdint>
#include <string>

#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// Not thread-safe. Borrows the parts that it is made of.
class CheckpointDesk {
 public:
  CheckpointDesk(CoreContext& ctx, JobStates& states, JobFolders& folders)
      : ctx_(ctx), states_(states), folders_(folders) {}

  // A shard, or the task that is its own shard, reports files of a version or an error.
  void TakeFiles(Job& job, int32_t shard, const node::v1::WrittenFiles& files);
  // A task reports the residuals of its lanes, or an error.
  void TakeResiduals(Job& job, int32_t task, const node::v1::WrittenFiles& files);
  // Orders the manifest of the oldest version that everybody has reported.
  void AdvanceCheckpoints(Job& job);
  // A version that could not be saved. The last version and that of a suspend are tried again by their
  // writers until they are there. Any other is given up.
  void CheckpointFailed(Job& job, int64_t step, const std::string& why);
  // The job that has changed and is to be advanced, or null.
  Job* Handle(const ManifestWritten& written);
  // The file is the truth: a manifest whose commit nobody could record any more counts. True: the job is to
  // be advanced.
  bool TakeManifest(Job& job, const FoundManifest& found);

 private:
  // Files of this version are still wanted.
  bool Wants(const Job& job, const node::v1::WrittenFiles& files) const;
  // A version of which some member has reported files or an error. True: nothing is to be done about later
  // ones now, and `collected` may be gone.
  bool AdvanceVersion(Job& job, int64_t step, const WrittenVersion& collected);
  void OrderManifest(Job& job, int64_t step);
  void Commit(Job& job);
  // Keeps the newest, the best, the base of the lineage, and those that another job begins from.
  void Prune(Job& job);

  CoreContext& ctx_;
  JobStates& states_;
  JobFolders& folders_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CHECKPOINT_DESK_H_
