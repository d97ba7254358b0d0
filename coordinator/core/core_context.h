// What all parts of the core share: the options, the nodes, the jobs, and the step that is being carried
// out with its time, its effects and what it has changed.
#ifndef CAPSTAN_COORDINATOR_CORE_CORE_CONTEXT_H_
#define CAPSTAN_COORDINATOR_CORE_CORE_CONTEXT_H_

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/core/job.h"
#include "coordinator/core/job_table.h"
#include "coordinator/core/node_table.h"
#include "coordinator/core/types.h"

namespace capstan::coordinator::core {

// The highest numbers that were given away.
struct LastNumbers {
  int64_t incarnation = 0;
  int64_t probe = 0;
  int64_t sequence = 0;
};

// Not thread-safe.
class CoreContext {
 public:
  explicit CoreContext(CoreOptions options) : options_(std::move(options)) {}

  const CoreOptions& options() const { return options_; }
  NodeTable& nodes() { return nodes_; }
  const NodeTable& nodes() const { return nodes_; }
  JobTable& jobs() { return jobs_; }
  const JobTable& jobs() const { return jobs_; }
  LastNumbers& last() { return last_; }

  // -- the step
  absl::Duration now() const { return now_; }
  absl::Time wall() const { return wall_; }  // for people only
  bool Due(absl::Duration last_sent, absl::Duration every) const {
    return now_ - last_sent >= every;
  }
  void Begin(absl::Duration now, absl::Time wall);
  void Emit(Effect effect) { effects_.push_back(std::move(effect)); }
  Effects& effects() { return effects_; }

  // -- jobs that it has changed
  void Changed(const Job& job);
  const std::set<std::string>& changed() const { return changed_; }
  // Jobs whose logs have new lines.
  const std::set<std::string>& appended() const { return appended_; }
  // Both: an event is a line of the log, too.
  std::set<std::string> TouchedJobs() const;
  void ForgetChange(const Job& job) { changed_.erase(job.id()); }
  // From now on the log of this job counts into log_bytes() and appended().
  void WatchLog(Job& job);
  int64_t log_bytes() const { return log_bytes_; }  // of all jobs

  // -- the queue
  // Something is free that was not, or a job waits that did not: another pass is due.
  void Reschedule();
  bool pass_due() const { return pass_due_; }
  void NotePass() { pass_due_ = false; }
  // Grows whenever a node may have become able to take more.
  int64_t freed() const { return freed_; }
  void NoteFreed() { ++freed_; }

  // -- ended jobs
  // When they are looked at again, for one may have expired.
  absl::Duration expiry_at() const { return expiry_at_; }
  void LookForExpiredAt(absl::Duration time) { expiry_at_ = time; }

 private:
  const CoreOptions options_;
  NodeTable nodes_;
  int64_t log_bytes_ = 0;
  std::set<std::string> changed_;
  std::set<std::string> appended_;
  JobTable jobs_;  // behind log_bytes_ and appended_: their logs write there
  LastNumbers last_;
  absl::Duration now_;
  absl::Time wall_;
  Effects effects_;
  bool pass_due_ = false;
  int64_t freed_ = 0;
  absl::Duration expiry_at_ = -absl::InfiniteDuration();
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_CORE_CONTEXT_H_
