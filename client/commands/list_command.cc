// `capstan list`: jobs, newest first.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/commands/commands.h"
#include "client/commands/look.h"
#include "client/run_folder.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"

namespace capstan::client {
namespace {

struct ListOptions {
  std::vector<std::string> states;
  std::vector<std::string> labels;
  std::string user;
  std::string folder;  // of runs; empty: jobs of the coordinator
  int limit = 100;
  bool wide = false;
};

std::string Age(const google::protobuf::Timestamp& since) {
  return ShortDuration(absl::ToDoubleSeconds(absl::Now() - absl::FromUnixSeconds(since.seconds())));
}

std::string ProgressText(const job::v1::Progress& progress) {
  if (progress.total_steps() == 0) return "";
  return absl::StrFormat("%d/%d %.0f%%", progress.step(), progress.total_steps(),
                         100.0 * progress.step() / progress.total_steps());
}

std::string Table(const std::vector<job::v1::Job>& jobs, bool wide, int width) {
  std::vector<std::string> head = {"JOB", "STATE", "REASON", "STEP", "LOSS", "AGE"};
  if (wide) {
    for (const char* name :
         {"OWNER", "WORKERS", "SHARDS", "LINEAGE", "RESTARTS", "SAMPLES/S", "ETA", "MESSAGE"}) {
      head.emplace_back(name);
    }
  }
  TextTable table(head);
  for (const job::v1::Job& job : jobs) {
    const auto& p = job.progress();
    std::vector<std::string> row = {job.job_id(),
                                    StateName(job.state()),
                                    job.reason(),
                                    ProgressText(p),
                                    p.has_loss() ? absl::StrFormat("%.4f", p.loss()) : "",
                                    Age(job.submitted_at())};
    if (wide) {
      const bool runs = !IsTerminal(job.state());
      row.push_back(job.owner());
      row.push_back(absl::StrCat(job.workers_size()));
      row.push_back(absl::StrCat(job.shards_size()));
      row.push_back(job.lineage() > 0 ? absl::StrCat(job.lineage(), ".", job.generation()) : "");
      row.push_back(absl::StrCat(job.restarts()));
      row.push_back(runs && p.has_samples_per_second()
                        ? absl::StrFormat("%.0f", p.samples_per_second())
                        : "");
      row.push_back(runs && p.has_eta_seconds() ? ShortDuration(p.eta_seconds()) : "");
      row.push_back(job.message());
    }
    table.Add(std::move(row));
  }
  return table.Text(width);
}

// Names the runs in `folder` that are missing from `jobs`.
void SayWhatIsNotShown(const std::string& folder, const std::vector<job::v1::Job>& jobs,
                       const Console& console) {
  std::set<std::string> shown;
  for (const job::v1::Job& job : jobs) shown.insert(job.job_id());
  const absl::StatusOr<std::vector<FoundRun>> runs = FindRuns(folder);
  if (!runs.ok()) return;  // the person asked for the jobs, which are printed
  for (const FoundRun& run : *runs) {
    const std::string path = absl::StrCat(folder, "/", run.job_id);
    if (shown.count(run.job_id) > 0 || !FindRunFolder(path).ok()) continue;
    console.Note(absl::StrCat(path,
                              " is not shown: its journal cannot be read, or it is a copy of "
                              "another run; capstan describe ",
                              path, " shows why\n"));
  }
}

ExitCode List(const ListOptions& options, const Context& context) {
  if (options.wide && (context.console.json() || context.console.output == Output::kName)) {
    return RefuseFlag("--wide", "-o asks for another form than a table", context.console);
  }
  job::v1::ListJobsRequest request;
  request.set_limit(options.limit);
  request.set_owner(options.user);
  for (const std::string& text : options.states) {
    const auto state = ReadState(text);
    if (!state.ok()) return Report(state.status(), context.console);
    request.add_states(*state);
  }
  for (const std::string& label : options.labels) {
    const size_t equals = label.find('=');
    if (equals == std::string::npos) {
      return Report(
          absl::InvalidArgumentError(absl::StrCat("-l takes label=value, found '", label, "'")),
          context.console);
    }
    const std::string key = label.substr(0, equals);
    const std::string value = label.substr(equals + 1);
    const auto [it, is_new] = request.mutable_labels()->insert({key, value});
    if (!is_new && it->second != value) {
      return Report(absl::InvalidArgumentError(
                        absl::StrCat("-l gives '", key, "' two values; a job has one")),
                    context.console);
    }
  }
  std::string runs_folder;  // the folder whose runs are shown
  const auto print = [&](JobClient& client) {
    const Console& console = context.console;
    const auto answer = client.ListJobs(request);
    if (!answer.ok()) return Report(answer.status(), console);
    const std::vector<job::v1::Job>& jobs = *answer;
    const bool all = options.states.empty() && options.labels.empty() && options.user.empty() &&
                     static_cast<int>(jobs.size()) < options.limit;
    if (!runs_folder.empty() && all) SayWhatIsNotShown(runs_folder, jobs, console);
    if (console.json()) {
      console.Out(JobListJson(jobs) + "\n");
    } else if (console.output == Output::kName) {
      for (const job::v1::Job& job : jobs) console.Out(job.job_id() + "\n");
    } else if (jobs.empty()) {
      console.Note("no jobs\n");
    } else {
      const bool wide = options.wide || console.output == Output::kWide;
      console.Out(Table(jobs, wide, console.stdout_tty ? console.width : 0));
    }
    return kExitDone;
  };
  const auto print_runs = [&](const std::string& folder) {
    runs_folder = folder;
    return WithRuns(context, folder, print);
  };
  if (!options.folder.empty()) {
    const ExitCode code = RefuseFlagsOfRuns(context);
    return code == kExitDone ? print_runs(options.folder) : code;
  }
  const absl::StatusOr<Connection> connection = FindCoordinator(context.connect);
  if (connection.ok() && !connection->configured && CheckRunsIn(kDefaultRunsFolder).ok()) {
    context.console.Note(
        absl::StrCat("no coordinator is configured: the runs in ./", kDefaultRunsFolder, "\n"));
    return print_runs(kDefaultRunsFolder);
  }
  return WithCoordinator(context, print);
}

}  // namespace

void AddList(Command parent, Action& slot) {
  const auto options = std::make_shared<ListOptions>();
  Command command = parent.Sub("list", "jobs, newest first");
  command.Add("FOLDER", options->folder,
              "list the runs in this folder, such as ./capstan-out, or one run");
  command.AddRepeated("-s,--state", options->states, "STATE",
                      "only jobs in this state; may be repeated");
  command.AddRepeated("-l,--label", options->labels, "LABEL=VALUE",
                      "only jobs with this label; may be repeated");
  command.Add("-u,--user", options->user, "only jobs of this owner");
  command.Add("--limit", options->limit, "at most this many, default 100").Between(1, 1000);
  command.AddSwitch("-w,--wide", options->wide, "more columns, the same as -o wide");
  CarryOut(command, slot, {Output::kTable, Output::kWide, Output::kJson, Output::kName},
           [options](const Context& context) { return List(*options, context); });
}

}  // namespace capstan::client
