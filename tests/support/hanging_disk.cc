#include "tests/support/hanging_disk.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/files/files.h"

namespace capstan::tests {
namespace {

absl::Status WriteProc(const std::string& path, const std::string& line) {
  const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  const bool written = write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const int error = errno;
  close(fd);
  return written ? absl::OkStatus() : services::ErrnoStatus(error, "write", path);
}

}  // namespace

absl::Status OwnMounts() {
  const uid_t uid = geteuid();
  const gid_t gid = getegid();
  if (unshare(CLONE_NEWNS | (uid != 0 ? CLONE_NEWUSER : 0)) != 0) {
    return services::ErrnoStatus(errno, "unshare", "a mount namespace");
  }
  if (uid != 0) {
    absl::Status status = WriteProc("/proc/self/setgroups", "deny");
    status.Update(WriteProc("/proc/self/uid_map", absl::StrCat(uid, " ", uid, " 1")));
    status.Update(WriteProc("/proc/self/gid_map", absl::StrCat(gid, " ", gid, " 1")));
    if (!status.ok()) return status;
  }
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    return services::ErrnoStatus(errno, "mount", "/");
  }
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return services::ErrnoStatus(errno, "open", "/dev/fuse");
  close(device);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<HangingDisk>> HangingDisk::Over(const std::string& folder) {
  const int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
  if (device < 0) return services::ErrnoStatus(errno, "open", "/dev/fuse");
  const std::string options =
      absl::StrCat("fd=", device, ",rootmode=40000,user_id=", geteuid(), ",group_id=", getegid());
  if (mount("hangs", folder.c_str(), "fuse", 0, options.c_str()) != 0) {
    const int error = errno;
    close(device);
    return services::ErrnoStatus(error, "mount", folder);
  }
  return std::unique_ptr<HangingDisk>(new HangingDisk(folder, device));
}

void HangingDisk::Answer() {
  if (device_ < 0) return;
  close(std::exchange(device_, -1));
  (void)umount2(folder_.c_str(), MNT_DETACH);
}

}  // namespace capstan::tests
