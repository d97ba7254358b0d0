#include "training/schedule/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"

namespace capstan::training {
namespace {

constexpr double kPi = 3.1415926535897932384626433832795;
constexpr int64_t kMaxPeriodSteps = int64_t{1} << 62;

absl::StatusOr<int64_t> StepsOf(absl::string_view name, const SchedulePeriod& period,
                                int64_t steps_per_epoch, int64_t at_least) {
  if (period.count < at_least) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": got ", period.count, ", want at least ", at_least));
  }
  const int64_t unit = period.unit == SchedulePeriod::Unit::kEpochs ? steps_per_epoch : 1;
  if (period.count > kMaxPeriodSteps / unit) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": got ", period.count, " times ", unit,
                                                   " steps, want at most ", kMaxPeriodSteps));
  }
  return period.count * unit;
}

}  // namespace

absl::StatusOr<Schedule> Schedule::Create(const ScheduleOptions& options, int64_t steps_per_epoch,
                                          int64_t total_steps) {
  if (steps_per_epoch < 1 || total_steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("steps_per_epoch and total_steps: got ",
                                                   steps_per_epoch, " and ", total_steps,
                                                   ", want at least 1"));
  }
  if (!(options.learning_rate > 0 && std::isfinite(options.learning_rate))) {
    return absl::InvalidArgumentError(absl::StrCat("learning_rate: got ", options.learning_rate,
                                                   ", want a finite number above 0"));
  }
  Schedule schedule;
  schedule.options_ = options;
  schedule.total_steps_ = total_steps;
  absl::StatusOr<int64_t> warmup = StepsOf("warmup", options.warmup, steps_per_epoch, 0);
  if (!warmup.ok()) return warmup.status();
  schedule.warmup_steps_ = *warmup;
  if (options.kind == ScheduleKind::kStep) {
    absl::StatusOr<int64_t> every = StepsOf("every", options.every, steps_per_epoch, 1);
    if (!every.ok()) return every.status();
    schedule.every_steps_ = *every;
    if (!(options.factor > 0 && options.factor <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("factor: got ", options.factor, ", want a number in (0, 1]"));
    }
  }
  if (options.kind == ScheduleKind::kCosine) {
    if (!(options.min_learning_rate >= 0 && options.min_learning_rate <= options.learning_rate)) {
      return absl::InvalidArgumentError(absl::StrCat("min_learning_rate: got ",
                                                     options.min_learning_rate, ", want 0..",
                                                     options.learning_rate, " (learning_rate)"));
    }
    if (*warmup >= total_steps) {
      return absl::InvalidArgumentError(absl::StrCat(
          "warmup: got ", *warmup, " steps, want fewer than ", total_steps, " (total_steps)"));
    }
  }
  return schedule;
}

Schedule Schedule::WithBaseRate(double learning_rate) const {
  CAPSTAN_CHECK(learning_rate > 0 && std::isfinite(learning_rate));
  Schedule other = *this;
  other.options_.learning_rate = learning_rate;
  other.options_.min_learning_rate = std::min(options_.min_learning_rate, learning_rate);
  return other;
}

double Schedule::LearningRate(int64_t step) const {
  CAPSTAN_CHECK(step >= 0);
  const double base = options_.learning_rate;
  if (step < warmup_steps_) {
    return base * (static_cast<double>(step + 1) / static_cast<double>(warmup_steps_));
  }
  switch (options_.kind) {
    case ScheduleKind::kConstant:
      return base;
    case ScheduleKind::kStep: {
      const int64_t periods = step / every_steps_;
      return base * std::pow(options_.factor, static_cast<double>(periods));
    }
    case ScheduleKind::kCosine: {
      if (step >= total_steps_) return options_.min_learning_rate;
      const double done = static_cast<double>(step - warmup_steps_) /
                          static_cast<double>(total_steps_ - warmup_steps_);
      const double floor = options_.min_learning_rate;
      return floor + (base - floor) * (0.5 * (1.0 + std::cos(kPi * done)));
    }
  }
  return base;
}

}  // namespace capstan::training
