// The services of one launch: the coordinator on this host, shards and workers by a launcher.
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

// Every service is the child of a node (node.h) that ends when this process does, however it ends.
// Thread-safe.
class LaunchedCluster {
 public:
  // Gets each line of the services and of the launcher, with who said it: "w0 hostb", "mpirun". In
  // a thread of ours, one at a time.
  using Print = std::function<void(absl::string_view who, absl::string_view line)>;

  // Starts all and tells each what it is; the coordinator's queue waits for them to register.
  // Blocks until every rank has said where it is. Cancelled: a signal came. Internal: a launcher or
  // a rank that could not be started, or did not answer, named with its host.
  static absl::StatusOr<std::unique_ptr<LaunchedCluster>> Start(const LaunchOptions& options,
                                                                const ClusterSize& size,
                                                                Print print);
  // Ends the services and the launcher, politely first.
  ~LaunchedCluster();

  const Connection& connection() const { return connection_; }

  // OK while the job can go on: the coordinator, every shard and a worker are there. Else who ended
  // and how, with the last lines.
  absl::Status Health() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Rank {
    NodeBundle bundle;
    std::string host;  // "": not heard of yet
    bool ended = false;
    std::string how;
  };
  // A process of ours: a node, or a launcher of several.
  struct Member {
    int first_rank = 0;
    int ranks = 1;
    int input = -1;  // write end of its standard input; -1: it has none
    std::unique_ptr<services::Process> process;
  };

  LaunchedCluster(LaunchOptions options, const ClusterSize& size, Print print);
  absl::Status StartAll();
  absl::Status StartCoordinator() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status HearFromAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EquipAll() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Spawn(const NodeCommand& command, bool with_input, bool only_addresses,
                     std::vector<std::string> env);
  // Waits for `done` on mu_, at most `timeout`; false: not within it. Cancelled: a signal came.
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
  std::string listening_ ABSL_GUARDED_BY(mu_);  // the coordinator's address, once it has said it
  bool addresses_done_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;

  services::ProcessSpawner spawner_;  // its end waits for the callbacks, which use all of the above
  std::vector<Member> members_;       // the coordinator first; dropped before the spawner
};

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_LAUNCHED_CLUSTER_H_
