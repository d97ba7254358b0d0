// `capstan run`: coordinator, shards and workers in this process tree, one job, its progress and
// its result; and `capstan clean`.
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/checkpoint_files.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/local_run.h"
#include "client/resume_run.h"
#include "client/run_folder.h"
#include "services/server/signals.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

// Blocks until the job has ended. The first SIGINT or SIGTERM cancels the job, the second ends
// everything at once.
ExitCode Run(const JobSource& source, const Console& console) {
  if (const ExitCode code = NeedSource(source, console); code != kExitDone) return code;
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  JobPlaces places;
  absl::StatusOr<job::v1::JobSpec> spec = LoadJob(source, console, places);
  if (!spec.ok()) return Report(spec.status(), console);
  if (absl::Status status = CheckNoCheckpointName(*spec); !status.ok()) {
    return Report(status, console);
  }
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(*spec);
  if (!plan.ok()) {
    // Data or numbers that cannot be trained on: known before anything is started.
    console.Err(ErrorLine(places, plan.status().message()));
    return kExitUsage;
  }
  console.Note(training::spec::PlanText(*plan));
  if (absl::Status status = PrepareStorage(*spec, *plan, console); !status.ok()) {
    return ReportStorage(status, *spec, places, console);
  }
  if (signal.WaitFor(absl::ZeroDuration())) return kExitInterrupted;

  const absl::StatusOr<LocalRun> run = StartLocalRun(*spec, *plan, console);
  if (!run.ok()) return Report(run.status(), console);
  console.Note(absl::StrCat(run->job_id, "\n"));
  const Followed followed = FollowLocalRun(*run, FollowOptions::Show::kEpochs, console);
  const ExitCode code = ReportOwnJob(*run->client, run->job_id, followed, console);
  SayHowToGoOn(*run, followed, console);
  return code;
}

struct RunOptions {
  JobSource source;
  std::string resume;  // empty: a new job
};

ExitCode RunOrResume(const RunOptions& options, const Console& console) {
  const JobSource& source = options.source;
  if (options.resume.empty()) return Run(source, console);
  if (source.file.empty() && source.example.empty() && source.sets.empty()) {
    return ResumeRun(options.resume, console);
  }
  console.Err(
      "capstan: --resume goes on with a job as it was submitted: without FILE, --example and "
      "--set\n");
  return kExitUsage;
}

struct CleanOptions {
  std::optional<int> keep;
  bool yes = false;
};

// `capstan clean`: removes runs under ./capstan-out, and nothing unless it is told what.
ExitCode Clean(const CleanOptions& options, const Console& console) {
  if (!options.keep.has_value() && !options.yes) {
    const auto runs = FindRuns(kDefaultRunsFolder);
    if (!runs.ok()) return Report(runs.status(), console);
    console.Err(absl::StrCat("capstan: clean removes runs for good: say --keep N, or -y for all ",
                             runs->size(), " in ", kDefaultRunsFolder, "; nothing was removed\n"));
    return kExitUsage;
  }
  const auto removed = RemoveOldRuns(kDefaultRunsFolder, options.keep.value_or(0));
  if (!removed.ok()) return Report(removed.status(), console);
  for (const std::string& run : removed->live) {
    console.Note(absl::StrCat(kDefaultRunsFolder, "/", run, " stays: it trains\n"));
  }
  const size_t count = removed->removed.size();
  console.Out(absl::StrCat("removed ", count, count == 1 ? " run" : " runs", " from ",
                           kDefaultRunsFolder, "\n"));
  return kExitDone;
}

}  // namespace

void AddRun(Command parent, Action& slot) {
  const auto run_options = std::make_shared<RunOptions>();
  Command run =
      parent.Sub("run", "train a job here: coordinator, shards and workers in this process tree");
  AddJobSource(run, run_options->source);
  run.Add("--resume", run_options->resume,
          "instead of a file: a run that was interrupted, cancelled or has failed, by its id in "
          "./capstan-out or its folder");
  CarryOut(
      run, slot, {Output::kTable, Output::kJson},
      [run_options](const Context& context) { return RunOrResume(*run_options, context.console); },
      {.coordinator = false, .timeout = false, .verbose = true});
  const auto options = std::make_shared<CleanOptions>();
  Command clean = parent.Sub("clean", "remove runs from ./capstan-out; one that trains stays");
  Flag keep = clean.Add("--keep", options->keep, "all but so many of the newest");
  keep.Between(0, 1000000);
  clean.AddSwitch("-y,--yes", options->yes, "all of them").Excludes(keep);
  CarryOut(
      clean, slot, {Output::kTable},
      [options](const Context& context) { return Clean(*options, context.console); }, kActsAlone);
}

}  // namespace capstan::client
