// Reads a checkpoint again and compares it with its hashes, block by block. So a waiting caller
// sees that the disk still answers, however large the files are.
#ifndef CAPSTAN_COORDINATOR_CHECKPOINT_CHECK_H_
#define CAPSTAN_COORDINATOR_CHECKPOINT_CHECK_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/stored_file.h"
#include "training/codec/manifest.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator {

// Reads manifest.json and then every file that it names. Use from one thread at a time. The
// destructor closes a file and so may wait for the disk.
class CheckpointCheck {
 public:
  // `saved`: the coordinator's record. Its uri is the file:// URI of the checkpoint's folder.
  explicit CheckpointCheck(const job::v1::SavedCheckpoint& saved);

  // Opens a file, or reads a block of at most 512 KiB. Blocks while the disk does. NotFound: there
  // is no manifest. DataLoss names file and check: the manifest does not match `saved`, or a file
  // is missing, is a link, or differs from the manifest in size or hash. Do not call it again after
  // an error or after done().
  absl::Status Next();
  // Everything was read and matches the manifest.
  bool done() const { return done_; }

 private:
  absl::Status Open();
  absl::Status OnManifest();
  absl::Status OnFile();
  // The file being read. The manifest comes before the files.
  std::string Path() const;

  const std::string folder_;  // of the checkpoint
  const int64_t lineage_, step_;
  const size_t files_;
  std::unique_ptr<OutgoingFile> file_;  // null: no file is open
  std::string block_;
  std::string text_;  // of the manifest, as far as it is read
  bool has_manifest_ = false;
  training::Manifest manifest_;
  size_t next_ = 0;  // of its files
  training::Sha256 sha_;
  bool done_ = false;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CHECKPOINT_CHECK_H_
