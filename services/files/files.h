// Files that survive a crash, and folders that are ours alone.
//
// Errors name the call, the path and the system's words: "fsync /ckpt/3-40/manifest.json: No space
// left on device". Codes: NotFound ENOENT, AlreadyExists EEXIST, PermissionDenied EACCES EPERM
// EROFS, ResourceExhausted ENOSPC EDQUOT EFBIG EMFILE ENFILE ENOMEM, DataLoss EIO,
// FailedPrecondition ENOTDIR EISDIR ENOTEMPTY ELOOP, else Unknown. A failed fsync loses the file:
// it is removed, never synced again.
//
// Thread-safe where functions; an object belongs to one thread at a time.
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

// The whole file, at most `max_bytes`. InvalidArgument: it is larger, or no regular file.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);

struct AtomicWriteOptions {
  // true: rename over whatever is there. false: link, so AlreadyExists when the name is taken and
  // the file there stays as it is.
  bool replace = true;
  mode_t mode = 0644;  // less the umask
  bool sync = true;    // fsync of file and folder; false only for what may be lost with the machine
};

// Writes a file that is there whole or not at all, also after a crash: temporary name in the same
// folder, write, fsync, rename or link, fsync of the folder. On an error nothing is left behind.
class AtomicFile {
 public:
  static absl::StatusOr<std::unique_ptr<AtomicFile>> Create(const std::string& path,
                                                            const AtomicWriteOptions& options = {});
  ~AtomicFile();  // removes the temporary file unless committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // After an error every further call fails with it.
  absl::Status Append(absl::string_view bytes);
  // Makes the file appear under its name. Once.
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

// A file of whole lines that only grows. Lines are buffered up to 64 KiB; Flush hands them to the
// system (they survive the process then), Sync to the disk. What cannot be written, as on a full
// disk, is kept and written by a later call, from the very byte on that it stopped at.
class LineFile {
 public:
  // Opens or makes the file. A last line without its end, left by a crash, is cut off.
  static absl::StatusOr<std::unique_ptr<LineFile>> Open(const std::string& path,
                                                        mode_t mode = 0644);
  ~LineFile();  // flushes, without a word about errors
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Lines beyond so many that could not be written are refused.
  static constexpr size_t kMaxKeptBytes = size_t{8} << 20;

  // `line` holds no '\n'; one is added. InvalidArgument: it does. ResourceExhausted: so much is
  // kept, and still cannot be written, that the line is dropped. Any other error is that of Flush,
  // and the line is kept.
  absl::Status Append(absl::string_view line);
  // An error of the system: the rest is kept for the next call.
  absl::Status Flush();
  // After an fsync that failed every call fails with its error: what it wrote may be lost.
  absl::Status Sync();

 private:
  LineFile(std::string path, int fd);

  const std::string path_;
  const int fd_;
  std::string buffer_;   // begins with what the file lacks of a line
  absl::Status synced_;  // of the last fsync
};

// Cuts off a last line without its end, which a crash has left in the open file; its size then. `path`
// is for messages.
absl::StatusOr<int64_t> CutHalfLine(int fd, const std::string& path);

// What large files leave free of a disk, for journals, logs and all that is small.
inline constexpr int64_t kMaxFloorBytes = int64_t{256} << 20;  // and a 20th of the disk at most
// The disk of `folder`, which exists.
struct DiskRoom {
  int64_t free_bytes = 0;
  int64_t kept_bytes = 0;  // of these, what large files leave free
  int64_t usable_bytes() const { return free_bytes > kept_bytes ? free_bytes - kept_bytes : 0; }
};
// INT64_MAX bytes are free where the file system does not say.
absl::StatusOr<DiskRoom> RoomOf(const std::string& folder);
// ResourceExhausted, with the numbers: once `bytes` more are written, less would be free on the disk
// of `folder`, which exists.
absl::Status LeaveFree(const std::string& folder, int64_t bytes);

// mkdir -p. OK when it is there already. FailedPrecondition: something else is.
absl::Status EnsureDir(const std::string& path, mode_t mode = 0755);
// fsync of a folder: what was linked, renamed or removed in it stays so.
absl::Status SyncDir(const std::string& path);
// A new folder of mode 0700, "<parent>/<prefix>-XXXXXX": below /tmp short enough for Unix sockets.
absl::StatusOr<std::string> MakePrivateDir(absl::string_view prefix,
                                           absl::string_view parent = "/tmp");

// Removes `path` and all below it. It must lie strictly below `root` by its name, without "..", and
// no component below `root` may be a symbolic link; links inside the tree are removed, never
// followed. OK when it is not there. InvalidArgument: the path is not below the root.
absl::Status RemoveTree(const std::string& root, const std::string& path);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_FILES_FILES_H_
