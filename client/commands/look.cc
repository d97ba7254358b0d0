#include "client/commands/look.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/job_name.h"
#include "client/run_folder.h"
#include "services/clock/clock.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kOpenTimeout = absl::Seconds(30);  // thousands of runs are read
constexpr absl::Duration kOpenLook = absl::Milliseconds(20);

// Where @STEP begins in `job`, or its size. The @ of @last does not begin a step.
size_t AtOfStep(const std::string& job) {
  const size_t at = job.rfind('@');
  const bool none = at == std::string::npos || (at == 0 && job == kLastJob);
  return none ? job.size() : at;
}

// Calls `body` for the one run in `folder`. `job` becomes its id plus `suffix`.
ExitCode WithRun(const Context& context, const std::string& folder, const std::string& suffix,
                 std::string& job, const std::function<ExitCode(JobClient&)>& body) {
  return WithRuns(context, folder, [&](JobClient& client) {
    const auto jobs = client.ListJobs({});
    if (!jobs.ok()) return Report(jobs.status(), context.console);
    if (jobs->empty()) {
      return Report(absl::NotFoundError(absl::StrCat(folder, ": no job was accepted here")),
                    context.console);
    }
    job = absl::StrCat((*jobs)[0].job_id(), suffix);
    return body(client);
  });
}

// --timeout, else the timeout of a variable or a file.
absl::StatusOr<absl::Duration> TimeoutOf(const Context& context) {
  if (context.connect.timeout.has_value()) {
    return ReadDuration("--timeout", *context.connect.timeout);
  }
  const absl::StatusOr<Connection> connection = FindCoordinator(context.connect);
  // Its errors concern a coordinator, and none is called.
  return connection.ok() ? connection->timeout : kDefaultTimeout;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Look>> Look::Open(const std::string& folder, absl::Duration timeout,
                                                 const std::string& http) {
  ClusterOptions options;
  options.workers = 0;
  options.look = folder;
  options.http = http;
  absl::StatusOr<std::unique_ptr<LocalCluster>> cluster = LocalCluster::Start(options);
  if (!cluster.ok()) return absl::InternalError(cluster.status().message());
  auto look = std::make_unique<Look>();
  look->cluster_ = *std::move(cluster);
  Connection connection;
  connection.address = look->cluster_->coordinator();
  connection.timeout = timeout;
  absl::StatusOr<std::unique_ptr<JobClient>> client = JobClient::Connect(connection);
  if (!client.ok()) return client.status();
  look->client_ = *std::move(client);
  const absl::Duration until = MonotonicNow() + kOpenTimeout;
  while (!look->client_->WaitUntilConnected(kOpenLook)) {
    if (absl::Status health = look->cluster_->Health(); !health.ok()) return health;
    if (MonotonicNow() > until) {
      return absl::InternalError(absl::StrCat(folder, ": its runs were not read within ",
                                              absl::FormatDuration(kOpenTimeout)));
    }
  }
  return look;
}

ExitCode WithRuns(const Context& context, const std::string& folder,
                  const std::function<ExitCode(JobClient&)>& body) {
  if (absl::Status runs = CheckRunsIn(folder); !runs.ok()) return Report(runs, context.console);
  const absl::StatusOr<absl::Duration> timeout = TimeoutOf(context);
  if (!timeout.ok()) return Report(timeout.status(), context.console);
  const absl::StatusOr<std::unique_ptr<Look>> look = Look::Open(folder, *timeout);
  if (!look.ok()) return Report(look.status(), context.console);
  return body((*look)->client());
}

ExitCode RefuseFlagsOfRuns(const Context& context) {
  const std::string flag = GivenFlag(context.connect);
  if (flag.empty()) return kExitDone;
  return RefuseFlag(flag, "runs are read from the folder; no coordinator is contacted",
                    context.console);
}

ExitCode WithPlaceOf(const Context& context, std::string& job,
                     const std::function<ExitCode(JobClient&)>& body,
                     const std::string& follow_flag) {
  size_t at = AtOfStep(job);
  // A folder's own name may contain an @.
  if (job.find('/', at) != std::string::npos || (IsRunPath(job) && FindRunFolder(job).ok())) {
    at = job.size();
  }
  const std::string name = job.substr(0, at);
  const std::string suffix = job.substr(at);
  if (IsRunPath(name)) {
    const ExitCode code = RefuseFlagsOfRuns(context);
    if (code != kExitDone) return code;
  } else {
    const absl::StatusOr<Connection> connection = FindCoordinator(context.connect);
    if (name.empty() || !connection.ok() || connection->configured ||
        absl::IsNotFound(FindRunFolder(name).status())) {
      return WithCoordinator(context, body);
    }
  }
  const absl::StatusOr<std::string> folder = FindRunFolder(name);
  if (!folder.ok()) return Report(folder.status(), context.console);
  if (!follow_flag.empty()) {
    return RefuseFlag(follow_flag, "a run in a folder is shown as it is now; nothing new is sent",
                      context.console);
  }
  return WithRun(context, *folder, suffix, job, body);
}

ExitCode WithJobOrRun(const Context& context, const std::string& name,
                      const std::function<ExitCode(JobClient&, const std::string&)>& body,
                      const std::string& follow_flag) {
  std::string place = name;
  return WithPlaceOf(
      context, place,
      [&](JobClient& client) {
        const NamedJob job = NameJob(client, place, context.console);
        return job.code == kExitDone ? body(client, job.id) : job.code;
      },
      follow_flag);
}

}  // namespace capstan::client
