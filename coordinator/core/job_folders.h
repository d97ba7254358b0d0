// Where the checkpoints of jobs lie, and which jobs begin from those of others.
#ifndef CAPSTAN_COORDINATOR_CORE_JOB_FOLDERS_H_
#define CAPSTAN_COORDINATOR_CORE_JOB_FOLDERS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "coordinator/core/core_context.h"
#include "coordinator/core/job.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// NotFound: the job has no such checkpoint; names those that it has.
absl::Status NoCheckpoint(const Job& job, absl::string_view checkpoint);

// "checkpoint" of a job: `<storage_path>/<lineage>-<step>`.
std::string CheckpointFolder(const std::string& storage_path, int64_t lineage, int64_t step);

// Not thread-safe. Borrows the parts that it is made of.
class JobFolders {
 public:
  explicit JobFolders(CoreContext& ctx) : ctx_(ctx) {}

  // The folder of a job, whether it is there or not.
  std::string StoragePath(const Job& job) const;
  // The folder in which the folder of a job with this spec lies.
  std::string StorageRoot(const job::v1::JobSpec& spec) const;
  // That path lies in the folder of a job: its id; else empty.
  std::string JobWhoseFolderHolds(const std::string& path) const;
  // Whether the caller may begin from the weights that the spec names. PermissionDenied, InvalidArgument.
  absl::Status CheckInitialWeights(const Submit& submit) const;
  // A job that has not ended and has no checkpoint of its own yet, and so begins from this one, perhaps once
  // more. Empty: there is none.
  std::string WhoBeginsFrom(const Job& job, const std::string& checkpoint) const;
  // Orders again that the folders of deleted checkpoints are removed.
  void RemoveDeleted(const Job& job);

 private:
  absl::Status CheckLinkedWeights(const Submit& submit, const std::string& place) const;

  CoreContext& ctx_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_JOB_FOLDERS_H_
