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

// One metric over the steps.
struct Curve {
  std::string name;
  std::vector<std::pair<int64_t, double>> points;  // step, value; steps grow
};

// "loss", "accuracy", "learning_rate", "samples_per_second", "step_seconds" and the parts of a step
// ("data_wait_seconds" ...): in the order of columns.
const std::vector<std::string>& MetricNames();
// InvalidArgument: no such metric; the message names those there are.
absl::StatusOr<Curve> CurveOf(const std::vector<job::v1::MetricPoint>& points,
                              const std::string& name);

// {"job_id": ..., "points": [{...}]}: every field in each point, null where it was not known.
std::string MetricsJson(const std::string& job_id, const std::vector<job::v1::MetricPoint>& points);
// A head line and a line per point; `names` as in MetricNames. What was not known is empty.
std::string MetricsCsv(const std::vector<job::v1::MetricPoint>& points,
                       const std::vector<std::string>& names);
// `width` as in TextTable.
std::string MetricsTable(const std::vector<job::v1::MetricPoint>& points,
                         const std::vector<std::string>& names, int width);

// A curve in `width` columns and `height` rows of its own, with its largest and smallest value and
// its first and last step. `unicode`: in Braille dots, eight to a character; else in asterisks.
std::string PlotText(const Curve& curve, int width, int height, bool unicode);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_METRICS_TEXT_H_
