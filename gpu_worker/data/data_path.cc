#include "gpu_worker/data/data_path.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpu_worker/data/failure.h"
#include "training/codec/local_uri.h"

namespace capstan::data {
namespace {

// A FIFO would make open wait for a writer; what is no regular file is refused after opening.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

// The path in its root, or "" where it is not lexically inside.
std::string Below(absl::string_view path, absl::string_view root) {
  while (root.size() > 1 && absl::EndsWith(root, "/")) root.remove_suffix(1);
  if (root != "/") {
    if (!absl::ConsumePrefix(&path, root) || (!path.empty() && path[0] != '/')) return "";
  }
  while (absl::ConsumePrefix(&path, "/")) {
  }
  return std::string(path);
}

absl::Status Escapes(absl::string_view path) {
  return InvalidSpec(absl::StrCat(path, ": dataset path escapes the data root"));
}

// A descriptor, or -1 with errno; EXDEV where the path leaves the root.
int OpenBeneath(const std::string& root, const std::string& below) {
  const int folder = ::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  open_how how;
  std::memset(&how, 0, sizeof(how));
  how.flags = kOpenFlags;
  how.resolve = RESOLVE_BENEATH;
  // EAGAIN: something was renamed meanwhile and the kernel could not tell; it asks to be called
  // again.
  int file = -1;
  for (int attempt = 0; attempt < 16; ++attempt) {
    file = static_cast<int>(::syscall(SYS_openat2, folder, below.c_str(), &how, sizeof(how)));
    if (file >= 0 || errno != EAGAIN) break;
  }
  const int error = errno;
  ::close(folder);
  errno = error;
  return file;
}

// Opens an absolute or relative path within the rules of the header. NotFound is for the caller.
absl::StatusOr<int> OpenPath(const std::string& path, const std::vector<std::string>& roots) {
  int file = -1;
  if (roots.empty()) {
    file = ::open(path.c_str(), kOpenFlags);
  } else {
    for (const absl::string_view part : absl::StrSplit(path, '/')) {
      if (part == "..") return Escapes(path);
    }
    bool inside = false;
    for (const std::string& root : roots) {
      const std::string below = Below(path, root);
      if (below.empty()) continue;
      inside = true;
      file = OpenBeneath(root, below);
      if (file >= 0) break;
      if (errno == EXDEV) return Escapes(path);
    }
    if (!inside) return Escapes(path);
  }
  if (file >= 0) return file;
  const int error = errno;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  if (error == ENOENT || error == ENOTDIR) code = absl::StatusCode::kNotFound;
  if (error == EACCES || error == EPERM) code = absl::StatusCode::kPermissionDenied;
  return DataMissing(code, absl::StrCat(path, ": ", strerror(error)));
}

}  // namespace

absl::StatusOr<std::string> ParseDataUri(absl::string_view uri) {
  absl::StatusOr<std::string> path = training::LocalPath(uri);
  if (!path.ok()) return InvalidSpec(absl::StrCat("data.uri ", path.status().message()));
  return path;
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenDataFile(const std::string& folder,
                                                         absl::string_view name,
                                                         const std::vector<std::string>& roots) {
  const std::string path = absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
  absl::StatusOr<int> plain = OpenPath(path, roots);
  if (plain.ok()) return FileSource(path, *plain);
  if (!absl::IsNotFound(plain.status())) return plain.status();

  const std::string packed_path = path + ".gz";
  absl::StatusOr<int> packed = OpenPath(packed_path, roots);
  if (absl::IsNotFound(packed.status())) {
    return DataMissing(absl::StatusCode::kNotFound,
                       absl::StrCat(path, ": no such file, nor with .gz"));
  }
  if (!packed.ok()) return packed.status();
  absl::StatusOr<std::unique_ptr<ByteSource>> source = FileSource(packed_path, *packed);
  if (!source.ok()) return source.status();
  return GzipSource(*std::move(source));
}

}  // namespace capstan::data
