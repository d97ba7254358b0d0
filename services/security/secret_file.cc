#include "services/security/secret_file.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/files/files.h"

namespace capstan::services {
namespace {

absl::Status CheckOwnerAndMode(const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a regular file"));
  }
  const mode_t mode = info.st_mode & 07777;
  const bool ours = info.st_uid == geteuid() || info.st_uid == 0 || geteuid() == 0;
  if (ours && (mode == 0600 || mode == 0400 || mode == 0440)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s: mode %04o, owner %d; a secret must have mode 0600, 0400 or 0440, owner %d "
      "(chmod 600)",
      path, mode, info.st_uid, geteuid()));
}

}  // namespace

absl::StatusOr<std::string> ReadSecretFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK, so that a FIFO does not block us. It is refused below.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return ErrnoStatus(errno, "open", path);
  struct stat info;
  absl::Status status =
      fstat(fd, &info) != 0 ? ErrnoStatus(errno, "fstat", path) : CheckOwnerAndMode(path, info);
  std::string bytes;
  while (status.ok()) {
    char block[4096];
    const ssize_t got = read(fd, block, sizeof(block));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) status = ErrnoStatus(errno, "read", path);
    if (got <= 0) break;
    bytes.append(block, static_cast<size_t>(got));
    if (static_cast<int64_t>(bytes.size()) > max_bytes) {
      status =
          absl::InvalidArgumentError(absl::StrCat(path, ": is larger than ", max_bytes, " bytes"));
    }
  }
  close(fd);
  if (!status.ok()) return status;
  return bytes;
}

FileStamp FileStamp::Of(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return {};
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size_bytes = info.st_size,
          .changed_ns = int64_t{info.st_ctim.tv_sec} * 1000000000 + info.st_ctim.tv_nsec};
}

void KeepMemoryPrivate() {
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  prctl(PR_SET_DUMPABLE, 0);
}

}  // namespace capstan::services
