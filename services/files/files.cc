#include "services/files/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan::services {
namespace {

constexpr size_t kLineBufferBytes = 64 * 1024;
constexpr int kMaxTreeDepth = 64;

// Closes the descriptor at the end of its scope.
class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  int get() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Leaves the unwritten rest in `bytes`.
absl::Status WriteAll(int fd, absl::string_view& bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "write", path);
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return std::string(".");
  return path.substr(0, slash == 0 ? 1 : slash);
}

// Removes `name` below the open folder `parent`; `shown` is its path for messages.
absl::Status RemoveAt(int parent, const std::string& name, const std::string& shown, int depth) {
  if (unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return absl::OkStatus();
  if (errno != EISDIR && errno != EPERM) return ErrnoStatus(errno, "unlink", shown);
  if (depth >= kMaxTreeDepth) {
    return absl::FailedPreconditionError(
        absl::StrCat("remove ", shown, ": more than ", kMaxTreeDepth, " folders deep"));
  }
  Fd fd(openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "open", shown);
  DIR* dir = fdopendir(fd.get());
  if (dir == nullptr) return ErrnoStatus(errno, "opendir", shown);
  const int dir_fd = fd.Release();  // closedir closes the descriptor
  std::vector<std::string> names;
  while (const dirent* entry = readdir(dir)) {
    const absl::string_view child = entry->d_name;
    if (child != "." && child != "..") names.emplace_back(child);
  }
  absl::Status status;
  for (const std::string& child : names) {
    status = RemoveAt(dir_fd, child, absl::StrCat(shown, "/", child), depth + 1);
    if (!status.ok()) break;
  }
  closedir(dir);
  if (!status.ok()) return status;
  if (unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) {
    return ErrnoStatus(errno, "rmdir", shown);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ErrnoStatus(int error, absl::string_view call, absl::string_view path) {
  const std::string message = absl::StrCat(call, " ", path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
      return absl::ResourceExhaustedError(message);
    case EIO:
      return absl::DataLossError(message);
    case ENOTDIR:
    case EISDIR:
    case ENOTEMPTY:
    case ELOOP:
      return absl::FailedPreconditionError(message);
    default:
      return absl::UnknownError(message);
  }
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  // O_NONBLOCK, so that a FIFO does not block before the check below.
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return ErrnoStatus(errno, "open", path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "stat", path);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("read ", path, ": not a regular file"));
  }
  if (info.st_size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("read ", path, ": ", info.st_size,
                                                   " bytes, at most ", max_bytes, " are allowed"));
  }
  std::string bytes;
  // One byte more than expected, to find the end. Files of /proc claim a size of 0.
  size_t want = static_cast<size_t>(info.st_size) + 1;
  while (true) {
    const size_t have = bytes.size();
    bytes.resize(have + want);
    const ssize_t got = read(fd.get(), bytes.data() + have, want);
    if (got < 0 && errno != EINTR) return ErrnoStatus(errno, "read", path);
    bytes.resize(have + static_cast<size_t>(got > 0 ? got : 0));
    if (got == 0) return bytes;
    if (static_cast<int64_t>(bytes.size()) > max_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("read ", path, ": more than the allowed ", max_bytes, " bytes"));
    }
    want = 4096;
  }
}

AtomicFile::AtomicFile(std::string path, std::string temporary, const AtomicWriteOptions& options,
                       int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), options_(options), fd_(fd) {}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path,
                                                               const AtomicWriteOptions& options) {
  static std::atomic<uint64_t> counter{0};
  // A file of a process that died may still have this name. O_EXCL detects it, and the next number
  // is tried.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::string temporary = absl::StrCat(path, ".", getpid(), "-", counter.fetch_add(1), ".tmp");
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, options.mode);
    if (fd >= 0) {
      return std::unique_ptr<AtomicFile>(new AtomicFile(path, std::move(temporary), options, fd));
    }
    if (errno != EEXIST) return ErrnoStatus(errno, "create", temporary);
  }
  return absl::AlreadyExistsError(
      absl::StrCat("create ", path, ": 1000 temporary names are taken"));
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!committed_) unlink(temporary_.c_str());
}

