// The whole param_store service in one object: store, gRPC server, HTTP port, node session.
#ifndef CAPSTAN_PARAM_STORE_SERVICE_H_
#define CAPSTAN_PARAM_STORE_SERVICE_H_

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "param_store/config.h"
#include "param_store/diagnoser/diagnoser.h"
#include "param_store/exchange_service.h"
#include "param_store/param_store.h"
#include "param_store/shard_metrics.h"
#include "services/host_usage/host_usage.h"
#include "services/http/http_server.h"
#include "services/http/readers.h"
#include "services/metrics/registry.h"
#include "services/metrics/rpc_metrics.h"
#include "services/node_session/node_session.h"
#include "services/server/server.h"
#include "services/sync/mutex.h"
#include "services/upkeep/upkeep_metrics.h"

namespace capstan::param_store {

// Thread-safe.
class Service {
 public:
  // Listens, and dials the coordinator, when it returns. What Server::Start, HttpServer::Start and
  // MakeChannel say.
  static absl::StatusOr<std::unique_ptr<Service>> Start(const Config& config);
  // Tells the coordinator that this shard is about to leave, and waits until no job is left here.
  // Each job continues from the current version, on another shard or once this one is back. Waits
  // at most `limit`, not at all if the coordinator's version has no hand-overs, and not for long if
  // there is no coordinator. Steps continue meanwhile. Call it once, before Shutdown.
  void HandOver(absl::Duration limit) ABSL_LOCKS_EXCLUDED(mu_);
  // Ordered: not ready, streams ended, calls drained, files written, goodbye to the coordinator.
  void Shutdown();
  ~Service();

  // "grpc=unix:... http=..." as printed when listening.
  std::string Addresses() const;

 private:
  explicit Service(const Config& config);

  void Woken() ABSL_LOCKS_EXCLUDED(mu_);
  node::v1::Heartbeat MakeHeartbeat() ABSL_LOCKS_EXCLUDED(mu_);
  // Why a hand-over is over before its time; empty: it is not. `until`: when to look again.
  std::string WhyNot(absl::Duration began, absl::Duration* until) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  int64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
  bool registered_ ABSL_GUARDED_BY(mu_) = false;
  bool hears_leaving_ ABSL_GUARDED_BY(mu_) = false;  // the coordinator of the last registration
  absl::Duration lost_at_ ABSL_GUARDED_BY(mu_);      // !registered_: since then
  absl::Duration leave_by_ ABSL_GUARDED_BY(mu_) = absl::InfiniteDuration();  // Infinite: it stays

  services::MetricsRegistry registry_;
  ShardMetrics shard_metrics_;
  services::RpcMetrics rpc_metrics_;
  services::RpcMetrics client_rpc_metrics_;
  ParamStore store_;
  ExchangeService exchange_;
  services::UpkeepMetrics upkeep_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<services::Readers> readers_;  // of http_
  std::unique_ptr<services::HttpServer> http_;
  services::HostUsage host_usage_;  // of the session's thread
  std::unique_ptr<services::NodeSession> session_;
  std::unique_ptr<Diagnoser> diagnoser_;  // answers over the session
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_SERVICE_H_
