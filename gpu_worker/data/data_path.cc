#include "gpu_worker/data/data_path.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "services/files/beneath.h"
#include "training/codec/local_uri.h"

namespace capstan::data {
namespace {

// O_NONBLOCK, because open would wait for the writer of a FIFO. Files that are not regular are
// refused after opening.
constexpr int kOpenFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

absl::Status Escapes(absl::string_view path) {
  return InvalidSpec(absl::StrCat(path, ": dataset path escapes the data root"));
}

// Opens an absolute or relative path by the rules of the header. The caller handles NotFound.
absl::StatusOr<int> OpenPath(const std::string& path, const std::vector<std::string>& roots,
                             int flags = kOpenFlags) {
  int file = -1;
  if (roots.empty()) {
    file = ::open(path.c_str(), flags);
  } else {
    bool inside = false;
    for (const std::string& root : roots) {
      const std::optional<std::string> below = services::PathBelow(path, root);
      if (!below.has_value()) continue;
      inside = true;
      file = services::OpenBeneath(root, *below, flags);
      if (file >= 0) break;
      if (errno == EXDEV || errno == ELOOP) return Escapes(path);
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

bool IsRegularFile(const std::string& path, const std::vector<std::string>& roots) {
  const absl::StatusOr<int> file = OpenPath(path, roots);
  if (!file.ok()) return false;
  struct stat info = {};
  const bool regular = ::fstat(*file, &info) == 0 && S_ISREG(info.st_mode);
  ::close(*file);
  return regular;
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

  struct Packing {
    const char* suffix;
    std::unique_ptr<ByteSource> (*unpack)(std::unique_ptr<ByteSource> packed);
  };
  for (const Packing& packing : {Packing{".gz", GzipSource}, Packing{".xz", XzSource}}) {
    const std::string packed_path = path + packing.suffix;
    absl::StatusOr<int> packed = OpenPath(packed_path, roots);
    if (absl::IsNotFound(packed.status())) continue;
    if (!packed.ok()) return packed.status();
    absl::StatusOr<std::unique_ptr<ByteSource>> source = FileSource(packed_path, *packed);
    if (!source.ok()) return source.status();
    return packing.unpack(*std::move(source));
  }
  return DataMissing(absl::StatusCode::kNotFound,
                     IsRegularFile(folder, roots)
                         ? absl::StrCat(folder, ": is a file, want the folder that has ", name)
                         : absl::StrCat(path, ": no such file, nor with .gz or .xz"));
}

absl::StatusOr<std::unique_ptr<ByteSource>> OpenDataPath(const std::string& path,
                                                         const std::vector<std::string>& roots) {
  absl::StatusOr<int> file = OpenPath(path, roots);
  if (!file.ok()) return file.status();
  return FileSource(path, *file);
}

absl::Status ListDataFolder(const std::string& path, const std::vector<std::string>& roots,
                            const VisitEntry& visit) {
  absl::StatusOr<int> file = OpenPath(path, roots, kOpenFlags | O_DIRECTORY);
  if (!file.ok()) return file.status();
  const auto failed = [&path](int error) {
    return DataMissing(absl::StatusCode::kDataLoss, absl::StrCat(path, ": ", strerror(error)));
  };
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(*file), ::closedir);
  if (folder == nullptr) {
    const int error = errno;
    ::close(*file);
    return failed(error);
  }
  for (;;) {
    errno = 0;
    const struct dirent* const entry = ::readdir(folder.get());
    if (entry == nullptr && errno != 0) return failed(errno);
    if (entry == nullptr) return absl::OkStatus();
    if (entry->d_name[0] == '.') continue;
    FolderEntry kind = entry->d_type == DT_REG   ? FolderEntry::kFile
                       : entry->d_type == DT_DIR ? FolderEntry::kFolder
                                                 : FolderEntry::kOther;
    struct stat info;  // of what a link leads to; some file systems do not say what an entry is
    if (kind == FolderEntry::kOther &&
        ::fstatat(::dirfd(folder.get()), entry->d_name, &info, 0) == 0) {
      if (S_ISREG(info.st_mode)) kind = FolderEntry::kFile;
      if (S_ISDIR(info.st_mode)) kind = FolderEntry::kFolder;
    }
    absl::Status status = visit(entry->d_name, kind);
    if (!status.ok()) return status;
  }
}

}  // namespace capstan::data
