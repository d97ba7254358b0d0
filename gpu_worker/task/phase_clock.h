// Measures how a task spends its time. At each moment it is in exactly one phase, so the phases add
// up.
//
// Phases are exposed time, i.e. what the main loop waits for. Work hidden behind another phase is
// not counted. Threads: none of its own; one strand.
#ifndef CAPSTAN_GPU_WORKER_TASK_PHASE_CLOCK_H_
#define CAPSTAN_GPU_WORKER_TASK_PHASE_CLOCK_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/time/time.h"

namespace capstan::gpu_worker {

enum class StepPhase {
  kDataWait = 0,
  kForwardBackward,  // for devices that do not separate the next two
  kForward,
  kBackward,
  kLocalReduce,
  kPush,
  kBarrierWait,
  kPull,
  kUpdate,
  kEvaluate,
  kCount
};

class PhaseClock {
 public:
  // Begins in kBarrierWait.
  explicit PhaseClock(absl::Duration now) : since_(now) {}

  // `now` must never go back. Returns the phase that was left.
  StepPhase Enter(StepPhase phase, absl::Duration now) {
    spent_[Index(phase_)] += now - since_;
    since_ = now;
    return std::exchange(phase_, phase);
  }
  StepPhase phase() const { return phase_; }

  // Moves time that turned out to belong to another phase, at most what `from` has.
  void Move(StepPhase from, StepPhase to, absl::Duration time) {
    time = std::max(absl::ZeroDuration(), std::min(time, spent_[Index(from)]));
    spent_[Index(from)] -= time;
    spent_[Index(to)] += time;
  }

  absl::Duration spent(StepPhase phase) const { return spent_[Index(phase)]; }
  absl::Duration total() const {
    absl::Duration sum = absl::ZeroDuration();
    for (const absl::Duration& time : spent_) sum += time;
    return sum;
  }

 private:
  static size_t Index(StepPhase phase) { return static_cast<size_t>(phase); }

  StepPhase phase_ = StepPhase::kBarrierWait;
  absl::Duration since_;
  std::array<absl::Duration, static_cast<size_t>(StepPhase::kCount)> spent_ = {};
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_PHASE_CLOCK_H_
