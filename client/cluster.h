// Runs all services of Capstan on this machine, as children of this process, on Unix-domain sockets
// in a private folder. Every worker offers all cards and CPUs that it finds, and the coordinator
// deals the cards. CAPSTAN_DEVICES=cuda:0 restricts the offer. CAPSTAN_HTTP=127.0.0.1:0 gives every
// service an HTTP port, which --verbose prints.
#ifndef CAPSTAN_CLIENT_CLUSTER_H_
#define CAPSTAN_CLIENT_CLUSTER_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/endpoint/endpoint.h"
#include "services/process/process.h"
#include "services/sync/mutex.h"

namespace capstan::client {

struct ClusterOptions {
  int workers = 1;
  bool cpus_alone = false;  // a job for CPUs needs no search for cards
  int shards = 0;
  bool shared_memory = true;  // between workers and shards
  bool echo = false;          // prints every line of the services to stderr
  std::string job_id;         // the one job that the services are for
  std::string state_dir;      // of the coordinator, absolute; empty: inside the private folder
  std::string look;           // a folder: no job is trained, the coordinator shows its runs
  std::string http;           // with `look`: the address of the coordinator's status page
};

// The services end with this object, and also with this process, however it ends. Thread-safe.
class LocalCluster {
 public:
  // Starts all processes. Does not wait until they have registered, because the coordinator queues
  // the job until then.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> Start(const ClusterOptions& options);
  // Sends SIGTERM to workers, shards and the coordinator in this order, and SIGKILL after 5 s.
  // Removes the private folder.
  ~LocalCluster();

  const services::Endpoint& coordinator() const { return coordinator_; }

  // The address of the coordinator's status page. Empty: not known yet, or there is none.
  std::string http() const ABSL_LOCKS_EXCLUDED(mu_);

  // OK while every service lives. Else names the first service that ended, how, and its last lines.
  absl::Status Health() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    std::string name;
    std::unique_ptr<services::Process> process;
  };

  LocalCluster(const ClusterOptions& options, std::string folder);
  absl::Status Spawn(const std::string& name, absl::string_view binary,
                     std::vector<std::string> args);
  void OnLine(const std::string& name, absl::string_view line) ABSL_LOCKS_EXCLUDED(mu_);
  void OnExit(const std::string& name, const std::string& how) ABSL_LOCKS_EXCLUDED(mu_);

  const ClusterOptions options_;
  const std::string folder_;
  services::Endpoint coordinator_;

  mutable Mutex mu_;
  std::deque<std::string> last_lines_ ABSL_GUARDED_BY(mu_);
  std::string http_ ABSL_GUARDED_BY(mu_);
  std::string ended_ ABSL_GUARDED_BY(mu_);  // the first service that ended by itself, and how
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  services::ProcessSpawner
      spawner_;  // last: its destructor waits for the callbacks, which use all of the above
  std::vector<Member> members_;  // coordinator first; dropped before the spawner
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CLUSTER_H_
