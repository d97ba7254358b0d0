#include "client/job_client.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "client/exit_codes.h"
#include "services/channel/channel.h"
#include "services/status/status.h"

namespace capstan::client {

absl::StatusOr<std::unique_ptr<JobClient>> JobClient::Connect(const services::Endpoint& coordinator,
                                                              const services::Security& security) {
  services::ChannelOptions options;
  options.peer = coordinator;
  options.security = security;
  auto channel = services::MakeChannel(options);
  if (!channel.ok()) return channel.status();
  return std::unique_ptr<JobClient>(new JobClient(job::v1::JobService::NewStub(*channel)));
}

absl::StatusOr<std::string> JobClient::Submit(const job::v1::JobSpec& spec,
                                              const std::string& request_id,
                                              absl::Duration timeout) {
  job::v1::SubmitJobRequest request;
  request.set_request_id(request_id);
  *request.mutable_spec() = spec;
  job::v1::SubmitJobResponse response;
  const auto context = services::NewContext(timeout);
  if (const grpc::Status status = stub_->SubmitJob(context.get(), request, &response);
      !status.ok()) {
    return services::FromGrpcStatus(status);
  }
  return response.job_id();
}

absl::StatusOr<job::v1::Job> JobClient::Get(const std::string& job_id, absl::Duration timeout) {
  job::v1::GetJobRequest request;
  request.set_job_id(job_id);
  job::v1::GetJobResponse response;
  const auto context = services::NewContext(timeout);
  if (const grpc::Status status = stub_->GetJob(context.get(), request, &response); !status.ok()) {
    return services::FromGrpcStatus(status);
  }
  return std::move(*response.mutable_job());
}

absl::Status JobClient::Cancel(const std::string& job_id, absl::Duration timeout) {
  job::v1::CancelJobRequest request;
  request.set_job_id(job_id);
  job::v1::CancelJobResponse response;
  const auto context = services::NewContext(timeout);
  return services::FromGrpcStatus(stub_->CancelJob(context.get(), request, &response));
}

absl::StatusOr<std::vector<job::v1::LogLine>> JobClient::Problems(const std::string& job_id,
                                                                  absl::Duration timeout) {
  job::v1::StreamLogsRequest request;
  request.set_job_id(job_id);
  const auto context = services::NewContext(timeout);
  const auto reader = stub_->StreamLogs(context.get(), request);
  std::vector<job::v1::LogLine> lines;
  job::v1::StreamLogsResponse response;
  while (reader->Read(&response)) {
    const std::string& level = response.line().level();
    if (level == "warning" || level == "error") lines.push_back(response.line());
  }
  if (const grpc::Status status = reader->Finish(); !status.ok())
    return services::FromGrpcStatus(status);
  return lines;
}

JobWatcher::JobWatcher(JobClient& client, std::string job_id)
    : client_(client), job_id_(std::move(job_id)), thread_([this] { Follow(); }) {}

JobWatcher::~JobWatcher() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    if (call_ != nullptr) call_->TryCancel();
    changed_.NotifyAll();
  }
  thread_.join();
}

JobWatcher::Update JobWatcher::Wait(int64_t seen, absl::Duration timeout) {
  MutexLock lock(mu_);
  if (update_.sequence <= seen) changed_.WaitWithTimeout(mu_, timeout);
  return update_;
}

void JobWatcher::Follow() {
  while (true) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    {
      MutexLock lock(mu_);
      if (stopping_) return;
      call_ = &context;
    }
    job::v1::WatchJobRequest request;
    request.set_job_id(job_id_);
    const auto reader = client_.stub().WatchJob(&context, request);
    job::v1::WatchJobResponse response;
    bool terminal = false;
    while (reader->Read(&response)) {
      terminal = IsTerminal(response.job().state());
      MutexLock lock(mu_);
      update_.job = std::move(*response.mutable_job());
      ++update_.sequence;
      changed_.NotifyAll();
    }
    const absl::Status status = services::FromGrpcStatus(reader->Finish());
    MutexLock lock(mu_);
    call_ = nullptr;
    update_.last_error = status;
    if (terminal || stopping_ || status.code() == absl::StatusCode::kNotFound) {
      changed_.NotifyAll();
      return;
    }
    changed_.WaitWithTimeout(mu_, absl::Milliseconds(200));  // before the next try
  }
}

}  // namespace capstan::client
