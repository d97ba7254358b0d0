// The whole coordinator in one object: core, strand, services and ports.
#ifndef CAPSTAN_COORDINATOR_SERVER_H_
#define CAPSTAN_COORDINATOR_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/admin_service.h"
#include "coordinator/backup_service.h"
#include "coordinator/checkpoint_service.h"
#include "coordinator/config.h"
#include "coordinator/coordinator.h"
#include "coordinator/file_keys.h"
#include "coordinator/file_service.h"
#include "coordinator/job_service.h"
#include "coordinator/journal/sqlite_journal.h"
#include "coordinator/metrics.h"
#include "coordinator/node_service.h"
#include "coordinator/page_server.h"
#include "coordinator/path_policy.h"
#include "services/http/http_server.h"
#include "services/metrics/registry.h"
#include "services/metrics/rpc_metrics.h"
#include "services/server/server.h"
#include "services/upkeep/upkeep_metrics.h"

namespace capstan::coordinator {

class CoordinatorServer {
 public:
  // Serves when it returns, with the jobs of the state folder. `on_fatal` is called if the journal
  // has failed (which is logged): the core's state may not be told any more, so the process must
  // end at once. InvalidArgument and other codes name a flag, a folder or address that cannot be
  // used, or a journal that another coordinator holds or that is damaged.
  static absl::StatusOr<std::unique_ptr<CoordinatorServer>> Start(const Config& config,
                                                                  std::function<void()> on_fatal);
  ~CoordinatorServer();  // Shutdown()

  // Sets health to NOT_SERVING, ends streams, drains calls, finishes the manifest in progress and
  // closes ports. Idempotent. False: work on a hung disk did not end within kFilePatience. It
  // refers to this object, whose destructor would wait for it, so the process must end without it.
  bool Shutdown();
  static constexpr absl::Duration kFilePatience = absl::Seconds(5);

  const services::Endpoint& grpc_endpoint() const { return server_->endpoint(); }
  std::string http_endpoint() const;  // "off" without one
  services::MetricsRegistry& registry() { return registry_; }

 private:
  CoordinatorServer(const Config& config, const std::string& state_dir, PathPolicy policy,
                    FileKeys keys, std::unique_ptr<SqliteJournal> journal,
                    std::function<void()> on_fatal);
  services::HttpResponse ServiceDiscovery();
  // Strand only: retries until the secret that did not fit on a full disk is durable.
  void SaveFileKeys();
  // The rest of kFilePatience, counted from the first wait for work on files.
  absl::Duration FilePatience();

  services::MetricsRegistry registry_;
  CoordinatorMetrics metrics_;
  services::RpcMetrics rpc_metrics_;
  const PathPolicy policy_;
  services::UpkeepMetrics upkeep_;
  const std::unique_ptr<SqliteJournal> journal_;
  Coordinator coordinator_;
  JobServiceImpl job_service_;
  AdminServiceImpl admin_service_;
  NodeServiceImpl node_service_;
  const FileKeys file_keys_;
  FileServiceImpl file_service_;
  CheckpointServiceImpl checkpoint_service_;
  BackupServiceImpl backup_service_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<PageServer> page_;
  std::unique_ptr<services::HttpServer> http_;
  bool files_done_ = true;                                    // set by the stop hooks
  absl::Duration files_deadline_ = absl::InfiniteDuration();  // of the stop hooks
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_SERVER_H_
