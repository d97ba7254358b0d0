// The restarts of a job: how many faults it may have, and when the old ones are forgiven.
#ifndef CAPSTAN_COORDINATOR_CORE_RESTARTS_H_
#define CAPSTAN_COORDINATOR_CORE_RESTARTS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "capstan/job/v1/job_spec.pb.h"

namespace capstan::coordinator::core {

// Before restart number `restarts` + 1.
absl::Duration BackoffOf(const job::v1::Recovery& recovery, int restarts);

// Whether a failure for this reason ends the job.
bool NeverRetried(const job::v1::Recovery& recovery, const std::string& reason);

// Not thread-safe. `now` is the core's clock.
class Restarts {
 public:
  int32_t count() const { return count_; }
  // Of the last one.
  const std::string& reason() const { return reason_; }
  // The highest step that was decided when a restart was counted.
  int64_t step() const { return step_; }

  // The number that a person set, or that of the spec.
  int32_t LimitOf(const job::v1::Recovery& recovery) const;
  const std::optional<int32_t>& limit_set() const { return limit_; }
  void SetLimit(int32_t limit) { limit_ = limit; }

  void Count(const std::string& reason, int64_t step);
  // The last one was none.
  void TakeBack() { --count_; }
  // After a person has asked for another try, or the restarts were forgiven.
  void Clear();

  // The limit is for what happens again and again, not for what happens in a week. True: the job has run
  // beyond the step of its last restart for so long that the restarts do not count any more.
  bool Forgivable(bool runs, int64_t step, absl::Duration now, absl::Duration after);

  // The last loss that left no worker is counted already, or is no restart.
  bool loss_counted() const { return loss_counted_; }
  void set_loss_counted(bool counted) { loss_counted_ = counted; }

  void Load(int32_t count, int64_t step, std::optional<int32_t> limit);

 private:
  int32_t count_ = 0;
  std::string reason_;
  int64_t step_ = 0;
  absl::Duration ran_since_ = absl::InfiniteDuration();  // RUNNING beyond step_ since then
  std::optional<int32_t> limit_;
  bool loss_counted_ = false;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_RESTARTS_H_
