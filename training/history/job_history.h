// What is known of a job over its steps: named metrics of points and evaluations.
//
// Thread-safe; pure functions of messages.
#ifndef CAPSTAN_TRAINING_HISTORY_JOB_HISTORY_H_
#define CAPSTAN_TRAINING_HISTORY_JOB_HISTORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::training {

// The results of one version on the test set.
struct Evaluation {
  int64_t epoch = 0;  // from 1
  int64_t step = 0;   // number of steps decided before it
  std::optional<double> loss;
  std::optional<double> accuracy;
};

struct JobHistory {
  std::vector<job::v1::MetricPoint> points;  // by rising step
  std::vector<Evaluation> evaluations;       // likewise
};

// The number of steps that are decided once the epoch is done.
int64_t LastStepOf(const common::v1::EpochRecord& epoch, int64_t steps_per_epoch,
                   int64_t total_steps);
// nullopt: nothing was evaluated after this epoch.
std::optional<Evaluation> EvaluationOf(const common::v1::EpochRecord& epoch,
                                       int64_t steps_per_epoch, int64_t total_steps);

// One metric of a point, or of an evaluation.
struct Metric {
  const char* name;
  const char* head;  // of its column in a table
  // `evaluation` is null where there is none. nullopt: not known.
  std::optional<double> (*value)(const job::v1::MetricPoint& point, const Evaluation* evaluation);
  bool evaluated = false;  // it comes from the test set
};

// In the order of columns: "loss", "accuracy", "learning_rate", "samples_per_second",
// "step_seconds", the parts of a step ("data_wait_seconds" ...), "validation_loss" and
// "validation_accuracy".
const std::vector<Metric>& Metrics();
const Metric* FindMetric(const std::string& name);  // null: there is none
std::vector<std::string> MetricNames();

// One metric over the steps.
struct Curve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;  // step, value; by rising step
};

// InvalidArgument: no such metric; the message lists the metrics. The curves of validation have
// every evaluation.
absl::StatusOr<Curve> CurveOf(const JobHistory& history, const std::string& name);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_HISTORY_JOB_HISTORY_H_
