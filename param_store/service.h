// The whole param_store service in one object: store, gRPC server, HTTP port, node session.
#ifndef CAPSTAN_PARAM_STORE_SERVICE_H_
#define CAPSTAN_PARAM_STORE_SERVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "param_store/client/diagnoser.h"
#include "param_store/config.h"
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

namespace capstan::param_store {

// Thread-safe.
class Service {
 public:
  // Listens, and dials the coordinator, when it returns. What Server::Start, HttpServer::Start and
  // MakeChannel say.
  static absl::StatusOr<std::unique_ptr<Service>> Start(const Config& config);
  // Ordered: not ready, streams ended, calls drained, files written, goodbye to the coordinator.
  void Shutdown();
  ~Service();

  // "grpc=unix:... http=..." as printed when listening.
  std::string Addresses() const;

 private:
  explicit Service(const Config& config);

  services::MetricsRegistry registry_;
  ShardMetrics shard_metrics_;
  services::RpcMetrics rpc_metrics_;
  services::RpcMetrics client_rpc_metrics_;
  ParamStore store_;
  ExchangeService exchange_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<services::Readers> readers_;  // of http_
  std::unique_ptr<services::HttpServer> http_;
  services::HostUsage host_usage_;  // of the session's thread
  std::unique_ptr<services::NodeSession> session_;
  std::unique_ptr<client::Diagnoser> diagnoser_;  // answers over the session
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_SERVICE_H_
