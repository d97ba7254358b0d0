#include "coordinator/core/core_context.h"

namespace capstan::coordinator::core {

void CoreContext::Begin(absl::Duration now, absl::Time wall) {
  now_ = now;
  wall_ = wall;
  effects_.clear();
  changed_.clear();
  appended_.clear();
}

void CoreContext::Changed(const Job& job) {
  changed_.insert(job.id());
  jobs_.Touch(job);
}

std::set<std::string> CoreContext::TouchedJobs() const {
  std::set<std::string> touched = changed_;
  touched.insert(appended_.begin(), appended_.end());
  return touched;
}

void CoreContext::WatchLog(Job& job) {
  job.logs().CountIn(&log_bytes_);
  job.logs().TellAppends(&appended_, job.id());
}

void CoreContext::Reschedule() {
  pass_due_ = true;
  ++freed_;
}

}  // namespace capstan::coordinator::core
