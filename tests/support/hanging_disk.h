// A disk that never answers, as a hard NFS mount whose server is away: a FUSE file system that nobody
// serves, in a mount namespace of the test's own. Linux, with /dev/fuse.
#ifndef CAPSTAN_TESTS_SUPPORT_HANGING_DISK_H_
#define CAPSTAN_TESTS_SUPPORT_HANGING_DISK_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

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

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_HANGING_DISK_H_
