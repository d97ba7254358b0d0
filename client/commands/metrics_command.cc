// `capstan metrics`: loss, accuracy and speed over a job's steps.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/text/metrics_text.h"

namespace capstan::client {
namespace {

constexpr int kTablePoints = 20;
constexpr int kPlotHeight = 8;
constexpr int kPlotMargin = 12;  // for labels

struct MetricsOptions {
  std::string job_id;
  std::vector<std::string> names;
  int points = -1;  // not given
  bool plot = false;
};

// Whether the locale says that UTF-8 can be printed.
bool SpeaksUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string encoding = absl::AsciiStrToLower(value);
    return absl::StrContains(encoding, "utf-8") || absl::StrContains(encoding, "utf8");
  }
  return false;
}

ExitCode Metrics(const MetricsOptions& options, JobClient& client, const Console& console) {
  const bool whole = options.plot || console.json() || console.output == Output::kCsv;
  job::v1::GetMetricsRequest request;
  request.set_job_id(options.job_id);
  request.set_max_points(options.points >= 0 ? options.points : whole ? 0 : kTablePoints);
  const auto answer = client.Call(&JobClient::Stub::GetMetrics, request);
  if (!answer.ok()) return ReportJob(client, options.job_id, answer.status(), console);
  const auto job = client.Get(options.job_id);
  if (!job.ok()) return ReportJob(client, options.job_id, job.status(), console);
  const JobHistory history = HistoryOf(*job, {answer->points().begin(), answer->points().end()});

  std::vector<std::string> names = options.names;
  if (names.empty() && options.plot) {
    names = {"loss", "accuracy", "samples_per_second"};
    if (!history.evaluations.empty()) names.insert(names.begin() + 2, "validation_accuracy");
  }
  if (names.empty() && console.output == Output::kTable) {
    names = {"loss",          "accuracy",           "validation_accuracy",
             "learning_rate", "samples_per_second", "step_seconds"};
  }
  if (names.empty()) names = MetricNames();
  std::vector<Curve> curves;
  for (const std::string& name : names) {
    absl::StatusOr<Curve> curve = CurveOf(history, name);
    if (!curve.ok()) return Report(curve.status(), console);
    curves.push_back(*std::move(curve));
  }

  if (console.json()) {
    console.Out(MetricsJson(options.job_id, history) + "\n");
  } else if (console.output == Output::kCsv) {
    console.Out(MetricsCsv(history, names));
  } else if (options.plot) {
    const int width = std::clamp(console.stdout_tty ? console.width : 80, 40, 120) - kPlotMargin;
    for (const Curve& curve : curves) {
      console.Out(PlotText(curve, width, kPlotHeight, SpeaksUtf8()));
    }
  } else if (history.points.empty()) {
    console.Note("nothing was reported yet\n");
  } else {
    console.Out(MetricsTable(history, names, console.stdout_tty ? console.width : 0));
  }
  return kExitDone;
}

}  // namespace

void AddMetrics(Command parent, Action& slot) {
  const auto options = std::make_shared<MetricsOptions>();
  Command command = parent.Sub("metrics", "loss, accuracy and speed over the steps of a job");
  command.Add("JOB", options->job_id, "id of the job, or the folder of a run").Required();
  command.AddRepeated("--name", options->names, "NAME",
                      "only this metric, such as loss; may be repeated");
  command
      .Add("--points", options->points,
           "number of points, evenly spaced; 0: all; default 20 for a table, else all")
      .Between(0, 1000000);
  command.AddSwitch("--plot", options->plot, "draw curves");
  CarryOut(command, slot, {Output::kTable, Output::kJson, Output::kCsv},
           [options](const Context& context) {
             const Console& console = context.console;
             const bool machine = console.json() || console.output == Output::kCsv;
             if (options->plot && machine) {
               return RefuseFlag("--plot", "-o asks for another form than curves", console);
             }
             if (!options->names.empty() && console.json()) {
               return RefuseFlag(
                   "--name", "-o json has every metric of a point; -o csv has columns", console);
             }
             return WithJobOrRun(context, options->job_id,
                                 [&](JobClient& client, const std::string& id) {
                                   options->job_id = id;
                                   return Metrics(*options, client, context.console);
                                 });
           });
}

}  // namespace capstan::client
