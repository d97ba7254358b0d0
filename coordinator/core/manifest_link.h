// The manifest that makes the files of one version a checkpoint: from the order to write it until it is
// committed or given up.
#ifndef CAPSTAN_COORDINATOR_CORE_MANIFEST_LINK_H_
#define CAPSTAN_COORDINATOR_CORE_MANIFEST_LINK_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/core/checkpoints.h"

namespace capstan::coordinator::core {

// One manifest is in flight at most. Not thread-safe. `now` is the core's clock.
class ManifestLink {
 public:
  enum class Phase {
    kNone,
    kWriting,    // in flight
    kRetry,      // failed; the version is owed, so it is tried again
    kCommitted,  // that of the last version
  };
  Phase phase() const { return phase_; }
  bool writing() const { return phase_ == Phase::kWriting; }
  // Of the manifest in flight, or to be tried again.
  int64_t step() const { return step_; }
  // Since the last commit or the last version that was given up.
  int attempts() const { return attempts_; }
  // Of the last attempt; empty: none has failed since the last commit.
  const std::string& error() const { return error_; }
  // In flight for less than `limit`: a disk that answers may still be waited for.
  bool WritingFor(absl::Duration limit, absl::Duration now) const {
    return writing() && now - since_ < limit;
  }

  // What comes to be committed.
  void Order(SavedManifest manifest, int64_t step, absl::Duration now);
  // It was found on disk: as if it had been ordered.
  void Adopt(SavedManifest manifest, int64_t step);
  // The manifest is committed. `last`: it is that of the last version.
  SavedManifest Commit(bool last);
  void Retry(std::string error, absl::Duration at);
  // True: a retry is due, and another manifest may be ordered.
  bool Ready(absl::Duration now);
  void GiveUp() { phase_ = Phase::kNone; }
  // The version was abandoned.
  void ForgetAttempts() { attempts_ = 0; }

  // True for the first time that this version, which is owed, cannot be saved.
  bool NoteOwed(int64_t step) { return std::exchange(owed_step_, step) != step; }

  void BeginLineage();

 private:
  Phase phase_ = Phase::kNone;
  int64_t step_ = 0;
  absl::Duration since_;
  SavedManifest manifest_;
  int attempts_ = 0;
  std::string error_;
  absl::Duration retry_at_;
  int64_t owed_step_ = -1;  // of the lineage; people were told that it cannot be saved yet
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_MANIFEST_LINK_H_
