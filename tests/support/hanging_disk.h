// Faulty disks: FUSE file systems in a mount namespace of the test. One never answers, like a hard
// NFS mount without its server, because nobody serves it. One is slow. Needs Linux with /dev/fuse.
#ifndef CAPSTAN_TESTS_SUPPORT_HANGING_DISK_H_
#define CAPSTAN_TESTS_SUPPORT_HANGING_DISK_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace capstan::tests {

// Gives this process its own mount namespace, with a user namespace unless it is root. Call it
// before there is a second thread. Errors: the machine refuses it. CAPSTAN_NO_FUSE=1 leaves such
// tests out.
absl::Status OwnMounts();

class HangingDisk {
 public:
  // Mounts it over the folder, until Answer.
  static absl::StatusOr<std::unique_ptr<HangingDisk>> Over(const std::string& folder);
  ~HangingDisk() { Answer(); }
  HangingDisk(const HangingDisk&) = delete;
  HangingDisk& operator=(const HangingDisk&) = delete;

  // Ends the mount: waiting callers get errors, and the old content of the folder is back.
  void Answer();

 private:
  HangingDisk(std::string folder, int device) : folder_(std::move(folder)), device_(device) {}
  const std::string folder_;
  int device_;
};

// Delays reads and answers everything else at once. It has the files of the folder, without
// subfolders, and accepts no changes.
class SlowDisk {
 public:
  // Each read of the kernel, of at most 128 KiB of a file, is answered after `pause`.
  static absl::StatusOr<std::unique_ptr<SlowDisk>> Over(const std::string& folder,
                                                        absl::Duration pause);
  // Waiting reads end with an error, and the old content of the folder is back.
  ~SlowDisk();
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;

 private:
  SlowDisk(std::string folder, absl::Duration pause, std::map<std::string, std::string> files,
           int device);
  void Serve();
  void Answer(const std::string& request);
  void Send(uint64_t request, int error, const void* data, size_t size) const;

  const std::string folder_;
  const absl::Duration pause_;
  const std::map<std::string, std::string> files_;  // their bytes, by name
  const int device_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_HANGING_DISK_H_
