#include "training/lead/loss_scale.h"

#include <cmath>

namespace capstan::training {

bool LossScale::Note(bool finite) {
  if (!dynamic_) return !finite;
  if (!finite) {
    const bool excused = value_ >= 1;
    value_ /= 2;
    good_steps_ = 0;
    return !excused;
  }
  if (++good_steps_ == kGoodSteps) {
    if (value_ < kLargest) value_ *= 2;
    good_steps_ = 0;
  }
  return false;
}

bool LossScale::Restore(double value, int64_t good_steps) {
  int exponent = 0;
  if (!dynamic_ || !(value > 0) || value > kLargest || std::frexp(value, &exponent) != 0.5 ||
      good_steps < 0 || good_steps >= kGoodSteps) {
    return false;
  }
  value_ = value;
  good_steps_ = good_steps;
  return true;
}

}  // namespace capstan::training
