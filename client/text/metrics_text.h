// The history of a job's metrics, for people and for programs. Pure text, no terminal.
#ifndef CAPSTAN_CLIENT_TEXT_METRICS_TEXT_H_
#define CAPSTAN_CLIENT_TEXT_METRICS_TEXT_H_

#include <string>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"
#include "training/history/job_history.h"

namespace capstan::client {

// `points` together with the evaluations of their job.
training::JobHistory HistoryOf(const job::v1::Job& job, std::vector<job::v1::MetricPoint> points);

// In a list of points, an evaluation stands at the first point that is not before it, or else at
// the last point. If there are several at one point, the newest is shown.

// {"job_id": ..., "points": [{...}], "evaluations": [{...}]}. Each point has every field, null if
// it is not known. All evaluations are listed.
std::string MetricsJson(const std::string& job_id, const training::JobHistory& history);
// A head line and a line per point. `names` as in training::MetricNames. Unknown values are empty.
std::string MetricsCsv(const training::JobHistory& history, const std::vector<std::string>& names);
// `width` as in TextTable.
std::string MetricsTable(const training::JobHistory& history, const std::vector<std::string>& names,
                         int width);

// Draws a curve in `width` columns and `height` rows, with its largest and smallest value and its
// first and last step. `unicode`: uses Braille patterns with eight dots per character, else
// asterisks.
std::string PlotText(const training::Curve& curve, int width, int height, bool unicode);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_METRICS_TEXT_H_
