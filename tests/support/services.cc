#include "tests/support/services.h"

#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/files/files.h"
#include "services/status/status.h"

namespace capstan::tests {
namespace {

constexpr size_t kKeptLines = 80;
constexpr absl::Duration kCallTimeout = absl::Seconds(20);  // the coordinator may still be starting
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

void DescribeMembers(absl::string_view what,
                     const google::protobuf::RepeatedPtrField<job::v1::Member>& members,
                     std::string& out) {
  for (const job::v1::Member& member : members) {
    absl::StrAppend(&out, "; ", what, " ", member.index(), " (node ", member.node(),
                    "): ", member.state(), " at step ", member.step());
    if (!member.message().empty()) absl::StrAppend(&out, ", ", member.message());
  }
}

}  // namespace

std::string DescribeJob(const job::v1::Job& job) {
  std::string out = absl::StrCat("job ", job.job_id(), ": ", common::v1::JobState_Name(job.state()),
                                 " ", job.reason(), ", step ", job.progress().step(), " of ",
                                 job.progress().total_steps(), ": ", job.message());
  DescribeMembers("rank", job.workers(), out);
  DescribeMembers("shard", job.shards(), out);
  return out;
}

absl::StatusOr<std::unique_ptr<ServiceCluster>> ServiceCluster::Start(
    const ClusterOptions& options) {
  absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-test");
  if (!folder.ok()) return folder.status();
  std::unique_ptr<ServiceCluster> cluster(new ServiceCluster(*std::move(folder)));
  const std::string coordinator = cluster->Socket("c").ToString();
  const auto args_of = [&](const std::string& name, std::vector<std::string> more) {
    std::vector<std::string> args = {"--listen", cluster->Socket(name).ToString(), "--http", "off"};
    args.insert(args.end(), more.begin(), more.end());
    return args;
  };
  const auto node_args = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(), {"--coordinator", coordinator, "--node", name});
    return args_of(name, std::move(more));
  };

  absl::Status status = cluster->Spawn(
      "c", "capstan_coordinator",
      args_of("c", {"--state-dir", cluster->folder_ + "/state", "--data-root", "file:///",
                    "--checkpoint-root", "file:///", "--heartbeat", "200ms"}));
  for (int i = 0; i < options.shards && status.ok(); ++i) {
    const std::string name = absl::StrCat("s", i);
    std::vector<std::string> more;
    if (options.faults.has_value()) {
      ProxyOptions proxy_options;
      proxy_options.listen = cluster->Socket(absl::StrCat("p", i));
      proxy_options.target = cluster->Socket(name);
      proxy_options.seed = options.seed + static_cast<uint64_t>(i);
      proxy_options.faults = *options.faults;
      auto proxy = ExchangeProxy::Start(proxy_options);
      if (!proxy.ok()) return proxy.status();
      cluster->proxies_.push_back(*std::move(proxy));
      more = {"--advertise", proxy_options.listen.ToString()};
    }
    status = cluster->Spawn(name, "capstan_param_store", node_args(name, std::move(more)));
  }
  const std::vector<std::string> devices(options.devices_per_worker, "cpu");
  for (int i = 0; i < options.workers && status.ok(); ++i) {
    const std::string name = absl::StrCat("w", i);
    status = cluster->Spawn(name, "capstan_gpu_worker",
                            node_args(name, {"--devices", absl::StrJoin(devices, ",")}));
  }
  if (!status.ok()) return status;

  services::ChannelOptions channel_options;
  channel_options.peer = cluster->Socket("c");
  auto channel = services::MakeChannel(channel_options);
  if (!channel.ok()) return channel.status();
  cluster->stub_ = job::v1::JobService::NewStub(*std::move(channel));
  return cluster;
}

ServiceCluster::~ServiceCluster() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    member->process->Kill(SIGTERM);
  }
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if (!member->process->WaitFor(kStopTimeout).has_value()) member->process->Kill(SIGKILL);
  }
  members_.clear();
  proxies_.clear();
  (void)services::RemoveTree("/tmp", folder_);  // a leftover does not fail the test
}

services::Endpoint ServiceCluster::Socket(absl::string_view name) const {
  services::Endpoint endpoint;
  endpoint.kind = services::Endpoint::Kind::kUnix;
  endpoint.path = absl::StrCat(folder_, "/", name, ".sock");
  return endpoint;
}

