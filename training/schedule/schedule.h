// The learning rate of a step: a pure function of (step, steps_per_epoch, total_steps), computed
// once per step by the lead (rule R7).
//
// With base rate b, warm-up W steps, t = step (from 0), T = total_steps:
//   t < W                  b * (t + 1) / W; the last warm-up step has b
//   kConstant              b
//   kStep                  b * factor^floor(t / every); counted from step 0, warm-up included
//   kMultiStep             b * factor^(number of milestones <= t); counted likewise
//   kCosine                min + (b - min) * (1 + cos(pi * (t - W) / (T - W))) / 2; b at t = W, min
//                          from t = T on (which is one past the last step)
//   kPolynomial            min + (b - min) * (1 - (t - W) / (T - W))^power; b at t = W, min
//                          from T on
//   kOneCycle              from b / div_factor up to b at t = pct_start * T - 1, and down to
//                          b / div_factor / final_div_factor at t = T - 1, where it stays; half a
//                          cosine each way. It has no other warm-up
// Sources: Loshchilov & Hutter 2017, arXiv:1608.03983, for the cosine. The formulas are those of
// PyTorch 2's MultiStepLR, PolynomialLR (min = 0) and OneCycleLR (anneal_strategy "cos", two
// phases).
//
// Numbers: in double, the same bits everywhere (portable_math.h).
// Threads: a value; const methods may be called from many threads.
#ifndef CAPSTAN_TRAINING_SCHEDULE_SCHEDULE_H_
#define CAPSTAN_TRAINING_SCHEDULE_SCHEDULE_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::training {

enum class ScheduleKind { kConstant, kStep, kMultiStep, kCosine, kPolynomial, kOneCycle };

// "10 epochs" or "500 steps".
struct SchedulePeriod {
  int64_t count = 0;
  enum class Unit { kSteps, kEpochs } unit = Unit::kSteps;
};

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  double learning_rate = 0;  // b: > 0, finite
  SchedulePeriod every;      // kStep: >= 1
  std::vector<SchedulePeriod>
      milestones;                // kMultiStep: at least one, each >= 1, ascending in steps
  double factor = 0.1;           // kStep, kMultiStep: (0, 1]
  double min_learning_rate = 0;  // kCosine, kPolynomial: [0, b]
  double power = 1;              // kPolynomial: > 0, finite
  double pct_start = 0.3;        // kOneCycle: [0, 1], fraction of the steps in which the rate rises
  double div_factor = 25;        // kOneCycle: >= 1, finite
  double final_div_factor = 1e4;  // kOneCycle: >= 1, finite
  SchedulePeriod warmup;          // >= 0; kCosine, kPolynomial: below total_steps; kOneCycle: 0
};

class Schedule {
 public:
  // Both step counts must be >= 1. InvalidArgument: an option out of its range, or a period of more
  // than 2^62 steps.
  static absl::StatusOr<Schedule> Create(const ScheduleOptions& options, int64_t steps_per_epoch,
                                         int64_t total_steps);

  // `step` counts from 0. Steps from total_steps on have the rate that the formula gives.
  double LearningRate(int64_t step) const;

  // The same with another base rate, which must be > 0 and finite. A minimum above it is lowered to
  // it.
  Schedule WithBaseRate(double learning_rate) const;

 private:
  Schedule() = default;
  double OneCycleRate(int64_t step) const;

  ScheduleOptions options_;
  int64_t every_steps_ = 1;
  std::vector<int64_t> milestone_steps_;
  int64_t warmup_steps_ = 0;
  int64_t total_steps_ = 1;
};

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_SCHEDULE_SCHEDULE_H_
