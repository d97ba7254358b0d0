// Calls to the coordinator's JobService.
#ifndef CAPSTAN_CLIENT_JOB_CLIENT_H_
#define CAPSTAN_CLIENT_JOB_CLIENT_H_

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "services/endpoint/endpoint.h"
#include "services/sync/mutex.h"

namespace capstan::client {

// Thread-safe. Every call has a deadline.
class JobClient {
 public:
  static absl::StatusOr<std::unique_ptr<JobClient>> Connect(const services::Endpoint& coordinator,
                                                            const services::Security& security);

  // The id of the job.
  absl::StatusOr<std::string> Submit(const job::v1::JobSpec& spec, const std::string& request_id,
                                     absl::Duration timeout);
  absl::StatusOr<job::v1::Job> Get(const std::string& job_id, absl::Duration timeout);
  absl::Status Cancel(const std::string& job_id, absl::Duration timeout);
  // The stored log lines of at least `warning`, oldest first.
  absl::StatusOr<std::vector<job::v1::LogLine>> Problems(const std::string& job_id,
                                                         absl::Duration timeout);

  job::v1::JobService::Stub& stub() { return *stub_; }

 private:
  explicit JobClient(std::unique_ptr<job::v1::JobService::Stub> stub) : stub_(std::move(stub)) {}

  const std::unique_ptr<job::v1::JobService::Stub> stub_;
};

// Follows one job in a thread of its own and keeps its newest state. Reconnects until it is
// destroyed.
class JobWatcher {
 public:
  JobWatcher(JobClient& client, std::string job_id);
  ~JobWatcher();

  struct Update {
    std::optional<job::v1::Job> job;  // the newest; not set before the first
    int64_t sequence = 0;             // grows with every state that came
    absl::Status last_error;          // of the last try, where the stream is broken
  };
  // Waits for a state newer than `seen`, at most `timeout`, and returns the newest in any case.
  Update Wait(int64_t seen, absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Follow();

  JobClient& client_;
  const std::string job_id_;
  Mutex mu_;
  CondVar changed_;
  Update update_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mu_) = nullptr;  // the stream under way, to cancel it
  std::thread thread_;
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_CLIENT_H_
