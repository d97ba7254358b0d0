// Files that only their owner may read, and protection of a process that holds their contents.
#ifndef CAPSTAN_SERVICES_SECURITY_SECRET_FILE_H_
#define CAPSTAN_SERVICES_SECURITY_SECRET_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan::services {

inline constexpr int64_t kMaxSecretBytes = 1 << 20;

// The file's bytes. It must be a regular file, belong to this user or to root (root may read any
// file) and have mode 0600, 0400 or 0440 (a container's secret has this). Messages name the file
// and its mode, never its contents. Errors: NotFound and others of ReadWholeFile;
// FailedPrecondition: mode or owner; InvalidArgument: larger than `max_bytes`.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path,
                                           int64_t max_bytes = kMaxSecretBytes);

// Shows whether a file was replaced or changed since its stamp was taken. All zero: there is no
// file.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  int64_t size_bytes = 0;
  int64_t changed_ns = 0;  // last change of contents or mode

  static FileStamp Of(const std::string& path);
  friend bool operator==(const FileStamp& a, const FileStamp& b) {
    return a.device == b.device && a.inode == b.inode && a.size_bytes == b.size_bytes &&
           a.changed_ns == b.changed_ns;
  }
};

// From now on this process leaves no core file, and no process of the same user may read its memory
// or environment. Call it before the process holds a token or a private key. Idempotent. Child
// processes must do this for themselves.
void KeepMemoryPrivate();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_SECRET_FILE_H_
