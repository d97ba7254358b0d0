// `capstan run`: trains one job with coordinator, shards and workers in this process tree, and
// shows its progress and result. Also `capstan clean`.
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/checkpoint_files.h"
#include "client/commands/commands.h"
#include "client/commands/follow.h"
#include "client/commands/local_run.h"
#include "client/commands/resume_run.h"
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
    // The data or numbers are unfit for training, which is known before anything is started.
    console.Err(ErrorLine(places, plan.status().message()));
    return kExitUsage;
  }
  console.Note(training::spec::PlanText(*plan));
  const bool given = spec->checkpoint().has_storage_path();
  if (absl::Status status = PrepareStorage(*spec, *plan, console); !status.ok()) {
    return ReportStorage(status, given, places, console);
  }
  if (signal.WaitFor(absl::ZeroDuration())) return kExitInterrupted;

  const absl::StatusOr<RunPlace> place = MakeRunPlace(*spec, console);
  if (!place.ok()) return ReportStorage(place.status(), given, places, console);
  const absl::StatusOr<LocalRun> run = StartLocalRun(*place, *spec, *plan, console);
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
      "capstan: --resume continues a job as it was submitted: give no FILE, --example or "
      "--set\n");
  return kExitUsage;
}

struct CleanOptions {
  std::optional<int> keep;
  bool yes = false;
};

// `capstan clean`: removes runs under ./capstan-out, and only if told which.
ExitCode Clean(const CleanOptions& options, const Console& console) {
  if (!options.keep.has_value() && !options.yes) {
    const auto runs = FindRuns(kDefaultRunsFolder);
    if (!runs.ok()) return Report(runs.status(), console);
    console.Err(absl::StrCat("capstan: clean removes runs for good: give --keep N, or -y for all ",
                             runs->size(), " in ", kDefaultRunsFolder, "; nothing was removed\n"));
    return kExitUsage;
  }
  const auto removed = RemoveOldRuns(kDefaultRunsFolder, options.keep.value_or(0));
  if (!removed.ok()) return Report(removed.status(), console);
  for (const std::string& run : removed->live) {
    console.Note(absl::StrCat(kDefaultRunsFolder, "/", run, " is kept: it is training\n"));
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
          "instead of a file: a run that was interrupted, was cancelled or failed, by its id in "
          "./capstan-out, @last or its folder");
  CarryOut(
      run, slot, {Output::kTable, Output::kJson},
      [run_options](const Context& context) { return RunOrResume(*run_options, context.console); },
      {.coordinator = false, .timeout = false, .verbose = true});
  const auto options = std::make_shared<CleanOptions>();
  Command clean = parent.Sub("clean", "remove runs from ./capstan-out, except those that train");
  Flag keep = clean.Add("--keep", options->keep, "keep this many of the newest runs");
  keep.Between(0, 1000000);
  clean.AddSwitch("-y,--yes", options->yes, "remove all of them").Excludes(keep);
  CarryOut(
      clean, slot, {Output::kTable},
      [options](const Context& context) { return Clean(*options, context.console); }, kActsAlone);
}

}  // namespace capstan::client
