#include "gpu_worker/service/service.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpu_worker/service/devices.h"
#include "grpcpp/channel.h"
#include "services/channel/channel.h"
#include "services/endpoint/endpoint.h"
#include "services/logging/log.h"
#include "services/version/version.h"

namespace capstan::gpu_worker {

using services::Log;

constexpr size_t kMaxNoGpuBytes = 1000;  // limit of a registration

Service::Service(const Config& config)
    : registry_("gpu_worker"),
      metrics_(registry_),
      rpc_metrics_(registry_, {}),
      client_rpc_metrics_(registry_, {node::v1::NodeService::service_full_name()},
                          services::RpcMetrics::Side::kClient),
      upkeep_(registry_, services::RootFolders(config.checkpoint_roots, config.data_roots),
              config.common.security) {}

absl::StatusOr<std::unique_ptr<Service>> Service::Start(const Config& config,
                                                        const std::string& binary) {
  if (absl::Status status = config.Check(); !status.ok()) return status;
  auto resolved = config.common.Apply();
  if (!resolved.ok()) return resolved.status();
  auto coordinator = services::ParseEndpoint(config.coordinator);
  if (!coordinator.ok()) return coordinator.status();
  auto devices = FindDevices(config.devices);
  if (!devices.ok()) return devices.status();

  std::unique_ptr<Service> service(new Service(config));
  Service* const self = service.get();
  services::ChannelOptions dial;
  dial.peer = *coordinator;
  dial.security = config.common.security;
  dial.retry = false;  // the session itself dials again
  dial.interceptors = {[self] { return self->client_rpc_metrics_.MakeClientInterceptorFactory(); }};
  auto channel = services::MakeChannel(dial);
  if (!channel.ok()) return channel.status();

  services::ServerOptions listen;
  listen.listen = resolved->listen;
  listen.security = config.common.security;
  listen.admin_socket = config.common.admin_socket;
  listen.interceptors = {[self] { return self->rpc_metrics_.MakeInterceptorFactory(); }};
  auto server = services::Server::Start(listen, {});
  if (!server.ok()) return server.status();
  service->server_ = *std::move(server);

  if (resolved->http.has_value()) {
    auto readers = services::Readers::Create(config.common.security);
    if (!readers.ok()) return readers.status();
    service->readers_ = *std::move(readers);
    services::HttpOptions http;
    http.listen = *resolved->http;
    http.names = config.common.http_hosts;
    http.security = config.common.security;
    http.routes["/metrics"] = service->readers_->ForMetrics(
        services::MetricsHandler(self->upkeep_.Scraper()), config.common.open_metrics, http.listen);
    http.ready = [self] { return self->server_->ready(); };
    auto started = services::HttpServer::Start(std::move(http));
    if (!started.ok()) return started.status();
    service->http_ = *std::move(started);
  }

  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  WorkerNodeOptions node;
  node.binary = binary;
  node.host = host;
  node.cpu_threads = static_cast<int>(config.cpu_threads);
  node.security = config.common.security;
  node.coordinator = config.coordinator;
  node.data_roots = config.data_roots;
  node.checkpoint_roots = config.checkpoint_roots;
  node.log_level = config.common.log_level;
  services::NodeSessionOptions options;
  options.channel = *std::move(channel);
  node::v1::Register& registration = options.registration;
  registration.set_name(config.node);
  registration.set_role(common::v1::ROLE_WORKER);
  registration.set_version(std::string(Version()));
  registration.set_host(host);
  registration.set_pid(getpid());
  if (service->http_ != nullptr) registration.set_http_url(service->http_->url());
  registration.set_no_gpu(devices->no_gpu.substr(0, kMaxNoGpuBytes));
  for (const node::v1::Device& device : devices->devices) {
    node.devices.push_back(device.name());
    *registration.add_devices() = device;
  }
  WorkerNode::Callbacks node_callbacks;
  node_callbacks.on_state = [self] { self->session_->Notify(); };
  node_callbacks.on_reply = [self](node::v1::ConnectRequest reply) {
    const absl::Status status = self->session_->Send(std::move(reply));
    if (!status.ok()) Log(services::kWarning, "not_sent").Kv("status", status).Limit("not_sent");
  };
  service->node_ = std::make_unique<WorkerNode>(node, &self->metrics_, node_callbacks);
  GpuMonitorOptions gpus;
  gpus.uses = [self] { return self->node_->GpuUses(); };
  if (auto monitor = GpuMonitor::Start(service->registry_, std::move(gpus)); monitor.ok()) {
    service->gpu_monitor_ = *std::move(monitor);
    Log(services::kInfo, "gpu_metrics")
        .Kv("gpus", service->gpu_monitor_->VisibleGpus().size())
        .Kv("driver", service->gpu_monitor_->driver_version());
  } else {
    Log(services::kInfo, "no_gpu_metrics").Kv("reason", monitor.status().message());
  }

  services::NodeSession::Callbacks callbacks;
  callbacks.make_heartbeat = [self] { return self->MakeHeartbeat(); };
  callbacks.on_message = [self](const node::v1::ConnectResponse& message) {
    if (message.has_diagnose()) {
      self->diagnoser_->Start(message.diagnose());
    } else {
      self->node_->OnMessage(message);
    }
  };
  callbacks.on_registered = [self](const node::v1::Registered& registered) {
    Log(services::kInfo, "registered").Kv("incarnation", registered.incarnation());
    for (const std::string& warning : registered.warnings()) {
      Log(services::kWarning, "registered_with_warning").Kv("warning", warning);
    }
    self->server_->SetReady(true);
    self->node_->SetCoordinatorUp(true);
  };
  callbacks.on_lost = [self](const absl::Status& status) {
    Log(services::kWarning, "coordinator_lost").Kv("status", status);
    self->server_->SetReady(false);
    self->node_->SetCoordinatorUp(false);
  };
  service->diagnoser_ = service->MakeDiagnoser(config, devices->missing_gpu);
  // Messages arrive only over the session, so the node needs it only after the session's start.
  service->session_ = std::make_unique<services::NodeSession>(std::move(options), callbacks);
  service->session_->Start();
  service->server_->AddDrainHook("tasks", [self] { self->node_->Shutdown(); });
  service->server_->AddStopHook("goodbye", [self] {
    self->diagnoser_->Stop();
    self->session_->Stop();
  });
  return service;
}

node::v1::Heartbeat Service::MakeHeartbeat() {
  node::v1::Heartbeat heartbeat = node_->MakeHeartbeat();
  common::v1::NodeUsage& usage = *heartbeat.mutable_usage();
  host_usage_.Fill(&usage);
  if (gpu_monitor_ == nullptr) return heartbeat;
  const std::vector<GpuReading> readings = gpu_monitor_->LastReadings();
  for (const std::string& device : node_->devices()) {
    common::v1::DeviceUsage& card = *usage.add_devices();
    const std::optional<int> gpu = CudaIndex(device);
    if (!gpu.has_value() || *gpu < 0 || *gpu >= static_cast<int>(readings.size())) continue;
    const GpuReading& reading = readings[static_cast<size_t>(*gpu)];
    const GpuSample& sample = reading.sample;
    if (sample.memory_used_bytes) card.set_memory_used_bytes(*sample.memory_used_bytes);
    if (sample.memory_total_bytes) card.set_memory_total_bytes(*sample.memory_total_bytes);
    if (sample.utilization_ratio) card.set_utilization_ratio(*sample.utilization_ratio);
    if (sample.temperature_celsius) card.set_temperature_celsius(*sample.temperature_celsius);
    if (reading.power_watts) card.set_power_watts(*reading.power_watts);
  }
  return heartbeat;
}

std::unique_ptr<param_store::Diagnoser> Service::MakeDiagnoser(const Config& config,
                                                               const std::string& missing_gpu) {
  param_store::DiagnoserOptions options;
  options.security = config.common.security;
  options.folders = services::RootFolders(config.checkpoint_roots, config.data_roots);
  options.devices = [this, missing_gpu] {
    std::vector<job::v1::DeviceReport> devices = LostDevices();
    if (!missing_gpu.empty()) {
      devices.emplace_back();
      devices.back().set_name("cuda:0");
      devices.back().set_error(missing_gpu);
    }
    return devices;
  };
  options.answer = [this](node::v1::ConnectRequest answer) {
    const absl::Status status = session_->Send(std::move(answer));
    if (!status.ok()) Log(services::kWarning, "not_sent").Kv("status", status).Limit("not_sent");
  };
  return std::make_unique<param_store::Diagnoser>(std::move(options));
}

std::vector<job::v1::DeviceReport> Service::LostDevices() const {
  std::vector<job::v1::DeviceReport> lost;
  if (gpu_monitor_ == nullptr) return lost;
  const std::vector<GpuReading> readings = gpu_monitor_->LastReadings();
  for (const std::string& device : node_->devices()) {
    const std::optional<int> gpu = CudaIndex(device);
    if (!gpu.has_value() || *gpu < 0 || *gpu >= static_cast<int>(readings.size())) continue;
    const absl::Status& status = readings[static_cast<size_t>(*gpu)].sample.status;
    if (status.ok()) continue;
    lost.emplace_back();
    lost.back().set_name(device);
    lost.back().set_error(std::string(status.message()));
  }
  return lost;
}

void Service::Shutdown() {
  if (server_ != nullptr) server_->Shutdown();
  if (http_ != nullptr) http_->Stop();
}

Service::~Service() {
  Shutdown();
  if (diagnoser_ != nullptr) diagnoser_->Stop();
  if (session_ != nullptr) session_->Stop();
  gpu_monitor_.reset();
  node_.reset();  // its threads use the session
}

std::string Service::Addresses() const {
  return absl::StrCat("grpc=", server_->endpoint().ToString(),
                      " http=", http_ == nullptr ? "off" : http_->endpoint().ToString());
}

}  // namespace capstan::gpu_worker
