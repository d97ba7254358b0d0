// Files that survive a crash, and private folders.
//
// Errors name the call, the path and the system's message: "fsync /ckpt/3-40/manifest.json: No
// space left on device". Codes: NotFound ENOENT, AlreadyExists EEXIST, PermissionDenied EACCES
// EPERM EROFS, ResourceExhausted ENOSPC EDQUOT EFBIG EMFILE ENFILE ENOMEM, DataLoss EIO,
// FailedPrecondition ENOTDIR EISDIR ENOTEMPTY ELOOP, else Unknown. After a failed fsync the file is
// removed and never synced again.
//
// Functions are thread-safe. An object may be used by one thread at a time.
#ifndef CAPSTAN_SERVICES_FILES_FILES_H_
#define CAPSTAN_SERVICES_FILES_FILES_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::services {

// The Status of a failed system call, by the table above. `error` is an errno.
absl::Status ErrnoStatus(int error, absl::string_view call, absl::string_view path);

// The whole file, at most `max_bytes`. InvalidArgument: it is larger, or not a regular file.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);

struct AtomicWriteOptions {
  // true: rename over an existing file. false: link, so the result is AlreadyExists if the name is
  // taken, and the existing file stays unchanged.
  bool replace = true;
  mode_t mode = 0644;  // before the umask
  bool sync = true;  // fsync file and folder; false only for data that may be lost with the machine
};

// Writes a file that appears completely or not at all, even after a crash: temporary name in the
// same folder, write, fsync, rename or link, fsync of the folder. Leaves nothing behind on an
// error.
class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path,
                                                            const AtomicWriteOptions& options = {});
  ~AtomicFile();  // removes the temporary file unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // After an error every further call returns that error.
  absl::Status Append(absl::string_view bytes);
  // Makes the file appear under its name. Call it once.
  absl::Status Commit();
  int64_t size_bytes() const { return size_bytes_; }

 private:
  AtomicFile(std::string path, std::string temporary, const AtomicWriteOptions& options, int fd);

  const std::string path_;
  const std::string temporary_;
  const AtomicWriteOptions options_;
  int fd_;
  int64_t size_bytes_ = 0;
  absl::Status status_;
  bool committed_ = false;
};

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes,
                                 const AtomicWriteOptions& options = {});

// An append-only file of whole lines. Lines are buffered up to 64 KiB. Flush hands them to the
// system, so that they survive the process; Sync writes them to the disk. Bytes that cannot be
// written, e.g. because the disk is full, are kept, and a later call continues at the exact byte
// where the write stopped.
class LineFile {
 public:
  // Opens or makes the file. Cuts off an incomplete last line, which a crash may leave.
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path,
                                                        mode_t mode = 0644);
  ~LineFile();  // flushes and ignores errors
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // If this many bytes could not be written, further lines are refused.
  static constexpr size_t kMaxKeptBytes = size_t{8} << 20;

  // Adds the missing '\n'. InvalidArgument: `line` contains one. ResourceExhausted: kMaxKeptBytes
  // are kept and still cannot be written, so the line is dropped. Any other error is that of Flush,
  // and the line is kept.
  absl::Status Append(absl::string_view line);
  // Returns an error of the system. Unwritten bytes are kept for the next call.
  absl::Status Flush();
  // After a failed fsync every call returns its error, because the bytes before it may be lost.
  absl::Status Sync();

 private:
  LineFile(std::string path, int fd);

  const std::string path_;
  const int fd_;
  std::string buffer_;   // begins with the rest of a line that is partly in the file
  absl::Status synced_;  // of the last fsync
};

// Cuts an incomplete last line, left by a crash, off the open file. Returns the new size. `path` is
// for messages.
absl::StatusOr<int64_t> CutHalfLine(int fd, const std::string& path);

// Room that large files leave free on a disk, for journals, logs and other small files.
inline constexpr int64_t kMaxFloorBytes = int64_t{256} << 20;  // and at most a 20th of the disk
// The disk of `folder`, which must exist.
struct DiskRoom {
  int64_t free_bytes = 0;
  int64_t kept_bytes = 0;  // the part of free_bytes that large files leave free
  int64_t usable_bytes() const { return free_bytes > kept_bytes ? free_bytes - kept_bytes : 0; }
};
// free_bytes is INT64_MAX if the file system does not tell.
absl::StatusOr<DiskRoom> RoomOf(const std::string& folder);
// ResourceExhausted, with the numbers: after `bytes` more are written, less than kept_bytes would
// be free on the disk of `folder`, which must exist.
absl::Status LeaveFree(const std::string& folder, int64_t bytes);

// mkdir -p. OK if the folder exists. FailedPrecondition: something else has this name.
absl::Status EnsureDir(const std::string& path, mode_t mode = 0755);
// fsync of a folder, which makes links, renames and removals in it durable.
absl::Status SyncDir(const std::string& path);
// A new folder of mode 0700, "<parent>/<prefix>-XXXXXX". Below /tmp its path is short enough for
// Unix sockets.
absl::StatusOr<std::string> MakePrivateDir(absl::string_view prefix,
                                           absl::string_view parent = "/tmp");

// Removes `path` and everything below it. By its name it must lie strictly below `root`, without
// "..", and no component below `root` may be a symbolic link. Links inside the tree are removed and
// never followed. OK if nothing is there. InvalidArgument: the path is not below the root.
absl::Status RemoveTree(const std::string& root, const std::string& path);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FILES_FILES_H_
