#include "training/history/job_history.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::training {
namespace {

using job::v1::MetricPoint;
using Parts = job::v1::StepBreakdown;

template <double (Parts::*Part)() const>
std::optional<double> Of(const MetricPoint& point, const Evaluation*) {
  if (!point.has_breakdown()) return std::nullopt;
  return (point.breakdown().*Part)();
}

std::optional<double> When(bool known, double value) {
  return known && std::isfinite(value) ? std::optional<double>(value) : std::nullopt;
}

}  // namespace

int64_t LastStepOf(const common::v1::EpochRecord& epoch, int64_t steps_per_epoch,
                   int64_t total_steps) {
  return std::min<int64_t>(epoch.epoch() * steps_per_epoch, total_steps);
}

std::optional<Evaluation> EvaluationOf(const common::v1::EpochRecord& epoch,
                                       int64_t steps_per_epoch, int64_t total_steps) {
  if (!epoch.has_validation_loss() && !epoch.has_validation_accuracy()) return std::nullopt;
  return Evaluation{epoch.epoch(), LastStepOf(epoch, steps_per_epoch, total_steps),
                    When(epoch.has_validation_loss(), epoch.validation_loss()),
                    When(epoch.has_validation_accuracy(), epoch.validation_accuracy())};
}

const std::vector<Metric>& Metrics() {
  static const auto* const kMetrics = new std::vector<Metric>{
      {"loss", "LOSS",
       [](const MetricPoint& p, const Evaluation*) { return When(p.has_loss(), p.loss()); }},
      {"accuracy", "ACCURACY",
       [](const MetricPoint& p, const Evaluation*) {
         return When(p.has_accuracy(), p.accuracy());
       }},
      {"learning_rate", "RATE",
       [](const MetricPoint& p, const Evaluation*) {
         return When(p.has_learning_rate(), p.learning_rate());
       }},
      {"samples_per_second", "SAMPLES/S",
       [](const MetricPoint& p, const Evaluation*) {
         return When(p.has_samples_per_second(), p.samples_per_second());
       }},
      {"step_seconds", "STEP", Of<&Parts::total>},
      {"data_wait_seconds", "DATA", Of<&Parts::data_wait>},
      {"forward_backward_seconds", "FWD+BWD", Of<&Parts::forward_backward>},
      {"local_reduce_seconds", "REDUCE", Of<&Parts::local_reduce>},
      {"push_seconds", "PUSH", Of<&Parts::push>},
      {"barrier_wait_seconds", "BARRIER", Of<&Parts::barrier_wait>},
      {"pull_seconds", "PULL", Of<&Parts::pull>},
      {"update_seconds", "UPDATE", Of<&Parts::update>},
      {"evaluate_seconds", "EVALUATE", Of<&Parts::evaluate>},
      {"validation_loss", "VAL LOSS",
       [](const MetricPoint&, const Evaluation* e) {
         return e == nullptr ? std::nullopt : e->loss;
       },
       true},
      {"validation_accuracy", "VAL ACC",
       [](const MetricPoint&, const Evaluation* e) {
         return e == nullptr ? std::nullopt : e->accuracy;
       },
       true},
  };
  return *kMetrics;
}

const Metric* FindMetric(const std::string& name) {
  for (const Metric& metric : Metrics()) {
    if (name == metric.name) return &metric;
  }
  return nullptr;
}

std::vector<std::string> MetricNames() {
  std::vector<std::string> names;
  for (const Metric& metric : Metrics()) names.push_back(metric.name);
  return names;
}

absl::StatusOr<Curve> CurveOf(const JobHistory& history, const std::string& name) {
  const Metric* const metric = FindMetric(name);
  if (metric == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no metric '", name, "'; there are: ", absl::StrJoin(MetricNames(), ", ")));
  }
  Curve curve{name, {}};
  const auto add = [&](int64_t step, const MetricPoint& point, const Evaluation* evaluation) {
    const std::optional<double> value = metric->value(point, evaluation);
    if (value.has_value()) curve.points.emplace_back(step, *value);
  };
  static const auto& kNoPoint = *new MetricPoint;
  if (metric->evaluated) {
    for (const Evaluation& evaluation : history.evaluations) {
      add(evaluation.step, kNoPoint, &evaluation);
    }
  } else {
    for (const MetricPoint& point : history.points) add(point.step(), point, nullptr);
  }
  return curve;
}

}  // namespace capstan::training
