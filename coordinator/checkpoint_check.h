// A checkpoint that is read again and compared with its hashes, block by block: so whoever waits for
// it sees whether the disk still answers, however large the files are.
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

// Reads manifest.json and then every file that it names. One thread at a time; the destructor closes
// a file, and so may wait for the disk.
class CheckpointCheck {
 public:
  // `saved`: the coordinator's record, whose uri is a file:// URI of the checkpoint's folder.
  explicit CheckpointCheck(const job::v1::SavedCheckpoint& saved);

  // Opens a file, or reads a block of at most 512 KiB of it. Blocks for as long as the disk does.
  // NotFound: there is no manifest. DataLoss names file and check: the manifest is not that of
  // `saved`; a file is missing, or a link, or of another size or hash than the manifest says. After
  // an error it is not called any more, nor after done().
  absl::Status Next();
  // Everything was read, and is as the manifest says.
  bool done() const { return done_; }

 private:
  absl::Status Open();
  absl::Status OnManifest();
  absl::Status OnFile();
  // The file that is read now; a checkpoint's manifest comes before its files.
  std::string Path() const;

  const std::string folder_;  // of the checkpoint
  const int64_t lineage_, step_;
  const size_t files_;
  std::unique_ptr<OutgoingFile> file_;  // null: none is open
  std::string block_;
  std::string text_;  // of the manifest, as far as it was read
  bool has_manifest_ = false;
  training::Manifest manifest_;
  size_t next_ = 0;  // of its files
  training::Sha256 sha_;
  bool done_ = false;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CHECKPOINT_CHECK_H_
