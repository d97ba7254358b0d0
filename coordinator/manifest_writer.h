// The coordinator's work on checkpoint folders: manifest.json, written last; what is no checkpoint
// (any more), removed; files read again and compared. All of it off the strand.
#ifndef CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
#define CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/types.h"
#include "services/sync/mutex.h"

namespace capstan::coordinator {

// Checks that every file is in `write.folder` with the size that its writer reported (the hash is
// the writer's word: whoever reads the file checks it), then makes manifest.json appear there whole
// or not at all: temporary name, fsync, link, fsync of the folder and of the two above it, those of
// the job and of all jobs. Blocks.
// DataLoss: a file is missing or has another size, or another manifest has the name already. The
// same manifest there already: OK.
absl::Status WriteManifestFile(const core::WriteManifest& write);

// Removes the folders that `sweep` names, each one's manifest.json first, so that a half removed
// checkpoint is none. What cannot be removed stays for the next time. Blocks. Returns how many went.
int SweepCheckpointFolders(const core::SweepCheckpoints& sweep);

// The manifests of one job that lie in `<storage_path>/<lineage>-<step>/manifest.json`, by lineage
// and step; their folders are synced, for whoever wrote one may have died before. One that is
// damaged, or of another job, or whose folders cannot be synced, is none: that is logged. Blocks.
std::vector<core::FoundManifest> FindManifests(const std::string& job_id,
                                               const std::string& storage_path);

// The highest lineage that a folder `<lineage>-<step>` in `storage_path` is named after, whatever
// lies in it; 0: there is none. Blocks.
int64_t HighestLineage(const std::string& storage_path);

// Reads manifest.json and every file that it names and compares sizes and hashes with `saved`, the
// coordinator's record. Blocks. NotFound: there is no manifest; DataLoss names file and check.
absl::Status VerifyCheckpointFolder(const std::string& folder,
                                    const job::v1::SavedCheckpoint& saved);

// A thread for work on files, one piece after the other. Thread-safe.
class FileThread {
 public:
  // More than so many waiting pieces are refused by TryPost.
  static constexpr size_t kMaxWaiting = 16;

  FileThread();
  // Stop().
  ~FileThread();

  // After Stop: dropped.
  void Post(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // False: too much is waiting, or Stop was called; `work` is dropped.
  bool TryPost(std::function<void()> work) ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes what is under way, drops the rest.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
