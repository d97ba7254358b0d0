// Commits checkpoints: manifest.json, written last, off the strand.
#ifndef CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
#define CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "coordinator/core/types.h"
#include "services/sync/mutex.h"

namespace capstan::coordinator {

// Checks that every file is in `write.folder` with the size that its writer reported (the hash is
// the writer's word: whoever reads the file checks it), then makes manifest.json appear there whole
// or not at all: temporary name, fsync, link, fsync of the folder and of the one above it. Blocks.
// DataLoss: a file is missing or has another size, or another manifest has the name already. The
// same manifest there already: OK.
absl::Status WriteManifestFile(const core::WriteManifest& write);

// A thread that runs WriteManifestFile, one at a time. Thread-safe.
class ManifestWriter {
 public:
  ManifestWriter();
  // Stop().
  ~ManifestWriter();

  // `done` is called in the writer's thread. After Stop: never.
  void Write(core::WriteManifest write, std::function<void(absl::Status)> done)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Finishes what is under way, drops the rest.
  void Stop() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Order {
    core::WriteManifest write;
    std::function<void(absl::Status)> done;
  };
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  Mutex mu_;
  CondVar changed_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mu_);  // at most one per job
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_MANIFEST_WRITER_H_
