// Files in the coordinator's storage: a file received or sent in blocks, the log of a job, and the
// file that shows who shares a folder. All of it blocks while the disk does.
//
// The folders are those of jobs, and others may write to them. So each folder is reached from a
// root that the operator allowed (services/files/beneath.h), and its files from the folder, without
// following links. No link leads out of the root, even one that is swapped in at the last moment.
// `roots` are absolute. FailedPrecondition: a path is under none of them, or is a link.
#ifndef CAPSTAN_COORDINATOR_STORED_FILE_H_
#define CAPSTAN_COORDINATOR_STORED_FILE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator {

// shard-<i>.safetensors or residuals-<i>.safetensors with i from 0, or weights.safetensors.
bool IsTensorFileName(absl::string_view name);

// An open folder of a job. Errors are those of services/files, except where noted.
class StoredFolder {
 public:
  // Makes the folder, and the root, if they are missing.
  static absl::StatusOr<StoredFolder> Make(const std::string& path,
                                           const std::vector<std::string>& roots);
  StoredFolder(StoredFolder&& other) noexcept
      : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
  StoredFolder& operator=(StoredFolder&&) = delete;
  ~StoredFolder();

  // A descriptor of the file, or -1 with errno. ELOOP: it is a link. `name` must not contain a '/'.
  int OpenFile(const std::string& name, int flags, mode_t mode = 0) const;
  void Remove(const std::string& name) const;
  absl::Status Rename(const std::string& from, const std::string& to) const;
  absl::Status Sync() const;
  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const;

 private:
  StoredFolder(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
};

// Writes all bytes, from `offset` of the file. `path` is for messages.
absl::Status WriteAt(int fd, const std::string& path, absl::string_view bytes, int64_t offset);

// Use from one thread at a time.
class IncomingFile {
 public:
  struct Announced {
    std::string folder;  // made if it is missing
    std::vector<std::string> roots;
    std::string name;
    int64_t size_bytes = 0;
    std::string sha256;  // 32 bytes
  };
  // Continues the file of an earlier try. done(): the whole file exists already.
  static absl::StatusOr<std::unique_ptr<IncomingFile>> Open(const Announced& announced);
  ~IncomingFile();
  IncomingFile(const IncomingFile&) = delete;
  IncomingFile& operator=(const IncomingFile&) = delete;

  int64_t offset() const { return offset_; }  // of the next byte
  bool done() const { return done_; }
  // InvalidArgument: more bytes than announced. With the last byte the file's hash is compared, and
  // the file is made durable and gets its name; then done(). DataLoss: the hash differs, and the
  // received bytes are removed.
  absl::Status Append(absl::string_view bytes);

 private:
  IncomingFile(const Announced& announced, StoredFolder folder);
  absl::Status Finish();

  const Announced announced_;
  const StoredFolder folder_;
  const std::string part_;  // its name until it is complete
  int fd_ = -1;
  int64_t offset_ = 0;
  bool done_ = false;
  training::Sha256 sha_;
};

// Use from one thread at a time.
class OutgoingFile {
 public:
  struct Wanted {
    std::string path;  // absolute
    std::vector<std::string> roots;
    bool follow_link = false;  // of the path's end; earlier parts may be links inside a root
    int64_t offset = 0;
    int64_t length_bytes = 0;  // 0: to the end
  };
  // NotFound: it does not exist. DataLoss: it is not a regular file. InvalidArgument: the offset is
  // outside of it.
  static absl::StatusOr<std::unique_ptr<OutgoingFile>> Open(const Wanted& wanted);
  ~OutgoingFile();
  OutgoingFile(const OutgoingFile&) = delete;
  OutgoingFile& operator=(const OutgoingFile&) = delete;

  int64_t size_bytes() const { return size_bytes_; }
  bool at_end() const { return at_ >= end_; }
  // Replaces the content of `block` with the next block. DataLoss: the file has become shorter.
  absl::Status Next(std::string& block);

 private:
  OutgoingFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
  int64_t size_bytes_ = 0;
  int64_t at_ = 0;
  int64_t end_ = 0;
};

// A file of random bytes under a random name, for everybody who can read it. Removed with the
// object.
class LookFile {
 public:
  // First removes the files that earlier coordinators have left in the folder.
  static absl::StatusOr<std::unique_ptr<LookFile>> Make(const std::string& folder,
                                                        const std::vector<std::string>& roots);
  ~LookFile() { folder_.Remove(name_); }
  LookFile(const LookFile&) = delete;
  LookFile& operator=(const LookFile&) = delete;

  const std::string& name() const { return name_; }
  const std::string& nonce() const { return nonce_; }  // empty: the disk is full

 private:
  LookFile(StoredFolder folder, std::string name, std::string nonce)
      : folder_(std::move(folder)), name_(std::move(name)), nonce_(std::move(nonce)) {}
  const StoredFolder folder_;
  const std::string name_, nonce_;
};

// Removes the look files that killed coordinators have left in a job's folder, where nobody uses
// them any more. Returns their number.
int RemoveOldLooks(const std::string& folder);

// Appends to `<storage_path>/metrics.jsonl` the part of `lines` that it does not contain yet. The
// first byte of `lines` belongs at `offset`; with -1 nothing is appended. An incomplete last line
// is cut off first. Returns the size of the file. OutOfRange: the file ends before `offset`, or
// continues beyond the lines.
absl::StatusOr<int64_t> AppendToLog(const std::string& storage_path,
                                    const std::vector<std::string>& roots, int64_t offset,
                                    absl::string_view lines);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_STORED_FILE_H_