absl::Status AtomicFile::Append(absl::string_view bytes) {
  if (status_.ok() && fd_ < 0) {
    return absl::FailedPreconditionError(absl::StrCat("append to ", path_, ": committed already"));
  }
  const auto size = static_cast<int64_t>(bytes.size());
  if (status_.ok()) status_ = WriteAll(fd_, bytes, temporary_);
  if (status_.ok()) size_bytes_ += size;
  return status_;
}

absl::Status AtomicFile::Commit() {
  if (!status_.ok()) return status_;
  if (fd_ < 0) {
    return absl::FailedPreconditionError(absl::StrCat("commit ", path_, ": committed already"));
  }
  if (options_.sync && fsync(fd_) != 0) {
    return status_ = ErrnoStatus(errno, "fsync", temporary_);
  }
  // Some file systems report a full disk only here.
  if (close(std::exchange(fd_, -1)) != 0) return status_ = ErrnoStatus(errno, "close", temporary_);
  if (options_.replace) {
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      return status_ = ErrnoStatus(errno, "rename to", path_);
    }
  } else {
    if (link(temporary_.c_str(), path_.c_str()) != 0) {
      return status_ = ErrnoStatus(errno, "link to", path_);
    }
    unlink(temporary_.c_str());
  }
  committed_ = true;
  return options_.sync ? SyncDir(FolderOf(path_)) : absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes,
                                 const AtomicWriteOptions& options) {
  absl::StatusOr<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(path, options);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(bytes); !status.ok()) return status;
  return (*file)->Commit();
}

absl::StatusOr<DiskRoom> RoomOf(const std::string& folder) {
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) return ErrnoStatus(errno, "statvfs", folder);
  const auto block = static_cast<int64_t>(disk.f_frsize);
  const int64_t size = static_cast<int64_t>(disk.f_blocks) * block;
  if (size == 0) return DiskRoom{INT64_MAX, 0};
  return DiskRoom{static_cast<int64_t>(disk.f_bavail) * block, std::min(kMaxFloorBytes, size / 20)};
}

absl::Status LeaveFree(const std::string& folder, int64_t bytes) {
  const absl::StatusOr<DiskRoom> room = RoomOf(folder);
  if (!room.ok()) return room.status();
  if (room->free_bytes - bytes >= room->kept_bytes) return absl::OkStatus();
  return ErrnoStatus(ENOSPC, "write",
                     absl::StrCat(folder, ": ", bytes, " bytes, but ", room->free_bytes,
                                  " are free, and ", room->kept_bytes, " are reserved"));
}

absl::StatusOr<int64_t> CutHalfLine(int fd, const std::string& path) {
  off_t end = lseek(fd, 0, SEEK_END);
  if (end < 0) return ErrnoStatus(errno, "seek", path);
  // Search backwards for the last '\n'.
  const off_t size = end;
  char block[4096];
  bool found = false;
  while (end > 0 && !found) {
    const off_t start = end > static_cast<off_t>(sizeof(block)) ? end - sizeof(block) : 0;
    const ssize_t got = pread(fd, block, static_cast<size_t>(end - start), start);
    if (got != end - start) return ErrnoStatus(got < 0 ? errno : EIO, "read", path);
    const size_t at = absl::string_view(block, static_cast<size_t>(got)).rfind('\n');
    found = at != absl::string_view::npos;
    end = found ? start + static_cast<off_t>(at) + 1 : start;
  }
  if (end != size && ftruncate(fd, end) != 0) return ErrnoStatus(errno, "truncate", path);
  return static_cast<int64_t>(end);
}

LineFile::LineFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Open(const std::string& path, mode_t mode) {
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, mode));
  if (fd.get() < 0) return ErrnoStatus(errno, "open", path);
  const absl::StatusOr<int64_t> size = CutHalfLine(fd.get(), path);
  if (!size.ok()) return size.status();
  return std::unique_ptr<LineFile>(new LineFile(path, fd.Release()));
}