absl::Status ServiceCluster::Spawn(const std::string& name, absl::string_view binary,
                                   std::vector<std::string> args) {
  services::ProcessOptions options;
  options.binary = absl::StrCat(CAPSTAN_TEST_BIN, "/", binary);
  options.args = std::move(args);
  options.on_line = [this, name](services::OutputStream, absl::string_view line) {
    OnLine(name, line);
  };
  options.on_exit = [this, name](const services::ExitStatus& status) {
    OnExit(name, status.ToString());
  };
  auto process = spawner_.Spawn(std::move(options));
  if (!process.ok()) return process.status();
  members_.push_back({name, *std::move(process)});
  return absl::OkStatus();
}

void ServiceCluster::OnLine(const std::string& name, absl::string_view line) {
  MutexLock lock(mu_);
  lines_.push_back(absl::StrCat("[", name, "] ", line, "\n"));
  if (lines_.size() > kKeptLines) lines_.pop_front();
}

void ServiceCluster::OnExit(const std::string& name, const std::string& how) {
  MutexLock lock(mu_);
  if (stopping_ || !ended_.empty()) return;
  ended_ = absl::StrCat("the service ", name, " ended with ", how);
  if (watch_ != nullptr) watch_->TryCancel();
}

absl::StatusOr<std::string> ServiceCluster::Submit(const job::v1::JobSpec& spec) {
  job::v1::SubmitJobRequest request;
  request.set_request_id(absl::StrCat("test-", jobs_++));
  *request.mutable_spec() = spec;
  job::v1::SubmitJobResponse response;
  const auto context = services::NewContext(kCallTimeout);
  const absl::Status status =
      services::FromGrpcStatus(stub_->SubmitJob(context.get(), request, &response));
  if (status.ok()) return response.job_id();
  return absl::Status(status.code(),
                      absl::StrCat("SubmitJob: ", status.message(), "\n", last_lines()));
}

absl::StatusOr<job::v1::Job> ServiceCluster::WaitFor(
    const std::string& job_id, absl::Duration limit,
    const std::function<bool(const job::v1::Job&)>& enough) {
  const auto context = services::NewContext(limit);
  {
    MutexLock lock(mu_);
    watch_ = context.get();
    if (!ended_.empty()) context->TryCancel();
  }
  job::v1::WatchJobRequest request;
  request.set_job_id(job_id);
  const auto reader = stub_->WatchJob(context.get(), request);
  job::v1::Job job;
  job::v1::WatchJobResponse response;
  bool found = false;
  while (!found && reader->Read(&response)) {
    job.Swap(response.mutable_job());
    found = enough && enough(job);
  }
  if (found) context->TryCancel();
  absl::Status status = services::FromGrpcStatus(reader->Finish());
  MutexLock lock(mu_);
  watch_ = nullptr;
  if (found || (status.ok() && !enough)) return job;
  if (!ended_.empty()) {
    status = absl::InternalError(ended_);
  } else if (status.ok()) {
    status = absl::FailedPreconditionError("the job has ended");
  }
  return absl::Status(status.code(),
                      absl::StrCat(status.message(), "; limit ", absl::FormatDuration(limit), "; ",
                                   DescribeJob(job), "\n", absl::StrJoin(lines_, "")));
}

absl::StatusOr<job::v1::Job> ServiceCluster::Get(const std::string& job_id) {
  job::v1::GetJobRequest request;
  request.set_job_id(job_id);
  job::v1::GetJobResponse response;
  const auto context = services::NewContext(kCallTimeout);
  const absl::Status status =
      services::FromGrpcStatus(stub_->GetJob(context.get(), request, &response));
  if (!status.ok()) return status;
  return response.job();
}

absl::Status ServiceCluster::Cancel(const std::string& job_id) {
  job::v1::CancelJobRequest request;
  request.set_job_id(job_id);
  job::v1::CancelJobResponse response;
  const auto context = services::NewContext(kCallTimeout);
  return services::FromGrpcStatus(stub_->CancelJob(context.get(), request, &response));
}

absl::StatusOr<job::v1::Job> ServiceCluster::RunJob(const job::v1::JobSpec& spec,
                                                    absl::Duration limit) {
  const absl::StatusOr<std::string> job_id = Submit(spec);
  if (!job_id.ok()) return job_id.status();
  return WaitFor(*job_id, limit);
}

ProxyCounters ServiceCluster::proxy_counters() const {
  ProxyCounters sum;
  for (const auto& proxy : proxies_) sum += proxy->counters();
  return sum;
}

std::string ServiceCluster::last_lines() const {
  MutexLock lock(mu_);
  return absl::StrJoin(lines_, "");
}

}  // namespace capstan::tests
