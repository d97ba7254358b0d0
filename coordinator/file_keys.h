// Keys of FileService. A process gets its key in a StartLineage or StartTask. The key says for
// which job and for which process it is.
//
// Thread-safe: immutable after Open.
#ifndef CAPSTAN_COORDINATOR_FILE_KEYS_H_
#define CAPSTAN_COORDINATOR_FILE_KEYS_H_

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator {

class FileKeys {
 public:
  // Reads the secret with which keys are made, `<state_dir>/files.key` (0600). Makes a new secret
  // if the file is missing or invalid. The secret outlives the coordinator, so running processes
  // keep their keys. On a full disk the new secret is used but is not durable: after a restart its
  // keys are void, unless Save has succeeded. Errors name the file and its purpose.
  static absl::StatusOr<FileKeys> Open(const std::string& state_dir);
  explicit FileKeys(std::string secret) : secret_(std::move(secret)) {}

  bool durable() const { return unsaved_path_.empty(); }
  // Writes the secret that Open could not write. Blocks.
  absl::Status Save() const;

  std::string Make(absl::string_view job_id, const core::FileHolder& holder) const;
  // Unauthenticated: the key is not ours, or it is for another job.
  absl::StatusOr<core::FileHolder> Check(absl::string_view job_id, absl::string_view key) const;

 private:
  std::string Sign(absl::string_view job_id, absl::string_view holder) const;

  std::string secret_;
  std::string unsaved_path_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_KEYS_H_
