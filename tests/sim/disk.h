// The disk that all hosts of a simulation share, as they share `storage_path`: what was not synced
// is torn or gone after a power cut of the host that wrote it, and errors come as often as asked.
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

  // Shares of writes that fail with ENOSPC, of syncs that fail with EIO (the content is lost).
  void SetErrors(double full, double sync) {
    full_ = full;
    sync_ = sync;
  }

  // A new file, or another one in its place. ResourceExhausted: no space, nothing is there.
  absl::Status Write(int host, const std::string& path, std::string bytes);
  // Its content survives from now on. Internal: it did not, and may be anything.
  absl::Status Sync(const std::string& path);
  // AlreadyExists: `to` is there. NotFound: `from` is not.
  absl::Status Link(int host, const std::string& from, const std::string& to);
  absl::Status Rename(int host, const std::string& from, const std::string& to);
  void Remove(const std::string& path);
  // The names in it survive from now on.
  void SyncFolder(const std::string& folder);
  absl::StatusOr<std::string> Read(const std::string& path) const;
  std::vector<std::string> List(const std::string& prefix) const;
  // One bit of some file whose name ends so; nothing where there is none.
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
    std::shared_ptr<Inode> before;  // null: none
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
