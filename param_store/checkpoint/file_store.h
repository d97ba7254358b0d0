// Where the files of a job lie: on a disk of this host, or with the coordinator (param_store/files).
//
// Thread-safe; all of it blocks.
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

// A file that is read at places, by one thread at a time.
class InputFile {
 public:
  virtual ~InputFile() = default;
  virtual int64_t size_bytes() const = 0;
  // All of it or an error. DataLoss: the file ends before that. Cheapest from front to back.
  virtual absl::Status ReadAt(int64_t offset, char* out, int64_t size_bytes) = 0;
};

class FileStore {
 public:
  virtual ~FileStore() = default;
  // A file in the folder of a checkpoint, `<storage_path>/<lineage>-<step>`; no link is followed.
  // What services/files says; DataLoss: no regular file.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> OpenCheckpointFile(
      const std::string& folder, const std::string& name) = 0;
  // What the job begins from: the file `path`, or, with a name, that file of the checkpoint whose
  // folder `path` is. As above, but that links are followed.
  virtual absl::StatusOr<std::unique_ptr<InputFile>> OpenInitialWeights(
      const std::string& path, const std::string& name) = 0;
  // Writes `parts` one behind the other to `<folder>/<name>`, whole or not at all and durable, and
  // makes the folder where it is missing. The file is the caller's to try again.
  virtual absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder,
                                                     const std::string& name,
                                                     absl::Span<const absl::string_view> parts) = 0;
};

// The disks of this host: temporary name, fsync, rename, fsync of the folder.
class LocalFileStore final : public FileStore {
 public:
  absl::StatusOr<std::unique_ptr<InputFile>> OpenCheckpointFile(const std::string& folder,
                                                                const std::string& name) override;
  absl::StatusOr<std::unique_ptr<InputFile>> OpenInitialWeights(const std::string& path,
                                                                const std::string& name) override;
  absl::StatusOr<common::v1::FileInfo> Write(const std::string& folder, const std::string& name,
                                             absl::Span<const absl::string_view> parts) override;
};

// One for all: it has no state.
FileStore& LocalFiles();

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_FILE_STORE_H_
