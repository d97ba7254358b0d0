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
  // EAGAIN: something was renamed meanwhile, and the kernel could not decide. It asks for another
  // call.
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

// The deepest part of a path that exists.
struct Deepest {
  std::string root;    // the root that the path lies in
  int fd = -1;         // O_PATH; -1: the root itself does not exist here
  std::string rest;    // the part that is missing or may not be searched: "a/b"
  bool surely = true;  // false: something else is wrong with the rest
};

std::optional<Deepest> OpenDeepest(absl::string_view path, const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    std::optional<std::string> below = PathBelow(path, root);
    if (!below.has_value()) continue;
    std::string rest;
    bool surely = true;
    while (true) {
      const int fd = OpenBeneath(root, *below, O_PATH | O_CLOEXEC);
      if (fd >= 0) return Deepest{root, fd, rest, surely};
      if (errno == EXDEV || errno == ELOOP) break;
      surely = surely && (errno == ENOENT || errno == ENOTDIR || errno == EACCES);
      if (*below == ".") return Deepest{root, -1, rest, surely};
      const size_t slash = below->rfind('/');
      const bool nested = slash != std::string::npos;
      const std::string name = nested ? below->substr(slash + 1) : *below;
      rest = rest.empty() ? name : absl::StrCat(name, "/", rest);
      *below = nested ? below->substr(0, slash) : ".";
    }
  }
  return std::nullopt;
}

// The path that a descriptor is open on.
std::optional<std::string> NameOfDescriptor(int fd) {
  char name[PATH_MAX];
  const ssize_t size = readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), name, sizeof(name));
  if (size <= 0 || size == static_cast<ssize_t>(sizeof(name))) return std::nullopt;
  return std::string(name, static_cast<size_t>(size));
}

bool BeginsWithLink(int folder, const std::string& path) {
  struct stat info;
  const std::string name = path.substr(0, path.find('/'));
  return fstatat(folder, name.c_str(), &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
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
  // The kernel refuses every link with an absolute target. If the target lies inside the root, the
  // path without links lies inside too, and the kernel checks that path again.
  const std::string path = absl::StrCat(root, "/", below);
  char real_root[PATH_MAX];
  char real_path[PATH_MAX];
  std::optional<std::string> straight;
  if (realpath(root.c_str(), real_root) != nullptr &&
      realpath(path.c_str(), real_path) != nullptr) {
    straight = PathBelow(real_path, real_root);
  } else {
    // An unused name lies in its folder. A dangling link may lead out of the root.
    struct stat info;
    if (errno == ENOENT && lstat(path.c_str(), &info) != 0) return -1;
  }
  if (straight.has_value()) return OpenOnce(real_root, *straight, flags);
  errno = EXDEV;
  return -1;
}

int MakeFolderBeneath(const std::string& root, const std::string& below, mode_t mode) {
  constexpr int kFolder = O_PATH | O_DIRECTORY | O_CLOEXEC;
  const int there = OpenBeneath(root, below, kFolder);
  if (there >= 0 || errno != ENOENT || below == ".") return there;
  const size_t slash = below.rfind('/');
  const bool nested = slash != std::string::npos;
  const std::string name = nested ? below.substr(slash + 1) : below;
  const int parent = MakeFolderBeneath(root, nested ? below.substr(0, slash) : ".", mode);
  if (parent < 0) return -1;
  const bool made = mkdirat(parent, name.c_str(), mode) == 0 || errno == EEXIST;
  const int error = errno;
  close(parent);
  if (made) return OpenBeneath(root, below, kFolder);
  errno = error;
  return -1;
}

bool LiesBeneath(absl::string_view path, const std::vector<std::string>& roots) {
  const std::optional<Deepest> deepest = OpenDeepest(path, roots);
  if (deepest.has_value() && deepest->fd >= 0) close(deepest->fd);
  return deepest.has_value();
}

std::optional<std::string> PlaceBeneath(absl::string_view path,
                                        const std::vector<std::string>& roots) {
  const std::optional<Deepest> deepest = OpenDeepest(path, roots);
  if (!deepest.has_value()) return std::nullopt;
  if (!deepest->surely) {
    if (deepest->fd >= 0) close(deepest->fd);
    return std::nullopt;
  }
  std::string below = ".";  // if the root itself does not exist here
  if (deepest->fd >= 0) {
    const std::optional<std::string> real = NameOfDescriptor(deepest->fd);
    const bool leads_nowhere = !deepest->rest.empty() && BeginsWithLink(deepest->fd, deepest->rest);
    close(deepest->fd);
    if (leads_nowhere) return std::nullopt;
    const int root = open(deepest->root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    const std::optional<std::string> real_root = root < 0 ? std::nullopt : NameOfDescriptor(root);
    if (root >= 0) close(root);
    if (!real.has_value() || !real_root.has_value()) return std::nullopt;
    const std::optional<std::string> inside = PathBelow(*real, *real_root);
    if (!inside.has_value()) return std::nullopt;
    below = *inside;
  }
  const std::optional<std::string> place =
      PathBelow(absl::StrCat(deepest->root, "/", below, "/", deepest->rest), "/");
  if (!place.has_value()) return std::nullopt;
  return *place == "." ? "/" : absl::StrCat("/", *place);
}

}  // namespace capstan::services
