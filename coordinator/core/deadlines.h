// One time for each of many jobs. The first of them is found without a look at each.
#ifndef CAPSTAN_COORDINATOR_CORE_DEADLINES_H_
#define CAPSTAN_COORDINATOR_CORE_DEADLINES_H_

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/time/time.h"

namespace capstan::coordinator::core {

// Not thread-safe. Set and FirstAfter take the logarithm of the number of jobs.
class Deadlines {
 public:
  // In place of the job's time so far. InfiniteDuration: it has none.
  void Set(int64_t job, absl::Duration at) {
    const auto old = of_.find(job);
    if (old != of_.end()) {
      if (old->second == at) return;
      by_time_.erase({old->second, job});
      of_.erase(old);
    }
    if (at == absl::InfiniteDuration()) return;
    of_.emplace(job, at);
    by_time_.emplace(at, job);
  }

  // InfiniteDuration: there is none.
  absl::Duration First() const {
    return by_time_.empty() ? absl::InfiniteDuration() : by_time_.begin()->first;
  }
  absl::Duration FirstAfter(absl::Duration time) const {
    const auto next = by_time_.upper_bound({time, INT64_MAX});
    return next == by_time_.end() ? absl::InfiniteDuration() : next->first;
  }

 private:
  std::map<int64_t, absl::Duration> of_;  // by job
  std::set<std::pair<absl::Duration, int64_t>> by_time_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_DEADLINES_H_
