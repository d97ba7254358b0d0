#include "services/files/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan::services {
namespace {

int OpenOnce(const std::string& root, const std::string& below, int flags) {
  const int folder = open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  open_how how;
  std::memset(&how, 0, sizeof(how));
  how.flags = static_cast<uint64_t>(flags);
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: something was renamed meanwhile and the kernel could not tell; it asks to be called
  // again.
  int fd = -1;
  for (int attempt = 0; attempt < 16; ++attempt) {
    fd = static_cast<int>(syscall(SYS_openat2, folder, below.c_str(), &how, sizeof(how)));
    if (fd >= 0 || errno != EAGAIN) break;
  }
  const int error = errno;
  close(folder);
  errno = error;
  return fd;
}

}  // namespace

std::optional<std::string> PathBelow(absl::string_view path, absl::string_view root) {
  if (path.empty() || path[0] != '/' || root.empty() || root[0] != '/') return std::nullopt;
  std::vector<absl::string_view> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  const std::vector<absl::string_view> root_parts = absl::StrSplit(root, '/', absl::SkipEmpty());
  size_t at = 0;
  std::string below;
  for (const absl::string_view part : parts) {
    if (part == ".") continue;
    if (part == "..") return std::nullopt;
    if (at < root_parts.size()) {
      if (part != root_parts[at]) return std::nullopt;
      ++at;
    } else {
      absl::StrAppend(&below, below.empty() ? "" : "/", part);
    }
  }
  if (at < root_parts.size()) return std::nullopt;
  return below.empty() ? "." : below;
}

int OpenBeneath(const std::string& root, const std::string& below, int flags) {
  const int fd = OpenOnce(root, below, flags);
  if (fd >= 0 || errno != EXDEV) return fd;
  // A link with an absolute target is refused by its form. Where it ends inside, the path without
  // links says so, and the kernel checks that one again.
  const std::string path = absl::StrCat(root, "/", below);
  char real_root[PATH_MAX];
  char real_path[PATH_MAX];
  std::optional<std::string> straight;
  if (realpath(root.c_str(), real_root) != nullptr &&
      realpath(path.c_str(), real_path) != nullptr) {
    straight = PathBelow(real_path, real_root);
  } else {
    // A name that is free lies where its folder does; a link to nowhere may lead out.
    struct stat info;
    if (errno == ENOENT && lstat(path.c_str(), &info) != 0) return -1;
  }
  if (straight.has_value()) return OpenOnce(real_root, *straight, flags);
  errno = EXDEV;
  return -1;
}

bool LiesBeneath(absl::string_view path, const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    std::optional<std::string> below = PathBelow(path, root);
    if (!below.has_value()) continue;
    while (true) {
      const int fd = OpenBeneath(root, *below, O_PATH | O_CLOEXEC);
      if (fd >= 0) {
        close(fd);
        return true;
      }
      if (errno == EXDEV || errno == ELOOP) break;
      if (*below == ".") return true;  // the root itself is not here
      const size_t slash = below->rfind('/');
      *below = slash == std::string::npos ? "." : below->substr(0, slash);
    }
  }
  return false;
}

}  // namespace capstan::services
