// The services of one launch: the coordinator on this host, and shards and workers by a launcher.
#ifndef CAPSTAN_CLIENT_LAUNCH_LAUNCHED_CLUSTER_H_
#define CAPSTAN_CLIENT_LAUNCH_LAUNCHED_CLUSTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/coordinator_address.h"
#include "client/launch/authority.h"
#include "client/launch/bundle.h"
#include "client/launch/launchers.h"
#include "services/process/process.h"
#include "services/sync/mutex.h"

namespace capstan::client {

struct ClusterSize {
  int shards = 0;
  int workers = 1;
};

// Every service is the child of a node (node.h), which ends when this process ends, however it
// ends. Thread-safe.
class LaunchedCluster {
 public:
  // Is called with each line of the services and of the launcher, and with its source: "w0 hostb"
  // or "mpirun". Called from a thread of this class, one call at a time.
  using Print = std::function<void(absl::string_view who, absl::string_view line)>;

  // Starts all processes and sends each its bundle. Blocks until every rank has said where it is,
  // but not until the services have registered, since the coordinator queues the job. Cancelled: a
  // signal arrived. Internal: a launcher or a rank could not be started or did not answer; names it
  // with its host.
  static absl::StatusOr<std::unique_ptr<LaunchedCluster>> Start(const LaunchOptions& options,
                                                                const ClusterSize& size,
                                                                Print print);
  // Ends the services and the launcher: asks them first, then kills them.
  ~LaunchedCluster();

  const Connection& connection() const { return connection_; }

  // OK while the job can continue, that is, while the coordinator, every shard and a worker live.
  // Else says which process ended, how, and its last lines.
  absl::Status Health() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Rank {
    NodeBundle bundle;
    std::string host;  // "": not known yet
    bool ended = false;
    std::string how;
  };
  // A process of this host: a node, or the launcher of several.
  struct Member {
    int first_rank = 0;
    int ranks = 1;
    int input = -1;  // write end of its standard input; -1: it has no input
    std::unique_ptr<services::Process> process;
  };

  LaunchedCluster(LaunchOptions options, const ClusterSize& size, Print print);
  absl::Status StartAll();
  absl::Status StartCoordinator() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status HearFromAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EquipAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Spawn(const NodeCommand& command, bool with_input, bool only_addresses,
                     std::vector<std::string> env);
  // Waits for `done` on mu_, at most `timeout`. False: timed out. Cancelled: a signal arrived.
  absl::StatusOr<bool> WaitUntil(absl::Duration timeout, const std::function<bool()>& done)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SendBundle(int rank) ABSL_LOCKS_EXCLUDED(mu_);
  void OnLine(const NodeCommand& command, absl::string_view line) ABSL_LOCKS_EXCLUDED(mu_);
  void OnExit(const NodeCommand& command, bool only_addresses, const std::string& how)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Show(const std::string& who, absl::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string LastLines() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int CoordinatorRank() const { return size_.shards + size_.workers; }
  void CloseInputs(bool coordinator);
  bool WaitForMembers(absl::Duration timeout);

  const LaunchOptions options_;
  const ClusterSize size_;
  const Print print_;
  std::unique_ptr<LaunchAuthority> authority_;
  Connection connection_;
  std::string coordinator_;  // HOST:PORT
  std::string folder_;       // of the coordinator's node, which removes it, and of our own secrets
  bool folder_is_handed_over_ = false;

  mutable Mutex mu_;
  std::vector<Rank> ranks_ ABSL_GUARDED_BY(mu_);  // the coordinator last
  std::vector<std::string> last_lines_ ABSL_GUARDED_BY(mu_);
  std::string listening_ ABSL_GUARDED_BY(mu_);  // the coordinator's address, once it has printed it
  bool addresses_done_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  services::ProcessSpawner spawner_;  // its end waits for the callbacks, which use all of the above
  std::vector<Member> members_;       // the coordinator first; dropped before the spawner
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_LAUNCHED_CLUSTER_H_
