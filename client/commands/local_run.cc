#include "client/commands/local_run.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/coordinator_address.h"
#include "client/run_folder.h"
#include "client/storage_room.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "services/files/files.h"
#include "training/codec/local_uri.h"

namespace capstan::client {
namespace {

constexpr size_t kManyRuns = 20;

}  // namespace

std::string GoesOnFrom(const std::string& checkpoint_uri) {
  if (checkpoint_uri.empty()) return "the initial weights";
  return absl::StrCat("checkpoint ", checkpoint_uri.substr(checkpoint_uri.rfind('/') + 1));
}

absl::Status PrepareStorage(job::v1::JobSpec& spec, const job::v1::ResolvedSpec& plan,
                            const Console& console) {
  const bool given = spec.checkpoint().has_storage_path();
  std::error_code error;
  const std::string path =
      given ? *training::LocalPath(spec.checkpoint().storage_path())
            : (std::filesystem::current_path(error) / kDefaultRunsFolder).string();
  if (absl::Status status = services::EnsureDir(path); !status.ok()) return status;
  if (absl::Status status = CheckRoom(plan, path, console); !status.ok()) return status;
  if (!given) {
    const absl::StatusOr<std::vector<FoundRun>> runs = FindRuns(path);
    if (!runs.ok()) return runs.status();
    if (runs->size() >= kManyRuns) {
      console.Note(absl::StrCat(kDefaultRunsFolder, " holds ", runs->size(),
                                " runs; capstan clean --keep N removes all but the last N\n"));
    }
  }
  spec.mutable_checkpoint()->set_storage_path("file://" + path);
  return absl::OkStatus();
}

absl::StatusOr<RunPlace> MakeRunPlace(const job::v1::JobSpec& spec, const Console& console) {
  const std::string storage = *training::LocalPath(spec.checkpoint().storage_path());
  absl::StatusOr<std::string> id = MakeRunFolder(storage, spec.name());
  if (!id.ok()) return id.status();
  RunPlace place{*id, absl::StrCat(storage, "/", *id), ""};
  absl::StatusOr<std::string> state = MakeRunState(place.folder);
  if (!state.ok()) {
    RemoveRunPlace(place);
    return state.status();
  }
  place.state_dir = *std::move(state);
  if (place.state_dir.empty()) {
    console.Note(absl::StrCat(storage,
                              ": its file system has no locks, so this run cannot be "
                              "resumed or viewed after it has ended\n"));
  }
  return place;
}

void RemoveRunPlace(const RunPlace& place) {
  std::error_code ignored;  // an empty folder that stays does no harm
  std::filesystem::remove_all(place.folder, ignored);
}

absl::StatusOr<LocalRun> StartServices(const RunPlace& place, const job::v1::ResolvedSpec& plan,
                                       const Console& console) {
  ClusterOptions options;
  options.shared_memory = place.shared_memory;
  options.workers = plan.num_workers();
  options.cpus_alone = plan.spec().resources().device() == "cpu";
  options.shards = plan.num_shards();
  options.echo = console.verbose;
  options.job_id = place.job_id;
  options.state_dir = place.state_dir;
  LocalRun run;
  run.job_id = place.job_id;
  if (!place.state_dir.empty()) run.name = RunName(place.folder);
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Start(options);
  if (!cluster.ok()) {
    // No call was refused: this machine cannot start services. So the code is always Internal.
    return absl::InternalError(cluster.status().message());
  }
  run.cluster = *std::move(cluster);
  Connection connection;
  connection.address = run.cluster->coordinator();
  connection.timeout = kDefaultTimeout;
  absl::StatusOr<std::unique_ptr<JobClient>> client = JobClient::Connect(connection);
  if (!client.ok()) return client.status();
  run.client = *std::move(client);
  return run;
}

absl::StatusOr<LocalRun> StartLocalRun(const RunPlace& place, const job::v1::JobSpec& spec,
                                       const job::v1::ResolvedSpec& plan, const Console& console) {
  absl::StatusOr<LocalRun> run = StartServices(place, plan, console);
  if (!run.ok()) {
    RemoveRunPlace(place);
    return run;
  }
  job::v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = spec;
  const auto answer = run->client->Call(&JobClient::Stub::SubmitJob, request);
  if (!answer.ok()) {
    const absl::Status health = run->cluster->Health();
    run->cluster.reset();  // the services write into the folder
    RemoveRunPlace(place);
    return health.ok() ? answer.status() : health;
  }
  return run;
}

Followed FollowLocalRun(const LocalRun& run, FollowOptions::Show show, const Console& console) {
  FollowOptions options;
  options.show = show;
  options.cancel_on_signal = true;
  options.health = [&run] { return run.cluster->Health(); };
  return Follow(*run.client, run.job_id, options, console);
}

void SayHowToGoOn(const LocalRun& run, const Followed& followed, const Console& console) {
  SayHowToGoOn(run.name, followed, console);
}

void SayHowToGoOn(const std::string& name, const Followed& followed, const Console& console) {
  if (name.empty() || followed.job.state() == common::v1::JOB_STATE_SUCCEEDED) return;
  console.Note(absl::StrCat("capstan run --resume ", name, " goes on from ",
                            GoesOnFrom(followed.job.checkpoint_uri()), "\n"));
}

ExitCode ReportOwnJob(JobClient& client, const std::string& job_id, const Followed& followed,
                      const Console& console) {
  if (console.json()) console.Out(JobJson(followed.job) + "\n");
  if (followed.end == Followed::End::kError) {
    console.Err(absl::StrCat("capstan: ", followed.error.message(), "\n"));
    return kExitInternal;
  }
  if (followed.job.state() == common::v1::JOB_STATE_FAILED && !console.json())
    PrintProblems(client, job_id, console);
  if (!console.json()) console.Out(Summary(followed.job, {console.width, console.stdout_color}));
  return ExitCodeOf(followed.job.state());
}

}  // namespace capstan::client
