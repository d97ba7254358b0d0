#include "client/run_command.h"

#include <unistd.h>

#include <filesystem>
#include <memory>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cluster.h"
#include "client/job_client.h"
#include "client/job_json.h"
#include "client/job_view.h"
#include "client/old_runs.h"
#include "services/files/files.h"
#include "services/server/signals.h"
#include "training/codec/local_uri.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(30);  // until the coordinator answers
constexpr absl::Duration kCallTimeout = absl::Seconds(10);
constexpr absl::Duration kCancelTimeout = absl::Seconds(20);  // until a cancelled job has ended
constexpr absl::Duration kRedraw = absl::Milliseconds(200);
constexpr int kShownProblems = 10;

// 128 random bits: nobody else can have used the id.
std::string NewRequestId() {
  std::random_device random;
  std::string id = "run";
  for (int i = 0; i < 4; ++i) absl::StrAppend(&id, "-", absl::Hex(random(), absl::kZeroPad8));
  return id;
}

ExitCode Report(const absl::Status& status, const Console& console) {
  if (!status.message().empty()) console.Err(absl::StrCat("capstan: ", status.message(), "\n"));
  return ExitCodeOf(status);
}

// What the job and its cluster did until the end.
struct Outcome {
  job::v1::Job job;
  absl::Status error;  // the services failed before the job ended
};

class Follower {
 public:
  Follower(JobClient& client, const LocalCluster& cluster, const std::string& job_id,
           const Console& console)
      : client_(client),
        cluster_(cluster),
        job_id_(job_id),
        console_(console),
        live_(console),
        watcher_(client, job_id) {}

  Outcome Run() {
    services::ShutdownSignal& signal = services::ShutdownSignal::Install();
    absl::Time give_up = absl::InfiniteFuture();
    bool cancelled = false;
    while (true) {
      const JobWatcher::Update update = watcher_.Wait(seen_, kRedraw);
      if (update.job.has_value() && update.sequence > seen_) {
        seen_ = update.sequence;
        Show(*update.job);
        if (IsTerminal(update.job->state())) {
          live_.Clear();
          return {*update.job, absl::OkStatus()};
        }
      }
      if (absl::Status health = cluster_.Health(); !health.ok()) {
        live_.Clear();
        return {update.job.value_or(job::v1::Job()), health};
      }
      if (!cancelled && signal.WaitFor(absl::ZeroDuration())) {
        cancelled = true;
        give_up = absl::Now() + kCancelTimeout;
        live_.Clear();
        console_.Note(
            absl::StrCat("cancelling ", job_id_, " (once more ends everything at once)\n"));
        if (absl::Status status = client_.Cancel(job_id_, kCallTimeout); !status.ok())
          return {{}, status};
      }
      if (absl::Now() > give_up) {
        live_.Clear();
        return {update.job.value_or(job::v1::Job()),
                absl::DeadlineExceededError(absl::StrCat(job_id_, " did not end within ",
                                                         absl::FormatDuration(kCancelTimeout),
                                                         " of its cancellation"))};
      }
    }
  }

 private:
  void Show(const job::v1::Job& job) {
    for (; printed_epochs_ < job.epochs_size(); ++printed_epochs_) {
      if (console_.json || console_.quiet) continue;
      live_.Clear();
      console_.Out(EpochLine(job, job.epochs(printed_epochs_)) + "\n");
    }
    if (!IsTerminal(job.state()))
      live_.Draw(LiveLines(job, {console_.width, console_.stderr_color}));
  }

  JobClient& client_;
  const LocalCluster& cluster_;
  const std::string job_id_;
  const Console& console_;
  LiveArea live_;
  JobWatcher watcher_;
  int64_t seen_ = 0;
  int printed_epochs_ = 0;
};

// For a job that failed: what its tasks and shards said last.
void PrintProblems(JobClient& client, const std::string& job_id, const Console& console) {
  const auto lines = client.Problems(job_id, kCallTimeout);
  if (!lines.ok()) return;
  const size_t first = lines->size() > kShownProblems ? lines->size() - kShownProblems : 0;
  for (size_t i = first; i < lines->size(); ++i) {
    const auto& line = (*lines)[i];
    const char role = line.role() == common::v1::ROLE_WORKER        ? 'w'
                      : line.role() == common::v1::ROLE_PARAM_STORE ? 's'
                                                                    : 'c';
    console.Err(absl::StrCat("[", std::string(1, role), line.index(), "] ", line.level(), ": ",
                             Printable(line.text()), "\n"));
  }
}

