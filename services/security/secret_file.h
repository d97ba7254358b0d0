// Files that only their owner may read, and a process that shows their contents to nobody.
#ifndef CAPSTAN_SERVICES_SECURITY_SECRET_FILE_H_
#define CAPSTAN_SERVICES_SECURITY_SECRET_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan::services {

inline constexpr int64_t kMaxSecretBytes = 1 << 20;

// The file's bytes. It must be regular, belong to this user or to root (root may read anybody's)
// and have mode 0600, 0400 or 0440 (what a container's secret has). Messages name the file and its
// mode, never its contents. NotFound and others of ReadWholeFile; FailedPrecondition: the mode or
// the owner; InvalidArgument: larger than `max_bytes`.
absl::StatusOr<std::string> ReadSecretFile(const std::string& path,
                                           int64_t max_bytes = kMaxSecretBytes);

// Tells whether a file is another one, or has changed, since its stamp was taken. All zero: not
// there.
struct FileStamp {
  dev_t device = 0;
  ino_t inode = 0;
  int64_t size_bytes = 0;
  int64_t changed_ns = 0;  // of its contents or mode

  static FileStamp Of(const std::string& path);
  friend bool operator==(const FileStamp& a, const FileStamp& b) {
    return a.device == b.device && a.inode == b.inode && a.size_bytes == b.size_bytes &&
           a.changed_ns == b.changed_ns;
  }
};

// From here on this process leaves no core file, and no process of the same user may read its
// memory or environment. For a process that is about to hold a token or a private key. Idempotent;
// children that it starts set this for themselves.
void KeepMemoryPrivate();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_SECRET_FILE_H_
