#include "client/text/metrics_text.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using job::v1::MetricPoint;
using training::Curve;
using training::Evaluation;
using training::FindMetric;
using training::JobHistory;
using training::Metric;
using Json = nlohmann::ordered_json;

struct HistoryRow {
  const MetricPoint& point;
  const Evaluation* evaluation;  // null: there is none at this point
};

std::vector<HistoryRow> RowsOf(const JobHistory& history) {
  std::vector<HistoryRow> rows;
  size_t next = 0;
  for (size_t i = 0; i < history.points.size(); ++i) {
    const bool last = i + 1 == history.points.size();
    const Evaluation* evaluation = nullptr;
    while (next < history.evaluations.size() &&
           (last || history.evaluations[next].step <= history.points[i].step())) {
      evaluation = &history.evaluations[next++];
    }
    rows.push_back({history.points[i], evaluation});
  }
  return rows;
}

Json JsonOf(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

// For people: four digits, seconds with a unit.
std::string Short(const Metric& metric, double value) {
  const std::string name = metric.name;
  if (name.size() > 8 && name.substr(name.size() - 8) == "_seconds") {
    return absl::StrFormat("%.*f ms", value < 0.1 ? 2 : 0, 1e3 * value);
  }
  return name == "samples_per_second" ? absl::StrFormat("%.0f", value)
                                      : absl::StrFormat("%.4g", value);
}

// The character for one cell of the plot. Dots are numbered as in Unicode's Braille patterns.
std::string Glyph(int dots, bool unicode) {
  if (dots == 0) return " ";
  if (!unicode) return "*";
  const int code = 0x2800 + dots;
  return {static_cast<char>(0xE0 | (code >> 12)), static_cast<char>(0x80 | ((code >> 6) & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

}  // namespace

JobHistory HistoryOf(const job::v1::Job& job, std::vector<MetricPoint> points) {
  JobHistory history{std::move(points), {}};
  for (const common::v1::EpochRecord& epoch : job.epochs()) {
    auto evaluation = training::EvaluationOf(epoch, job.resolved().steps_per_epoch(),
                                             job.progress().total_steps());
    if (evaluation.has_value()) history.evaluations.push_back(*std::move(evaluation));
  }
  return history;
}

std::string MetricsJson(const std::string& job_id, const JobHistory& history) {
  Json list = Json::array();
  for (const HistoryRow& row : RowsOf(history)) {
    Json json = {{"step", row.point.step()},
                 {"lineage", row.point.lineage()},
                 {"time", services::TimeText(row.point.time())}};
    for (const Metric& metric : training::Metrics())
      json[metric.name] = JsonOf(metric.value(row.point, row.evaluation));
    list.push_back(std::move(json));
  }
  Json evaluations = Json::array();
  for (const Evaluation& evaluation : history.evaluations) {
    evaluations.push_back({{"epoch", evaluation.epoch},
                           {"step", evaluation.step},
                           {"validation_loss", JsonOf(evaluation.loss)},
                           {"validation_accuracy", JsonOf(evaluation.accuracy)}});
  }
  return services::Dump(
      {{"job_id", job_id}, {"points", std::move(list)}, {"evaluations", std::move(evaluations)}});
}

std::string MetricsCsv(const JobHistory& history, const std::vector<std::string>& names) {
  std::string out = absl::StrCat("step,time,", absl::StrJoin(names, ","), "\n");
  for (const HistoryRow& row : RowsOf(history)) {
    absl::StrAppend(&out, row.point.step(), ",", services::TimeText(row.point.time()));
    for (const std::string& name : names) {
      const std::optional<double> value = FindMetric(name)->value(row.point, row.evaluation);
      absl::StrAppend(&out, ",", value.has_value() ? absl::StrFormat("%.9g", *value) : "");
    }
    out += "\n";
  }
  return out;
}

std::string MetricsTable(const JobHistory& history, const std::vector<std::string>& names,
                         int width) {
  std::vector<std::string> head = {"AT STEP", "TIME"};
  for (const std::string& name : names) head.push_back(FindMetric(name)->head);
  TextTable table(head);
  for (const HistoryRow& row : RowsOf(history)) {
    std::vector<std::string> cells = {absl::StrCat(row.point.step()),
                                      services::TimeText(row.point.time())};
    for (const std::string& name : names) {
      const std::optional<double> value = FindMetric(name)->value(row.point, row.evaluation);
      cells.push_back(value.has_value() ? Short(*FindMetric(name), *value) : "");
    }
    table.Add(std::move(cells));
  }
  return table.Text(width);
}

std::string PlotText(const Curve& curve, int width, int height, bool unicode) {
  const Metric& metric = *FindMetric(curve.name);
  if (curve.points.empty()) return absl::StrCat(curve.name, ": nothing was reported yet\n");
  width = std::max(width, 8);
  height = std::max(height, 2);
  const int across = unicode ? 2 * width : width;  // dots
  const int down = unicode ? 4 * height : height;
  const auto [low, high] =
      std::minmax_element(curve.points.begin(), curve.points.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; });
  const double least = low->second;
  const double range = high->second - least;
  const int64_t first = curve.points.front().first;
  const int64_t steps = std::max<int64_t>(curve.points.back().first - first, 1);
  std::vector<int> dots(static_cast<size_t>(width) * height, 0);
  const auto mark = [&](int x, int y) {
    static constexpr int kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const int column = unicode ? x / 2 : x;
    const int row = unicode ? y / 4 : y;
    dots[static_cast<size_t>(row) * width + column] |= unicode ? kBits[y % 4][x % 2] : 1;
  };
  int last_x = -1;
  int last_y = 0;
  for (const auto& [step, value] : curve.points) {
    const int x = static_cast<int>((across - 1) * static_cast<double>(step - first) /
                                   static_cast<double>(steps));
    const double up = range > 0 ? (value - least) / range : 0.5;
    const int y = down - 1 - static_cast<int>(std::lround(up * (down - 1)));
    if (last_x < 0) mark(x, y);
    for (int at = last_x + 1; last_x >= 0 && at <= x; ++at) {  // a line from the previous point
      mark(at, last_y + static_cast<int>(std::lround(static_cast<double>(y - last_y) *
                                                     (at - last_x) / (x - last_x))));
    }
    last_x = x;
    last_y = y;
  }
  const std::string top = Short(metric, high->second);
  const std::string bottom = Short(metric, least);
  const size_t margin = std::max(top.size(), bottom.size());
  std::string out = absl::StrCat(curve.name, "  ", Short(metric, curve.points.back().second), "\n");
  for (int row = 0; row < height; ++row) {
    const std::string label = row == 0 ? top : row == height - 1 ? bottom : "";
    std::string line;
    for (int column = 0; column < width; ++column) {
      line += Glyph(dots[static_cast<size_t>(row) * width + column], unicode);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    absl::StrAppend(&out, std::string(margin - label.size(), ' '), label, unicode ? " ┤" : " |",
                    line, "\n");
  }
  const std::string from = absl::StrCat("step ", first);
  const std::string to = absl::StrCat(curve.points.back().first);
  const int gap = std::max(1, width - static_cast<int>(from.size() + to.size()));
  absl::StrAppend(&out, std::string(margin + 2, ' '), from, std::string(gap, ' '), to, "\n");
  return out;
}

}  // namespace capstan::client