absl::StatusOr<std::string> PrepareStorage(job::v1::JobSpec& spec, const Console& console) {
  const bool given = spec.checkpoint().has_storage_path();
  std::error_code error;
  const std::string path =
      given ? *training::LocalPath(spec.checkpoint().storage_path())
            : (std::filesystem::current_path(error) / kDefaultRunsFolder).string();
  if (absl::Status status = services::EnsureDir(path); !status.ok()) return status;
  if (!given) {
    const auto removed = RemoveOldRuns(path, kKeptRuns - 1);
    if (!removed.ok()) return removed.status();
    if (!removed->empty()) {
      console.Note(absl::StrCat("removed ", absl::StrJoin(*removed, ", "), ": the last ", kKeptRuns,
                                " runs are kept in ", kDefaultRunsFolder, "\n"));
    }
  }
  spec.mutable_checkpoint()->set_storage_path("file://" + path);
  return path;
}

}  // namespace

ExitCode Run(const RunOptions& options, const Console& console) {
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  absl::StatusOr<job::v1::JobSpec> spec = LoadJob(options.source, console);
  if (!spec.ok()) return Report(spec.status(), console);
  const absl::StatusOr<job::v1::ResolvedSpec> plan = ResolveHere(*spec);
  if (!plan.ok()) {
    // Data or numbers that cannot be trained on: known before anything is started.
    console.Err(absl::StrCat("capstan: ", plan.status().message(), "\n"));
    return kExitUsage;
  }
  console.Note(training::spec::PlanText(*plan));
  if (absl::StatusOr<std::string> storage = PrepareStorage(*spec, console); !storage.ok()) {
    return Report(storage.status(), console);
  }
  if (signal.WaitFor(absl::ZeroDuration())) return kExitInterrupted;

  ClusterOptions cluster_options;
  cluster_options.workers = plan->num_workers();
  cluster_options.devices_per_worker = plan->devices_per_worker();
  for (const int32_t device : plan->spec().resources().devices()) {
    cluster_options.devices_per_worker = std::max(cluster_options.devices_per_worker, device + 1);
  }
  cluster_options.shards = plan->num_shards();
  cluster_options.echo = console.verbose;
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Start(cluster_options);
  if (!cluster.ok()) {
    Report(cluster.status(), console);
    return kExitInternal;  // whatever its code: no call was refused, this machine cannot start them
  }
  absl::StatusOr<std::unique_ptr<JobClient>> client =
      JobClient::Connect((*cluster)->coordinator(), {});
  if (!client.ok()) return Report(client.status(), console);
  const absl::StatusOr<std::string> job_id =
      (*client)->Submit(*spec, NewRequestId(), kStartTimeout);
  if (!job_id.ok()) {
    if (absl::Status health = (*cluster)->Health(); !health.ok()) return Report(health, console);
    return Report(job_id.status(), console);
  }
  console.Note(absl::StrCat(*job_id, "\n"));

  const Outcome outcome = Follower(**client, **cluster, *job_id, console).Run();
  if (console.json) console.Out(JobJson(outcome.job) + "\n");
  if (!outcome.error.ok()) {
    console.Err(absl::StrCat("capstan: ", outcome.error.message(), "\n"));
    return kExitInternal;
  }
  if (outcome.job.state() == common::v1::JOB_STATE_FAILED && !console.json)
    PrintProblems(**client, *job_id, console);
  if (!console.json) console.Out(Summary(outcome.job, {console.width, console.stdout_color}));
  return ExitCodeOf(outcome.job.state());
}

ExitCode Clean(int keep, const Console& console) {
  const auto removed = RemoveOldRuns(kDefaultRunsFolder, keep);
  if (!removed.ok()) return Report(removed.status(), console);
  console.Out(absl::StrCat("removed ", removed->size(), removed->size() == 1 ? " run" : " runs",
                           " from ", kDefaultRunsFolder, "\n"));
  return kExitDone;
}

}  // namespace capstan::client
