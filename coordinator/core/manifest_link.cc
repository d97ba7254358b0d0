#include "coordinator/core/manifest_link.h"

namespace capstan::coordinator::core {

void ManifestLink::Order(SavedManifest manifest, int64_t step, absl::Duration now) {
  Adopt(std::move(manifest), step);
  since_ = now;
  ++attempts_;
}

void ManifestLink::Adopt(SavedManifest manifest, int64_t step) {
  phase_ = Phase::kWriting;
  step_ = step;
  manifest_ = std::move(manifest);
}

SavedManifest ManifestLink::Commit(bool last) {
  phase_ = last ? Phase::kCommitted : Phase::kNone;
  attempts_ = 0;
  error_.clear();
  return std::exchange(manifest_, SavedManifest());
}

void ManifestLink::Retry(std::string error, absl::Duration at) {
  phase_ = Phase::kRetry;
  error_ = std::move(error);
  retry_at_ = at;
}

bool ManifestLink::Ready(absl::Duration now) {
  if (phase_ == Phase::kRetry && now >= retry_at_) phase_ = Phase::kNone;
  return phase_ == Phase::kNone;
}

void ManifestLink::BeginLineage() {
  phase_ = Phase::kNone;
  attempts_ = 0;
  error_.clear();
  owed_step_ = -1;
}

}  // namespace capstan::coordinator::core
