// `capstan metrics`: loss, accuracy and speed over a job's steps, also as files for TensorBoard.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/text/metrics_text.h"
#include "services/files/files.h"
#include "services/server/signals.h"
#include "training/history/event_file.h"
#include "training/history/job_history.h"
#include "training/spec/validate.h"

namespace capstan::client {
namespace {

using training::Curve;
using training::CurveOf;
using training::JobHistory;
using training::MetricNames;
using training::ScalarEvent;

constexpr int kTablePoints = 20;
constexpr int kPlotHeight = 8;
constexpr int kPlotMargin = 12;  // for labels
constexpr absl::Duration kFollowEvery = absl::Seconds(2);

struct MetricsOptions {
  std::string job_id;
  std::vector<std::string> names;
  int points = -1;  // not given
  bool plot = false;
  std::string tensorboard;  // a folder
  bool follow = false;
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

struct Fetched {
  job::v1::Job job;
  JobHistory history;
};
absl::StatusOr<Fetched> FetchHistory(JobClient& client, const std::string& job_id, int points) {
  job::v1::GetMetricsRequest request;
  request.set_job_id(job_id);
  request.set_max_points(points);
  const auto answer = client.Call(&JobClient::Stub::GetMetrics, request);
  if (!answer.ok()) return answer.status();
  auto job = client.Get(job_id);
  if (!job.ok()) return job.status();
  JobHistory history = HistoryOf(*job, {answer->points().begin(), answer->points().end()});
  return Fetched{*std::move(job), std::move(history)};
}

// A new file with the events so far, <folder>/<job_id>/events.out.tfevents.0000000000.<job_id>,
// and with `follow` those that come, until the job has ended. One job has one file, so a second
// call replaces the first one's.
ExitCode WriteEvents(const MetricsOptions& options, JobClient& client, const Console& console) {
  const std::vector<std::string> names = options.names.empty() ? MetricNames() : options.names;
  const std::string folder = absl::StrCat(options.tensorboard, "/", options.job_id);
  const std::string path = absl::StrCat(folder, "/events.out.tfevents.0000000000.", options.job_id);
  training::WrittenEvents written;
  int64_t count = 0;
  bool made = false, ended = !options.follow;
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  for (;;) {
    const auto fetched = FetchHistory(client, options.job_id, 0);
    if (!fetched.ok()) return ReportJob(client, options.job_id, fetched.status(), console);
    for (const std::string& name : names) {
      if (const auto curve = CurveOf(fetched->history, name); !curve.ok()) {
        return Report(curve.status(), console);
      }
    }
    const std::vector<ScalarEvent> events = training::EventsOf(fetched->history, names, written);
    std::string bytes;
    for (const ScalarEvent& event : events) bytes += training::EventRecord(event);
    absl::Status status;
    if (!made) {
      const double begin = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
      bytes.insert(0,
                   training::EventFileHead(events.empty() ? begin : events.front().unix_seconds));
      status = services::EnsureDir(folder);
      if (status.ok()) status = services::WriteFileAtomically(path, bytes);
      made = true;
    } else if (std::ofstream file(path, std::ios::binary | std::ios::app);
               !(file << bytes).flush()) {
      status = absl::InternalError(absl::StrCat(path, ": cannot be written: ", strerror(errno)));
    }
    if (!status.ok()) {
      Report(status, console);
      return kExitInternal;
    }
    count += static_cast<int64_t>(events.size());
    if (ended) break;
    // Points may have come between the two calls, so a job that has ended is asked once more.
    ended = IsTerminal(fetched->job.state());
    if (!ended && signal.WaitFor(kFollowEvery)) break;
  }
  console.Note(absl::StrCat(count, count == 1 ? " step" : " steps",
                            "; to look at them: tensorboard --logdir ", options.tensorboard, "\n"));
  console.Out(path + "\n");
  return kExitDone;
}

// The metrics of a plot or a table; empty: all. `numbers`: targets are numbers, so there is no
// accuracy.
std::vector<std::string> DefaultNames(bool numbers, bool plot, bool evaluated, bool table) {
  std::vector<std::string> names = {"loss"};
  if (!numbers) names.push_back("accuracy");
  if (!plot || evaluated) names.push_back(numbers ? "validation_loss" : "validation_accuracy");
  if (plot) {
    names.push_back("samples_per_second");
  } else {
    names.insert(names.end(), {"learning_rate", "samples_per_second", "step_seconds"});
  }
  return plot || table ? names : std::vector<std::string>();
}

ExitCode Metrics(const MetricsOptions& options, JobClient& client, const Console& console) {
  const bool whole = options.plot || console.json() || console.output == Output::kCsv;
  const auto fetched = FetchHistory(client, options.job_id,
                                    options.points >= 0 ? options.points
                                    : whole             ? 0
                                                        : kTablePoints);
  if (!fetched.ok()) return ReportJob(client, options.job_id, fetched.status(), console);
  const JobHistory& history = fetched->history;

  std::vector<std::string> names = options.names;
  if (names.empty()) {
    names = DefaultNames(training::spec::HasNumericTargets(fetched->job.spec()), options.plot,
                         !history.evaluations.empty(), console.output == Output::kTable);
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
  command.Add("--tensorboard", options->tensorboard,
              "write DIR/JOB/events.out.tfevents..., a file that TensorBoard reads");
  command.AddSwitch("-f,--follow", options->follow,
                    "with --tensorboard: go on with the steps that come, until the job has ended");
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
             const bool events = !options->tensorboard.empty();
             if (events && (machine || options->plot || options->points >= 0)) {
               return RefuseFlag(machine         ? "-o"
                                 : options->plot ? "--plot"
                                                 : "--points",
                                 "--tensorboard writes every point to a file", console);
             }
             if (options->follow && !events) {
               return RefuseFlag("--follow", "it goes on writing the file of --tensorboard",
                                 console);
             }
             return WithJobOrRun(
                 context, options->job_id,
                 [&](JobClient& client, const std::string& id) {
                   options->job_id = id;
                   return events ? WriteEvents(*options, client, context.console)
                                 : Metrics(*options, client, context.console);
                 },
                 options->follow ? "--follow" : "");
           });
}

}  // namespace capstan::client
