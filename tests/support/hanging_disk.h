// Disks that do not do what they should: FUSE file systems in a mount namespace of the test's own.
// One never answers, as a hard NFS mount whose server is away: nobody serves it. One is slow.
// Linux, with /dev/fuse.
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

// A mount namespace of this process, for others than root with a user namespace. Before there is a
// second thread. Errors: what the machine refuses; CAPSTAN_NO_FUSE=1 leaves such tests out.
absl::Status OwnMounts();

class HangingDisk {
 public:
  // Over the folder, until Answer.
  static absl::StatusOr<std::unique_ptr<HangingDisk>> Over(const std::string& folder);
  ~HangingDisk() { Answer(); }
  HangingDisk(const HangingDisk&) = delete;
  HangingDisk& operator=(const HangingDisk&) = delete;

  // With errors: whoever waits goes on, and what lay there before is back.
  void Answer();

 private:
  HangingDisk(std::string folder, int device) : folder_(std::move(folder)), device_(device) {}
  const std::string folder_;
  int device_;
};

// Reads take their time; all else is answered at once. It has the files that lay in the folder, in
// no subfolder, and takes no changes.
class SlowDisk {
 public:
  // A piece of a file that one read of the kernel asks for, 128 KiB at most, comes `pause` later.
  static absl::StatusOr<std::unique_ptr<SlowDisk>> Over(const std::string& folder,
                                                        absl::Duration pause);
  // Reads that wait end with an error, and what lay there before is back.
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
