// How long a job has had a gang, over all of its gangs (limits.active_deadline).
#ifndef CAPSTAN_COORDINATOR_CORE_RUN_CLOCK_H_
#define CAPSTAN_COORDINATOR_CORE_RUN_CLOCK_H_

#include "absl/time/time.h"

namespace capstan::coordinator::core {

// Not thread-safe. `now` is the core's clock.
class RunClock {
 public:
  bool runs() const { return runs_; }
  absl::Duration Ran(absl::Duration now) const { return runs_ ? now - started_ : ran_; }
  void Run(absl::Duration now) {
    if (runs_) return;
    started_ = now - ran_;
    runs_ = true;
  }
  void Pause(absl::Duration now) {
    ran_ = Ran(now);
    runs_ = false;
  }
  // Of a clock that does not run.
  void Set(absl::Duration ran) { ran_ = ran; }

  // Since it was saved last.
  absl::Duration UnsavedFor(absl::Duration now) const { return now - saved_at_; }
  void NoteSaved(absl::Duration now) { saved_at_ = now; }

 private:
  bool runs_ = false;
  absl::Duration started_;  // runs_: when the job got its gang, less the time before that
  absl::Duration ran_;      // not runs_: in all
  absl::Duration saved_at_ = -absl::InfiniteDuration();
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_RUN_CLOCK_H_
