// Keys of FileService: who has one was given it in a StartLineage or StartTask, and it says for which
// job and for whom.
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
  // Reads the secret that keys are made with, `<state_dir>/files.key` (0600), or makes one where there
  // is none or what is there is none. It outlives the coordinator: processes that go on keep their
  // keys. Where a full disk takes no secret, one is made all the same, and is not durable: keys are
  // void after a restart until Save has succeeded. Errors name the file and what it is for.
  static absl::StatusOr<FileKeys> Open(const std::string& state_dir);
  explicit FileKeys(std::string secret) : secret_(std::move(secret)) {}

  bool durable() const { return unsaved_path_.empty(); }
  // Writes the secret that Open could not write. Blocks.
  absl::Status Save() const;

  std::string Make(absl::string_view job_id, const core::FileHolder& holder) const;
  // Unauthenticated: it is no key of ours, or of another job.
  absl::StatusOr<core::FileHolder> Check(absl::string_view job_id, absl::string_view key) const;

 private:
  std::string Sign(absl::string_view job_id, absl::string_view holder) const;

  std::string secret_;
  std::string unsaved_path_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_FILE_KEYS_H_
