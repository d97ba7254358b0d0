// The whole worker service in one object: node, gRPC server (health), HTTP port, node session.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_SERVICE_H_
#define CAPSTAN_GPU_WORKER_SERVICE_SERVICE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/config.h"
#include "gpu_worker/nvml/gpu_monitor.h"
#include "gpu_worker/service/metrics.h"
#include "gpu_worker/service/worker_node.h"
#include "param_store/diagnoser/diagnoser.h"
#include "services/host_usage/host_usage.h"
#include "services/http/http_server.h"
#include "services/http/readers.h"
#include "services/metrics/registry.h"
#include "services/metrics/rpc_metrics.h"
#include "services/node_session/node_session.h"
#include "services/server/server.h"
#include "services/upkeep/upkeep_metrics.h"

namespace capstan::gpu_worker {

// Thread-safe.
class Service {
 public:
  // Once it returns, it listens and dials the coordinator. `binary` runs the tasks.
  // InvalidArgument: a setting, with its flag. Other errors are those of FindDevices,
  // Server::Start, HttpServer::Start and MakeChannel.
  static absl::StatusOr<std::unique_ptr<Service>> Start(const Config& config,
                                                        const std::string& binary);
  // In order: sets not ready, ends tasks, drains calls, says goodbye to the coordinator.
  void Shutdown();
  ~Service();

  // "grpc=unix:... http=..." for the message after start-up.
  std::string Addresses() const;

 private:
  explicit Service(const Config& config);
  node::v1::Heartbeat MakeHeartbeat();
  // `missing_gpu`: from FindDevices.
  std::unique_ptr<param_store::Diagnoser> MakeDiagnoser(const Config& config,
                                                        const std::string& missing_gpu);
  // Our cards that do not answer, or do not answer any more.
  std::vector<job::v1::DeviceReport> LostDevices() const;

  services::MetricsRegistry registry_;
  WorkerMetrics metrics_;
  services::RpcMetrics rpc_metrics_;
  services::RpcMetrics client_rpc_metrics_;
  services::UpkeepMetrics upkeep_;
  std::unique_ptr<services::Server> server_;
  std::unique_ptr<services::Readers> readers_;  // of http_
  std::unique_ptr<services::HttpServer> http_;
  std::unique_ptr<WorkerNode> node_;
  services::HostUsage host_usage_;  // only used by the session's thread
  std::unique_ptr<services::NodeSession> session_;
  std::unique_ptr<GpuMonitor> gpu_monitor_;            // null: no GPU here; calls the node
  std::unique_ptr<param_store::Diagnoser> diagnoser_;  // answers over the session
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_SERVICE_H_
