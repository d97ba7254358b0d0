// The dynamic loss scale of fp16: a factor on the loss that keeps small gradients above the
// smallest 16-bit numbers. It is a power of two, so that dividing by it again is exact.
// Deterministic; no threads.
#ifndef CAPSTAN_TRAINING_LEAD_LOSS_SCALE_H_
#define CAPSTAN_TRAINING_LEAD_LOSS_SCALE_H_

#include <cstdint>

namespace capstan::training {

class LossScale {
 public:
  static constexpr double kFirst = 65536;       // 2^16
  static constexpr double kLargest = 16777216;  // 2^24
  static constexpr int64_t kGoodSteps = 2000;

  // If not dynamic, the scale is always 1.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), value_(dynamic ? kFirst : 1) {}

  // Of the next step.
  double value() const { return value_; }
  int64_t good_steps() const { return good_steps_; }

  // A non-finite step halves the scale; kGoodSteps finite steps in a row double it, up to kLargest.
  // Returns whether the step counts against the job. A non-finite step at a scale of 1 or more does
  // not count, because the scale may be the reason.
  bool Note(bool finite);

  // Continues from the state of another LossScale. Returns false and changes nothing if this scale
  // is not dynamic or cannot have this state.
  bool Restore(double value, int64_t good_steps);

 private:
  const bool dynamic_;
  double value_;
  int64_t good_steps_ = 0;  // since the scale last changed
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LEAD_LOSS_SCALE_H_
