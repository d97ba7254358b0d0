#include "client/local_run.h"

#include <algorithm>
#include <utility>

#include "client/coordinator_address.h"

namespace capstan::client {

absl::StatusOr<LocalRun> StartLocalRun(const job::v1::JobSpec& spec,
                                       const job::v1::ResolvedSpec& plan, const Console& console) {
  ClusterOptions options;
  options.workers = plan.num_workers();
  options.devices_per_worker = plan.devices_per_worker();
  for (const int32_t device : plan.spec().resources().devices()) {
    options.devices_per_worker = std::max(options.devices_per_worker, device + 1);
  }
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

}  // namespace capstan::client
