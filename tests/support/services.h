// The real services as children of a test, on Unix sockets in a private folder. If the test asks
// for faults, each shard is behind a proxy.
#ifndef CAPSTAN_TESTS_SUPPORT_SERVICES_H_
#define CAPSTAN_TESTS_SUPPORT_SERVICES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/job/v1/job_service.grpc.pb.h"
#include "grpcpp/client_context.h"
#include "services/endpoint/endpoint.h"
#include "services/process/process.h"
#include "services/sync/mutex.h"
#include "tests/support/exchange_proxy.h"

namespace capstan::tests {

struct ClusterOptions {
  int workers = 1;
  int devices_per_worker = 1;  // CPU devices
  int shards = 0;
  // Workers, and shards on their way to the lead, reach each shard through a proxy with these
  // faults. Shard i draws from seed + i.
  std::optional<ProxyFaults> faults;
  uint64_t seed = 0;
};

// Uses the binaries of the test's own build, in CAPSTAN_TEST_BIN. Thread-safe.
class ServiceCluster {
 public:
  static absl::StatusOr<std::unique_ptr<ServiceCluster>> Start(const ClusterOptions& options);
  // Ends workers, shards, proxies and the coordinator in this order. Removes the private folder.
  ~ServiceCluster();

  // Returns the id of the job.
  absl::StatusOr<std::string> Submit(const job::v1::JobSpec& spec);
  // Waits until `enough` is true for the job, or without it until the job has ended in any state.
  // DeadlineExceeded: it took longer than `limit`; the message has the job's state, step, whom it
  // waits for, and what each member reports. FailedPrecondition: the job has ended, and `enough`
  // was never true. Internal: a service ended by itself; the message has its last lines. One call
  // at a time.
  absl::StatusOr<job::v1::Job> WaitFor(const std::string& job_id, absl::Duration limit,
                                       const std::function<bool(const job::v1::Job&)>& enough = {})
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<job::v1::Job> Get(const std::string& job_id);
  absl::Status Cancel(const std::string& job_id);
  // Submit, then WaitFor the job's end.
  absl::StatusOr<job::v1::Job> RunJob(const job::v1::JobSpec& spec, absl::Duration limit);

  // Of all proxies together.
  ProxyCounters proxy_counters() const;
  // The latest lines of the services, for the output of a failing test.
  std::string last_lines() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    std::string name;
    std::unique_ptr<services::Process> process;
  };

  explicit ServiceCluster(std::string folder) : folder_(std::move(folder)) {}
  services::Endpoint Socket(absl::string_view name) const;
  absl::Status Spawn(const std::string& name, absl::string_view binary,
                     std::vector<std::string> args);
  void OnLine(const std::string& name, absl::string_view line) ABSL_LOCKS_EXCLUDED(mu_);
  void OnExit(const std::string& name, const std::string& how) ABSL_LOCKS_EXCLUDED(mu_);

  const std::string folder_;
  std::unique_ptr<job::v1::JobService::Stub> stub_;
  std::vector<std::unique_ptr<ExchangeProxy>> proxies_;
  int jobs_ = 0;

  mutable Mutex mu_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mu_);
  std::string ended_ ABSL_GUARDED_BY(mu_);  // the first service that ended by itself, and how
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  grpc::ClientContext* watch_ ABSL_GUARDED_BY(mu_) = nullptr;  // cancelled when a service ends

  services::ProcessSpawner spawner_;  // its callbacks use all of the above
  std::vector<Member> members_;       // coordinator first
};

// "state RUNNING, step 812 of 2000: <message>; rank 1 (node w1): RUNNING at step 812 ...".
std::string DescribeJob(const job::v1::Job& job);

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_SERVICES_H_
