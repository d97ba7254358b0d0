#include "coordinator/journal/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/clock/clock.h"
#include "services/files/files.h"

namespace capstan::coordinator {

constexpr absl::Duration kLockPatience = absl::Seconds(2);

absl::StatusOr<int> LockFolder(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/lock");
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return services::ErrnoStatus(errno, "open", path);
  absl::Cleanup close = [fd] { ::close(fd); };
  // A holder that was just killed may need a moment to end.
  const absl::Duration until = MonotonicNow() + kLockPatience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return services::ErrnoStatus(errno, "flock", path);
    if (MonotonicNow() > until) {
      char holder[32] = {};
      const ssize_t size = ::pread(fd, holder, sizeof(holder) - 1, 0);
      return absl::FailedPreconditionError(
          absl::StrCat(folder, ": another coordinator works here",
                       size > 0 ? absl::StrCat(" (process ", holder, ")") : ""));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  // The text is only for people, so a full disk is no reason to stop.
  const std::string self = absl::StrCat(::getpid());
  if ((::ftruncate(fd, 0) != 0 || ::pwrite(fd, self.data(), self.size(), 0) < 0) &&
      errno != ENOSPC && errno != EDQUOT) {
    return services::ErrnoStatus(errno, "write", path);
  }
  std::move(close).Cancel();
  return fd;
}

}  // namespace capstan::coordinator