LineFile::~LineFile() {
  Flush().IgnoreError();
  close(fd_);
}

absl::Status LineFile::Append(absl::string_view line) {
  if (absl::StrContains(line, '\n')) {
    return absl::InvalidArgumentError(
        absl::StrCat("append to ", path_, ": a line contains a line end"));
  }
  if (!synced_.ok()) return synced_;
  // There may be room again. Callers only flush after accepted lines.
  if (buffer_.size() + line.size() >= kMaxKeptBytes) Flush().IgnoreError();
  if (buffer_.size() + line.size() >= kMaxKeptBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("append to ", path_, ": ", buffer_.size(),
                                                     " bytes could not be written yet, limit ",
                                                     kMaxKeptBytes, "; the line is dropped"));
  }
  absl::StrAppend(&buffer_, line, "\n");
  return buffer_.size() >= kLineBufferBytes ? Flush() : absl::OkStatus();
}

absl::Status LineFile::Flush() {
  if (!synced_.ok()) return synced_;
  absl::string_view rest = buffer_;
  absl::Status status = WriteAll(fd_, rest, path_);
  buffer_.erase(0, buffer_.size() - rest.size());
  return status;
}

absl::Status LineFile::Sync() {
  if (absl::Status status = Flush(); !status.ok()) return status;
  if (fdatasync(fd_) != 0) synced_ = ErrnoStatus(errno, "fsync", path_);
  return synced_;
}

absl::Status EnsureDir(const std::string& path, mode_t mode) {
  if (path.empty()) return absl::InvalidArgumentError("mkdir: the path is empty");
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (mkdir(part.c_str(), mode) != 0) {
      const int error = errno;
      struct stat info;
      // EEXIST, but also EACCES or EROFS if the parent exists already.
      if (stat(part.c_str(), &info) != 0) return ErrnoStatus(error, "mkdir", part);
      if (!S_ISDIR(info.st_mode)) return ErrnoStatus(ENOTDIR, "mkdir", part);
    }
    if (end == std::string::npos) return absl::OkStatus();
  }
}

absl::Status SyncDir(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "open", path);
  // EINVAL: a file system without fsync for folders does not need it.
  if (fsync(fd.get()) != 0 && errno != EINVAL) return ErrnoStatus(errno, "fsync", path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> MakePrivateDir(absl::string_view prefix, absl::string_view parent) {
  if (prefix.empty() || absl::StrContains(prefix, '/')) {
    return absl::InvalidArgumentError(absl::StrCat("private folder: got prefix '", prefix, "'"));
  }
  std::string path = absl::StrCat(parent, "/", prefix, "-XXXXXX");
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, "mkdtemp", path);
  return path;
}

absl::Status RemoveTree(const std::string& root, const std::string& path) {
  absl::string_view base = root;
  while (base.size() > 1 && absl::EndsWith(base, "/")) base.remove_suffix(1);
  absl::string_view rest = path;
  const bool below = !base.empty() && absl::StartsWith(rest, base) &&
                     (base == "/" || (rest.size() > base.size() && rest[base.size()] == '/'));
  if (below) rest.remove_prefix(base.size());
  const std::vector<std::string> parts = absl::StrSplit(rest, '/', absl::SkipEmpty());
  bool plain = below && !parts.empty();
  for (const std::string& part : parts) plain = plain && part != "." && part != "..";
  if (!plain) {
    return absl::InvalidArgumentError(
        absl::StrCat("remove ", path, ": the path is not below ", root));
  }
  int parent = open(std::string(base).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent < 0) return ErrnoStatus(errno, "open", root);
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    const int next =
        openat(parent, parts[i].c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    close(parent);
    if (next < 0 && error == ENOENT) return absl::OkStatus();
    if (next < 0) return ErrnoStatus(error, "open", path);
    parent = next;
  }
  const absl::Status status = RemoveAt(parent, parts.back(), path, 0);
  close(parent);
  return status;
}

}  // namespace capstan::services
