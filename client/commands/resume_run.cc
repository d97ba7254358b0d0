#include "client/commands/resume_run.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "capstan/coordinator/v1/durable.pb.h"
#include "client/commands/command.h"
#include "client/commands/follow.h"
#include "client/commands/local_run.h"
#include "client/job_source.h"
#include "client/run_folder.h"
#include "client/storage_room.h"
#include "coordinator/journal/run_journals.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/server/signals.h"
#include "training/codec/local_uri.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kTakenUp = absl::Seconds(30);  // until the coordinator has read its folder
constexpr absl::Duration kAskHealth = absl::Milliseconds(200);
constexpr absl::Duration kNews = absl::Milliseconds(20);  // between two states of the job

struct StoredRun {
  RunPlace place;
  job::v1::ResolvedSpec plan;
};

// The job's resolved spec, or what it would resolve to here if it never had a gang.
absl::StatusOr<job::v1::ResolvedSpec> PlanOf(const coordinator::v1::DurableJob& job,
                                             const std::string& folder) {
  const absl::Status damaged =
      absl::DataLossError(absl::StrCat(folder, ": the record of its job is damaged"));
  job::v1::ResolvedSpec plan;
  if (!job.resolved_spec().empty()) {
    if (!plan.ParseFromString(job.resolved_spec())) return damaged;
    return plan;
  }
  job::v1::JobSpec spec;
  if (!spec.ParseFromString(job.changed_spec().empty() ? job.spec() : job.changed_spec())) {
    return damaged;
  }
  absl::StatusOr<job::v1::ResolvedSpec> here = ResolveHere(spec);
  if (!here.ok()) return here;
  const absl::StatusOr<std::string> storage = training::LocalPath(spec.checkpoint().storage_path());
  if (!storage.ok()) return damaged;
  here->set_storage_path(absl::StrCat(*storage, "/", job.job_id()));
  return here;
}

absl::StatusOr<StoredRun> ReadStoredRun(const std::string& name) {
  const absl::StatusOr<std::string> named = FindRunFolder(name);
  if (!named.ok()) return named.status();
  std::error_code error;
  const std::string folder = std::filesystem::canonical(*named, error).string();
  if (error) return services::ErrnoStatus(error.value(), "realpath", *named);
  // A coordinator that trains it would hold the lock. Ours takes the lock anew.
  absl::StatusOr<std::string> state_dir = MakeRunState(folder);
  if (!state_dir.ok()) return state_dir.status();
  if (state_dir->empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": its file system has no locks, so no coordinator can work there"));
  }
  const auto state = coordinator::ReadRunJournals(folder);
  if (!state.ok()) return state.status();
  coordinator::v1::DurableJob job;
  if (state->jobs.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(folder, ": no job was accepted here"));
  }
  if (!job.ParseFromString(state->jobs.begin()->second)) {
    return absl::DataLossError(absl::StrCat(folder, ": the record of its job is damaged"));
  }
  if (job.state() == common::v1::JOB_STATE_SUCCEEDED) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.job_id(), " has SUCCEEDED: nothing is left to train; capstan describe ",
        RunName(folder), " shows it"));
  }
  absl::StatusOr<job::v1::ResolvedSpec> plan = PlanOf(job, folder);
  if (!plan.ok()) return plan.status();
  // Its checkpoints are recorded by their paths, and it would continue to save there.
  if (!std::filesystem::equivalent(plan->storage_path(), folder, error)) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder, ": job ", job.job_id(), " saves to ", plan->storage_path(),
        "; move its folder back there to resume it, or submit a job with its checkpoint as "
        "model.initial_weights"));
  }
  return StoredRun{{job.job_id(), folder, *std::move(state_dir)}, *std::move(plan)};
}

// Puts the job back into the queue, by the call that fits its state.
absl::Status PutBack(JobClient& client, const job::v1::Job& job) {
  if (job.state() == common::v1::JOB_STATE_SUSPENDED) {
    job::v1::ResumeJobRequest request;
    request.set_job_id(job.job_id());
    return client.Call(&JobClient::Stub::ResumeJob, request).status();
  }
  job::v1::RetryJobRequest request;
  request.set_job_id(job.job_id());
  return client.Call(&JobClient::Stub::RetryJob, request).status();
}

// Waits until the coordinator knows the job's state, and lets it continue. Cancelled: a signal
// arrived.
absl::Status TakeUp(const LocalRun& run, const Console& console) {
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  JobWatcher watcher(*run.client, run.job_id, kNews);
  const absl::Duration until = MonotonicNow() + kTakenUp;
  int64_t seen = 0;
  while (true) {
    const JobWatcher::Update update = watcher.Wait(seen, kAskHealth);
    if (absl::Status health = run.cluster->Health(); !health.ok()) return health;
    if (signal.WaitFor(absl::ZeroDuration())) return absl::CancelledError("");
    if (update.given_up) return update.last_error;
    if (update.sequence > seen) {
      seen = update.sequence;
      const job::v1::Job& job = *update.job;
      switch (job.state()) {
        case common::v1::JOB_STATE_SUSPENDED:
        case common::v1::JOB_STATE_FAILED:
        case common::v1::JOB_STATE_CANCELLED:
          console.Note(
              absl::StrCat(run.job_id, "  goes on from ", GoesOnFrom(job.checkpoint_uri()), "\n"));
          return PutBack(*run.client, job);
        case common::v1::JOB_STATE_PENDING:    // it never started, or had given its gang back
        case common::v1::JOB_STATE_SUCCEEDED:  // its last version was whole but not reported
          return absl::OkStatus();
        default:
          break;  // its folder is being read, or it is being cancelled
      }
    }
    if (MonotonicNow() > until) {
      return absl::DeadlineExceededError(
          absl::StrCat("job ", run.job_id, " could not continue within ",
                       absl::FormatDuration(kTakenUp), ": its folder is not read yet"));
    }
  }
}

}  // namespace

ExitCode ResumeRun(const std::string& name, const Console& console) {
  services::ShutdownSignal& signal = services::ShutdownSignal::Install();
  const absl::StatusOr<StoredRun> stored = ReadStoredRun(name);
  if (!stored.ok()) return Report(stored.status(), console);
  console.Note(training::spec::PlanText(stored->plan));
  if (absl::Status status = CheckRoom(stored->plan, stored->place.folder, console); !status.ok()) {
    return Report(status, console);
  }
  if (signal.WaitFor(absl::ZeroDuration())) return kExitInterrupted;
  const absl::StatusOr<LocalRun> run = StartServices(stored->place, stored->plan, console);
  if (!run.ok()) return Report(run.status(), console);
  if (absl::Status status = TakeUp(*run, console); !status.ok()) {
    return absl::IsCancelled(status) ? kExitInterrupted : Report(status, console);
  }
  const Followed followed = FollowLocalRun(*run, FollowOptions::Show::kEpochs, console);
  const ExitCode code = ReportOwnJob(*run->client, run->job_id, followed, console);
  SayHowToGoOn(*run, followed, console);
  return code;
}

}  // namespace capstan::client
