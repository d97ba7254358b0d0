// Access to the files of a job, on a disk of this host or at the coordinator (param_store/files).
//
// Thread-safe. All of it blocks.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_FILE_STORE_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_FILE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "capstan/common/v1/common.pb.h"

namespace capstan::param_store {

// A file that is read at any offset, by one thread at a time.
class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual int64_t size_bytes() const = 0;
  // Reads all bytes or fails. DataLoss: the file is shorter. Reading from front to back is
  // cheapest.
  virtual absl::Status ReadAt(int64_t offset, char* out, int64_t size_bytes) = 0;
};

class FileStore {
 public:
  virtual ~FileStore() = default;
  // Opens a file in a checkpoint's folder, `<storage_path>/<lineage>-<step>`. Follows no link.
  // Returns the errors of services/files. DataLoss: it is not a regular file.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> OpenCheckpointFile(
      const std::string& folder, const std::string& name) = 0;
  // Opens the job's initial weights: the file `path`, or with a name, that file of the checkpoint
  // folder `path`. Errors as above, but links are followed.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> OpenInitialWeights(
      const std::string& path, const std::string& name) = 0;
  // Writes `parts` one after the other to `<folder>/<name>`, atomically and durably. Makes the
  // folder if it is missing. On an error the caller may try again.
  virtual absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder,
                                                     const std::string& name,
                                                     absl::Span<const absl::string_view> parts) = 0;
};

// The disks of this host. Writes by temporary name, fsync, rename, fsync of the folder.
class LocalFileStore final : public FileStore {
 public:
  absl::StatusOr<std::unique_ptr<InputFile>> OpenCheckpointFile(const std::string& folder,
                                                                const std::string& name) override;
  absl::StatusOr<std::unique_ptr<InputFile>> OpenInitialWeights(const std::string& path,
                                                                const std::string& name) override;
  absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder, const std::string& name,
                                             absl::Span<const absl::string_view> parts) override;
};

// One object for all callers, because it has no state.
FileStore& LocalFiles();

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_FILE_STORE_H_
