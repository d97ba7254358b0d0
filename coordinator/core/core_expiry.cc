// Ended jobs with limits.ttl_after_finished: their checkpoints go first, then the record.
//
// Counted by the core's clock, so a wall clock that jumps removes nothing: a coordinator that starts
// gives every ended job its whole time again.
#include <algorithm>
#include <string>

#include "coordinator/core/core.h"

namespace capstan::coordinator::core {

// A disk that did not remove a folder is asked again; what holds a checkpoint may be gone then, too.
constexpr absl::Duration kExpiryRetry = absl::Minutes(10);

void CoordinatorCore::ForgetExpiredJobs() {
  if (now_ < expiry_at_) return;
  expiry_at_ = absl::InfiniteDuration();
  for (size_t i = ended_.size(); i-- > 0;) {
    JobRecord& job = *FindJob(ended_[i]);
    const double ttl = job.spec.limits().ttl_after_finished_seconds();
    if (ttl <= 0) continue;
    const absl::Duration due = job.ended_at + absl::Seconds(ttl);
    if (now_ < due) {
      expiry_at_ = std::min(expiry_at_, due);
    } else if (active_.count(job.sequence) > 0) {
      expiry_at_ = std::min(expiry_at_, now_ + options_.lease);  // something of it may still run
    } else if (RemoveCheckpoints(job)) {
      ForgetEnded(i);
    } else {
      expiry_at_ = std::min(expiry_at_, now_ + kExpiryRetry);
    }
  }
}

// All that no other job begins from. True: none is left, on record or on the disk.
bool CoordinatorCore::RemoveCheckpoints(JobRecord& job) {
  const size_t before = job.manifests.size();
  for (size_t i = before; i-- > 0;) {
    const std::string id = job.manifests[i].saved.id();
    if (!WhoBeginsFrom(job, id).empty()) continue;
    job.manifests.erase(job.manifests.begin() + static_cast<std::ptrdiff_t>(i));
    job.deleted.insert(id);
  }
  if (job.manifests.size() < before) {
    job.checkpoint_uri = job.manifests.empty() ? "" : job.manifests.back().saved.uri();
    job.AddEvent(wall_, "CheckpointsExpired", "limits.ttl_after_finished is over");
    Changed(job);
  }
  RemoveDeleted(job);
  return job.manifests.empty() && job.deleted.empty();
}

}  // namespace capstan::coordinator::core
