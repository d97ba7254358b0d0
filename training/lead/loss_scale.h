// The dynamic loss scale of fp16: a factor on the loss that keeps small gradients above the smallest
// numbers of 16 bits. A power of two, so that taking it out again is exact. Deterministic; no
// threads.
#ifndef CAPSTAN_TRAINING_LEAD_LOSS_SCALE_H_
#define CAPSTAN_TRAINING_LEAD_LOSS_SCALE_H_

#include <cstdint>

namespace capstan::training {

class LossScale {
 public:
  static constexpr double kFirst = 65536;       // 2^16
  static constexpr double kLargest = 16777216;  // 2^24
  static constexpr int64_t kGoodSteps = 2000;

  // Not dynamic: 1 for ever.
  explicit LossScale(bool dynamic) : dynamic_(dynamic), value_(dynamic ? kFirst : 1) {}

  // Of the next step.
  double value() const { return value_; }
  int64_t good_steps() const { return good_steps_; }

  // A step that is not finite halves the scale; kGoodSteps finite ones in a row double it. Returns
  // whether the step may be held against the job: a scale of 1 and more may have been the reason.
  bool Note(bool finite);

  // Goes on where another left off. False, nothing changed: no state of such a scale.
  bool Restore(double value, int64_t good_steps);

 private:
  const bool dynamic_;
  double value_;
  int64_t good_steps_ = 0;  // since the scale last changed
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_LEAD_LOSS_SCALE_H_
