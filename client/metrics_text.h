// The history of a job's metrics as people and programs read it: pure text, no terminal.
#ifndef CAPSTAN_CLIENT_METRICS_TEXT_H_
#define CAPSTAN_CLIENT_METRICS_TEXT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

// What the test set said of one version.
struct Evaluation {
  int64_t epoch = 0;  // from 1
  int64_t step = 0;   // decided before it
  std::optional<double> loss;
  std::optional<double> accuracy;
};

struct MetricHistory {
  std::vector<job::v1::MetricPoint> points;  // steps grow
  std::vector<Evaluation> evaluations;       // as well
};

// `points` with the evaluations of their job.
MetricHistory HistoryOf(const job::v1::Job& job, std::vector<job::v1::MetricPoint> points);

// One metric over the steps.
struct Curve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;  // step, value; steps grow
};

// "loss", "accuracy", "learning_rate", "samples_per_second", "step_seconds", the parts of a step
// ("data_wait_seconds" ...), "validation_loss" and "validation_accuracy": in the order of columns.
const std::vector<std::string>& MetricNames();
// InvalidArgument: no such metric; the message names those there are. Curves of validation have every
// evaluation.
absl::StatusOr<Curve> CurveOf(const MetricHistory& history, const std::string& name);

// In a list of points an evaluation stands at the first point that is not before it, or at the last;
// of several at one point the newest.

// {"job_id": ..., "points": [{...}], "evaluations": [{...}]}: every field in each point, null where
// it was not known; every evaluation.
std::string MetricsJson(const std::string& job_id, const MetricHistory& history);
// A head line and a line per point; `names` as in MetricNames. What was not known is empty.
std::string MetricsCsv(const MetricHistory& history, const std::vector<std::string>& names);
// `width` as in TextTable.
std::string MetricsTable(const MetricHistory& history, const std::vector<std::string>& names,
                         int width);

// A curve in `width` columns and `height` rows of its own, with its largest and smallest value and
// its first and last step. `unicode`: in Braille dots, eight to a character; else in asterisks.
std::string PlotText(const Curve& curve, int width, int height, bool unicode);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_METRICS_TEXT_H_
