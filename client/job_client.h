// Calls to the coordinator's JobService, AdminService, CheckpointService and BackupService.
#ifndef CAPSTAN_CLIENT_JOB_CLIENT_H_
#define CAPSTAN_CLIENT_JOB_CLIENT_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/job/v1/admin_service.grpc.pb.h"
#include "capstan/job/v1/backup_service.grpc.pb.h"
#include "capstan/job/v1/checkpoint_service.grpc.pb.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "client/coordinator_address.h"
#include "services/channel/channel.h"
#include "services/status/status.h"
#include "services/sync/mutex.h"

namespace capstan::client {

// 128 random bits for SubmitJobRequest, so that no other request has the same id.
std::string NewRequestId();

// Thread-safe. Every call has the connection's timeout.
class JobClient {
 public:
  using Stub = job::v1::JobService::Stub;
  using AdminStub = job::v1::AdminService::Stub;

  static absl::StatusOr<std::unique_ptr<JobClient>> Connect(const Connection& connection);

  // False: the coordinator does not answer yet.
  bool WaitUntilConnected(absl::Duration timeout);
  // Like WaitUntilConnected, with the connection's timeout at most. After half a second, and then
  // every 2 s, it looks for the reason of the wait. It ends early if nothing listens at the address
  // or if TLS does not fit. `patience` is called once if a second has passed. Unavailable: a
  // sentence with the address and what the handshake said.
  absl::Status AwaitConnection(
      const Connection& connection, const std::function<void()>& patience = [] {});

  // Makes a unary call: client.Call(&JobClient::Stub::GetJob, request).
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                             Response*),
                                const Request& request) {
    return CallOn(*stub_, method, request);
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (AdminStub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                                const Request& request) {
    return CallOn(*admin_, method, request);
  }

  // Reads all pages, up to `request.limit` jobs.
  absl::StatusOr<std::vector<job::v1::Job>> ListJobs(job::v1::ListJobsRequest request);
  absl::StatusOr<job::v1::ListNodesResponse> ListNodes();
  absl::StatusOr<job::v1::Job> Get(const std::string& job_id);
  // The stored log lines of level `warning` and above, oldest first.
  absl::StatusOr<std::vector<job::v1::LogLine>> Problems(const std::string& job_id);

  Stub& stub() { return *stub_; }
  job::v1::CheckpointService::Stub& checkpoints() { return *checkpoints_; }
  // The same service for DownloadCheckpoint. Its callers retry by themselves: gRPC's retries would
  // use up a call's time and hide the server's message.
  job::v1::CheckpointService::Stub& downloads() { return *downloads_; }
  job::v1::BackupService::Stub& backups() { return *backups_; }
  absl::Duration timeout() const { return timeout_; }
  // The name in our certificate, which owns the jobs that we submit. Empty over a Unix socket or in
  // plaintext, where there is no client certificate.
  const std::string& owner() const { return owner_; }

 private:
  JobClient(std::shared_ptr<grpc::Channel> channel, const std::shared_ptr<grpc::Channel>& bulk,
            absl::Duration timeout, std::string owner)
      : channel_(std::move(channel)),
        stub_(job::v1::JobService::NewStub(channel_)),
        admin_(job::v1::AdminService::NewStub(channel_)),
        checkpoints_(job::v1::CheckpointService::NewStub(channel_)),
        downloads_(job::v1::CheckpointService::NewStub(bulk)),
        backups_(job::v1::BackupService::NewStub(bulk)),
        timeout_(timeout),
        owner_(std::move(owner)) {}

  template <typename AnyStub, typename Request, typename Response>
  absl::StatusOr<Response> CallOn(AnyStub& stub,
                                  grpc::Status (AnyStub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                                  const Request& request) {
    Response response;
    const auto context = services::NewContext(timeout_);
    const grpc::Status status = (stub.*method)(context.get(), request, &response);
    if (!status.ok()) return services::FromGrpcStatus(status);
    return response;
  }

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Stub> stub_;
  const std::unique_ptr<AdminStub> admin_;
  const std::unique_ptr<job::v1::CheckpointService::Stub> checkpoints_, downloads_;
  const std::unique_ptr<job::v1::BackupService::Stub> backups_;
  const absl::Duration timeout_;
  const std::string owner_;
};

// Follows one job in a thread of its own and keeps its newest state. Reconnects until it is
// destroyed.
class JobWatcher {
 public:
  JobWatcher(JobClient& client, std::string job_id, absl::Duration min_interval);
  ~JobWatcher();

  struct Update {
    std::optional<job::v1::Job> job;  // the newest; not set before the first state arrives
    int64_t sequence = 0;             // grows with every state that arrives
    absl::Status last_error;          // of the last try, if the stream is broken
    bool given_up = false;            // last_error is permanent
    absl::Duration silent;            // since the stream broke; 0 while it is up
  };
  // Waits for a state newer than `seen`, at most `timeout`. Returns the newest state in any case.
  Update Wait(int64_t seen, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Follow();

  JobClient& client_;
  const std::string job_id_;
  const absl::Duration min_interval_;
  Mutex mu_;
  CondVar changed_;
  Update update_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Duration> broken_since_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // the open stream, for TryCancel
  std::thread thread_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_CLIENT_H_
