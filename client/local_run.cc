#include "client/local_run.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/coordinator_address.h"
#include "client/job_json.h"
#include "client/job_view.h"
#include "client/old_runs.h"
#include "services/files/files.h"
#include "training/codec/local_uri.h"

namespace capstan::client {

absl::Status PrepareStorage(job::v1::JobSpec& spec, const Console& console) {
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
  return absl::OkStatus();
}

absl::StatusOr<LocalRun> StartLocalRun(const job::v1::JobSpec& spec,
                                       const job::v1::ResolvedSpec& plan, const Console& console) {
  ClusterOptions options;
  options.workers = plan.num_workers();
  options.cpus_alone = plan.spec().resources().device() == "cpu";
  options.shards = plan.num_shards();
  options.echo = console.verbose;
  LocalRun run;
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Start(options);
  if (!cluster.ok()) {
    // Whatever its code: no call was refused, this machine cannot start them.
    return absl::InternalError(cluster.status().message());
  }
  run.cluster = *std::move(cluster);
  Connection connection;
  connection.address = run.cluster->coordinator();
  connection.timeout = kDefaultTimeout;
  absl::StatusOr<std::unique_ptr<JobClient>> client = JobClient::Connect(connection);
  if (!client.ok()) return client.status();
  run.client = *std::move(client);
  job::v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  *request.mutable_spec() = spec;
  const auto answer = run.client->Call(&JobClient::Stub::SubmitJob, request);
  if (!answer.ok()) {
    if (absl::Status health = run.cluster->Health(); !health.ok()) return health;
    return answer.status();
  }
  run.job_id = answer->job_id();
  return run;
}

Followed FollowLocalRun(const LocalRun& run, FollowOptions::Show show, const Console& console) {
  FollowOptions options;
  options.show = show;
  options.cancel_on_signal = true;
  options.health = [&run] { return run.cluster->Health(); };
  return Follow(*run.client, run.job_id, options, console);
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
