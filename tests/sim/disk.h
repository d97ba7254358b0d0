// The disk that all hosts of a simulation share, as real hosts share `storage_path`. After a power
// cut, the unsynced writes of that host are torn or gone. Errors occur at the given rates.
#ifndef CAPSTAN_TESTS_SIM_DISK_H_
#define CAPSTAN_TESTS_SIM_DISK_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/fault_class.h"

namespace capstan::sim {

class SimDisk {
 public:
  // Borrows both.
  SimDisk(Random& random, Effects& effects) : random_(random), effects_(effects) {}

  // `full` is the share of writes that fail with ENOSPC. `sync` is the share of syncs that fail
  // with EIO and lose the content.
  void SetErrors(double full, double sync) {
    full_ = full;
    sync_ = sync;
  }

  // Makes a file, or replaces it. ResourceExhausted: the disk is full, and no file is left.
  absl::Status Write(int host, const std::string& path, std::string bytes);
  // From now on the content survives a power cut. Internal: the sync failed, and the content may be
  // anything.
  absl::Status Sync(const std::string& path);
  // AlreadyExists: `to` exists. NotFound: `from` does not.
  absl::Status Link(int host, const std::string& from, const std::string& to);
  absl::Status Rename(int host, const std::string& from, const std::string& to);
  void Remove(const std::string& path);
  // From now on the names in the folder survive a power cut.
  void SyncFolder(const std::string& folder);
  absl::StatusOr<std::string> Read(const std::string& path) const;
  std::vector<std::string> List(const std::string& prefix) const;
  // Flips one bit of a file whose name ends in `suffix`, if there is one.
  void FlipBit(const std::string& suffix);
  void PowerCut(int host);

 private:
  struct Inode {
    std::string bytes;
    bool synced = false;
    int host = 0;
  };
  struct NameChange {  // not synced yet
    int host = 0;
    std::string path;
    std::shared_ptr<Inode> before;  // null: the name did not exist
  };
  void SetName(int host, const std::string& path, std::shared_ptr<Inode> inode);

  Random& random_;
  Effects& effects_;
  double full_ = 0, sync_ = 0;
  std::map<std::string, std::shared_ptr<Inode>> names_;
  std::vector<NameChange> changes_;  // oldest first
};

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_DISK_H_
