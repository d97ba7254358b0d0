// The history of a job's metrics, for people and for programs. Pure text, no terminal.
#ifndef CAPSTAN_CLIENT_TEXT_METRICS_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_METRICS_TEXT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_service.pb.h"

namespace capstan::client {

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

// `points` together with the evaluations of their job.
JobHistory HistoryOf(const job::v1::Job& job, std::vector<job::v1::MetricPoint> points);

// One metric over the steps.
struct Curve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;  // step, value; by rising step
};

// The names in the order of columns: "loss", "accuracy", "learning_rate", "samples_per_second",
// "step_seconds", the parts of a step ("data_wait_seconds" ...), "validation_loss" and
// "validation_accuracy".
const std::vector<std::string>& MetricNames();
// InvalidArgument: no such metric; the message lists the metrics. The curves of validation have
// every evaluation.
absl::StatusOr<Curve> CurveOf(const JobHistory& history, const std::string& name);

// In a list of points, an evaluation stands at the first point that is not before it, or else at
// the last point. If there are several at one point, the newest is shown.

// {"job_id": ..., "points": [{...}], "evaluations": [{...}]}. Each point has every field, null if
// it is not known. All evaluations are listed.
std::string MetricsJson(const std::string& job_id, const JobHistory& history);
// A head line and a line per point. `names` as in MetricNames. Unknown values are empty.
std::string MetricsCsv(const JobHistory& history, const std::vector<std::string>& names);
// `width` as in TextTable.
std::string MetricsTable(const JobHistory& history, const std::vector<std::string>& names,
                         int width);

// Draws a curve in `width` columns and `height` rows, with its largest and smallest value and its
// first and last step. `unicode`: uses Braille patterns with eight dots per character, else
// asterisks.
std::string PlotText(const Curve& curve, int width, int height, bool unicode);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_METRICS_TEXT_H_
