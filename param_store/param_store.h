// All jobs of one param_store process, by the coordinator's orders.
//
// Threads: OnMessage and MakeHeartbeat are called by the node session; FindJob by gRPC. Each job
// that ended is waited for on a thread of its own, so that a disk that hangs holds up no other job.
#ifndef CAPSTAN_PARAM_STORE_PARAM_STORE_H_
#define CAPSTAN_PARAM_STORE_PARAM_STORE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capstan/node/v1/node.pb.h"
#include "exchange/shared/door.h"
#include "exchange/transport/server_stream.h"
#include "param_store/shard_job.h"
#include "param_store/shard_metrics.h"
#include "services/endpoint/endpoint.h"
#include "services/sync/mutex.h"

namespace capstan::param_store {

struct ParamStoreOptions {
  services::Security security;  // towards leads on other nodes
  // To the coordinator's FileService; null: storage_path of every job is a folder that is shared.
  std::shared_ptr<grpc::Channel> files_channel;
  // Absolute folders that the files of a job, and its initial weights, may lie in; none: anywhere. A
  // storage_path that lies in none is not touched here: files go to the coordinator.
  std::vector<std::string> checkpoint_roots;
  std::vector<std::string> data_roots;
  ShardMetrics* metrics = nullptr;  // outlives the store; null: nothing is counted
  bool shared_memory = true;        // with workers and shards of this host
  absl::Duration stuck_after = kStuckAfter;
  // A state in the heartbeat has changed. From any thread; must not wait.
  std::function<void()> on_state;
};

class ParamStore final : public exchange::JobDirectory {
 public:
  explicit ParamStore(ParamStoreOptions options);
  ~ParamStore() override;  // Shutdown

  // Orders that are not for a shard are ignored.
  void OnMessage(const node::v1::ConnectResponse& message) ABSL_LOCKS_EXCLUDED(mu_);
  // Some job has not been ended by the coordinator.
  bool HoldsJobs() const ABSL_LOCKS_EXCLUDED(mu_);
  node::v1::Heartbeat MakeHeartbeat() const ABSL_LOCKS_EXCLUDED(mu_);

  std::shared_ptr<exchange::StreamOwner> FindJob(absl::string_view job_id) override
      ABSL_LOCKS_EXCLUDED(mu_);
  exchange::shared::Door* door() override { return door_.get(); }

  // Ends the streams of all jobs with UNAVAILABLE and waits until what was being written is
  // written. Repeatable; no job is taken afterwards.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  void Start(const node::v1::StartLineage& order) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<ShardJobOptions> OptionsFor(const node::v1::StartLineage& order) const;
  // The job begins with this lineage, except if there is one of its id.
  void Begin(const node::v1::StartLineage& order, ShardJobOptions options)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The job's next lineage, if the order makes sense.
  void Tell(ShardJob& job, const node::v1::StartLineage& order) const;
  void Refuse(const node::v1::StartLineage& order, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::shared_ptr<ShardJob> Find(const std::string& job_id) ABSL_LOCKS_EXCLUDED(mu_);
  // If the one of that id that ended is not through with its files: keeps the order until it is.
  bool Postpone(const node::v1::StartLineage& order) ABSL_LOCKS_EXCLUDED(mu_);
  void End(const std::string& job_id) ABSL_LOCKS_EXCLUDED(mu_);
  // On a thread of `ending_`, as Postponed. Begins the job that was postponed meanwhile.
  void Reap(const std::string& job_id, ShardJob& job) ABSL_LOCKS_EXCLUDED(mu_);
  // nullopt: there is none, and the thread's place in `ending_` is free.
  std::optional<node::v1::StartLineage> Postponed(const std::string& job_id)
      ABSL_LOCKS_EXCLUDED(mu_);

  const ParamStoreOptions options_;
  const std::unique_ptr<exchange::shared::Door> door_;  // null: no shared memory

  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::map<std::string, std::shared_ptr<ShardJob>, std::less<>> jobs_ ABSL_GUARDED_BY(mu_);
  // Jobs that could not be begun, until EndJob.
  std::map<std::string, node::v1::ShardState> refused_ ABSL_GUARDED_BY(mu_);
  // Jobs that ended and whose files or series are still in use. Not reported: the coordinator need
  // not wait for a disk. None begins again meanwhile: two of one id would share log and series.
  std::map<std::string, std::thread> ending_ ABSL_GUARDED_BY(mu_);
  // By job that is ending, the newest order to begin it again.
  std::map<std::string, node::v1::StartLineage> postponed_ ABSL_GUARDED_BY(mu_);
  std::vector<std::thread> reaped_ ABSL_GUARDED_BY(mu_);  // through; to be joined
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_PARAM_STORE_H_
