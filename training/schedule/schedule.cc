#include "training/schedule/schedule.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/math/portable_math.h"

namespace capstan::training {
namespace {

constexpr double kPi = 3.1415926535897932384626433832795;
constexpr int64_t kMaxPeriodSteps = int64_t{1} << 62;

// Goes from `from` at part 0 to `to` at part 1.
double HalfCosine(double from, double to, double part) {
  return to + (from - to) * (0.5 * (1.0 + PortableSinCos(kPi * part).cosine));
}

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
  }
  if (options.kind == ScheduleKind::kMultiStep) {
    if (options.milestones.empty()) {
      return absl::InvalidArgumentError("milestones: got none, want at least one");
    }
    for (const SchedulePeriod& milestone : options.milestones) {
      absl::StatusOr<int64_t> at = StepsOf("milestones", milestone, steps_per_epoch, 1);
      if (!at.ok()) return at.status();
      if (!schedule.milestone_steps_.empty() && *at <= schedule.milestone_steps_.back()) {
        return absl::InvalidArgumentError(
            absl::StrCat("milestones: got step ", *at, " behind step ",
                         schedule.milestone_steps_.back(), ", want them ascending"));
      }
      schedule.milestone_steps_.push_back(*at);
    }
  }
  const bool steps =
      options.kind == ScheduleKind::kStep || options.kind == ScheduleKind::kMultiStep;
  if (steps && !(options.factor > 0 && options.factor <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("factor: got ", options.factor, ", want a number in (0, 1]"));
  }
  if (options.kind == ScheduleKind::kCosine || options.kind == ScheduleKind::kPolynomial) {
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
  if (options.kind == ScheduleKind::kPolynomial &&
      !(options.power > 0 && std::isfinite(options.power))) {
    return absl::InvalidArgumentError(
        absl::StrCat("power: got ", options.power, ", want a finite number above 0"));
  }
  if (options.kind == ScheduleKind::kOneCycle) {
    if (!(options.pct_start >= 0 && options.pct_start <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("pct_start: got ", options.pct_start, ", want a number in [0, 1]"));
    }
    for (const auto& [name, value] : {std::pair("div_factor", options.div_factor),
                                      std::pair("final_div_factor", options.final_div_factor)}) {
      if (!(value >= 1 && std::isfinite(value))) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, ": got ", value, ", want a finite number of at least 1"));
      }
    }
    if (*warmup > 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("warmup: got ", *warmup, " steps, want none: one_cycle has its own"));
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

double Schedule::OneCycleRate(int64_t step) const {
  const double top = options_.learning_rate;
  const double first = top / options_.div_factor;
  const double last = first / options_.final_div_factor;
  const double peak = options_.pct_start * static_cast<double>(total_steps_) - 1;
  const double end = static_cast<double>(total_steps_ - 1);
  const auto at = static_cast<double>(step);
  if (step >= total_steps_) return last;
  if (at <= peak) return at == peak ? top : HalfCosine(first, top, at / peak);
  return HalfCosine(top, last, (at - peak) / (end - peak));  // peak < at <= end
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
      return base * PortablePow(options_.factor, static_cast<double>(periods));
    }
    case ScheduleKind::kMultiStep: {
      const auto after = std::upper_bound(milestone_steps_.begin(), milestone_steps_.end(), step);
      return base *
             PortablePow(options_.factor, static_cast<double>(after - milestone_steps_.begin()));
    }
    case ScheduleKind::kCosine:
    case ScheduleKind::kPolynomial: {
      if (step >= total_steps_) return options_.min_learning_rate;
      const double done = static_cast<double>(step - warmup_steps_) /
                          static_cast<double>(total_steps_ - warmup_steps_);
      const double floor = options_.min_learning_rate;
      return floor + (base - floor) * (options_.kind == ScheduleKind::kCosine
                                           ? 0.5 * (1.0 + PortableSinCos(kPi * done).cosine)
                                           : PortablePow(1.0 - done, options_.power));
    }
    case ScheduleKind::kOneCycle:
      return OneCycleRate(step);
  }
  return base;
}

}  // namespace capstan::training
