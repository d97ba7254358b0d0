#include "param_store/service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/channel.h"
#include "services/channel/channel.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/version/version.h"

namespace capstan::param_store {

using services::Log;

namespace {

// A coordinator that is started anew at the same time comes back within this.
constexpr absl::Duration kCoordinatorBack = absl::Seconds(5);

// A connection of its own: files must not hold up heartbeats. Null: Start fails for the same reason.
std::shared_ptr<grpc::Channel> MakeFilesChannel(const Config& config) {
  services::ChannelOptions dial;
  dial.peer = config.coordinator_endpoint;
  dial.security = config.common.security;
  dial.retry = false;  // JobFiles tries again by itself
  dial.own_connection = true;
  return services::MakeChannel(dial).value_or(nullptr);
}

}  // namespace

Service::Service(const Config& config)
    : registry_("param_store"),
      shard_metrics_(registry_),
      rpc_metrics_(registry_, {v1::ParamStoreService::service_full_name()}),
      client_rpc_metrics_(registry_, {node::v1::NodeService::service_full_name()},
                          services::RpcMetrics::Side::kClient),
      store_({.security = config.common.security,
              .files_channel = MakeFilesChannel(config),
              .checkpoint_roots = config.checkpoint_roots,
              .data_roots = config.data_roots,
              .metrics = &shard_metrics_,
              .shared_memory = !config.no_shared_memory,
              .on_state =
                  [this] {
                    if (session_ != nullptr) session_->Notify();
                    Woken();
                  }}),
      exchange_(store_),
      upkeep_(registry_, services::RootFolders(config.checkpoint_roots, config.data_roots),
              config.common.security) {}

absl::StatusOr<std::unique_ptr<Service>> Service::Start(const Config& config) {
  std::unique_ptr<Service> service(new Service(config));
  Service* const self = service.get();

  services::ChannelOptions dial;
  dial.peer = config.coordinator_endpoint;
  dial.security = config.common.security;
  dial.retry = false;  // the session dials again by itself
  dial.interceptors = {[self] { return self->client_rpc_metrics_.MakeClientInterceptorFactory(); }};
  auto channel = services::MakeChannel(dial);
  if (!channel.ok()) return channel.status();

  services::ServerOptions listen;
  listen.listen = config.listen;
  listen.security = config.common.security;
  listen.admin_socket = config.common.admin_socket;
  listen.max_receive_bytes = services::kExchangeMaxReceiveBytes;
  listen.interceptors = {[self] { return self->rpc_metrics_.MakeInterceptorFactory(); }};
  auto server =
      services::Server::Start(listen, {{v1::ParamStoreService::service_full_name(),
                                        &self->exchange_,
                                        {services::Role::kWorker, services::Role::kParamStore}}});
  if (!server.ok()) return server.status();
  service->server_ = *std::move(server);

  if (config.http.has_value()) {
    auto readers = services::Readers::Create(config.common.security);
    if (!readers.ok()) return readers.status();
    service->readers_ = *std::move(readers);
    services::HttpOptions options;
    options.listen = *config.http;
    options.names = config.common.http_hosts;
    options.security = config.common.security;
    options.routes["/metrics"] =
        service->readers_->ForMetrics(services::MetricsHandler(self->upkeep_.Scraper()),
                                      config.common.open_metrics, options.listen);
    options.ready = [self] { return self->server_->ready(); };
    auto http = services::HttpServer::Start(std::move(options));
    if (!http.ok()) return http.status();
    service->http_ = *std::move(http);
  }

  services::NodeSessionOptions options;
  options.channel = *std::move(channel);
  node::v1::Register& registration = options.registration;
  registration.set_name(config.node);
  registration.set_role(common::v1::ROLE_PARAM_STORE);
  registration.set_version(std::string(Version()));
  char host[256] = {};
  gethostname(host, sizeof(host) - 1);
  registration.set_host(host);
  const auto address = config.common.Advertised(service->server_->endpoint());
  if (!address.ok()) return address.status();
  registration.set_data_address(*address);
  registration.set_pid(getpid());
  if (service->http_ != nullptr) registration.set_http_url(service->http_->url());
  services::NodeSession::Callbacks callbacks;
  callbacks.make_heartbeat = [self] { return self->MakeHeartbeat(); };
  callbacks.on_message = [self](const node::v1::ConnectResponse& message) {
    if (message.has_diagnose()) {
      self->diagnoser_->Start(message.diagnose());
    } else {
      self->store_.OnMessage(message);
    }
  };
  callbacks.on_registered = [self](const node::v1::Registered& registered) {
    Log(services::kInfo, "registered").Kv("incarnation", registered.incarnation());
    bool stays = true;
    {
      MutexLock lock(self->mu_);
      self->registered_ = true;
      self->hears_leaving_ = registered.hears_leaving();
      stays = self->leave_by_ == absl::InfiniteDuration();
    }
    self->server_->SetReady(stays);
    self->Woken();
  };
  callbacks.on_lost = [self](const absl::Status& status) {
    Log(services::kWarning, "coordinator_lost").Kv("status", status);
    self->server_->SetReady(false);
    {
      MutexLock lock(self->mu_);
      if (std::exchange(self->registered_, false)) self->lost_at_ = MonotonicNow();
    }
    self->Woken();
  };
  DiagnoserOptions diagnoser;
  diagnoser.security = config.common.security;
  diagnoser.folders = services::RootFolders(config.checkpoint_roots, config.data_roots);
  diagnoser.answer = [self](node::v1::ConnectRequest answer) {
    const absl::Status status = self->session_->Send(std::move(answer));
    if (!status.ok()) Log(services::kWarning, "not_sent").Kv("status", status).Limit("not_sent");
  };
  service->diagnoser_ = std::make_unique<Diagnoser>(std::move(diagnoser));
  // The session exists before a job can, and jobs come over the session alone.
  service->session_ = std::make_unique<services::NodeSession>(std::move(options), callbacks);
  service->session_->Start();

  service->server_->AddDrainHook("streams", [self] { self->store_.Shutdown(); });
  service->server_->AddStopHook("goodbye", [self] {
    self->diagnoser_->Stop();
    self->session_->Stop();
  });
  return service;
}

void Service::Woken() {
  MutexLock lock(mu_);
  ++changes_;
  changed_.NotifyAll();
}

node::v1::Heartbeat Service::MakeHeartbeat() {
  node::v1::Heartbeat heartbeat = store_.MakeHeartbeat();
  host_usage_.Fill(heartbeat.mutable_usage());
  MutexLock lock(mu_);
  if (leave_by_ < absl::InfiniteDuration()) {
    const int64_t left = absl::ToInt64Milliseconds(leave_by_ - MonotonicNow());
    heartbeat.set_leaving_ms(static_cast<int32_t>(std::max<int64_t>(left, 1)));
  }
  return heartbeat;
}

std::string Service::WhyNot(absl::Duration began, absl::Duration* until) const {
  *until = leave_by_;
  if (registered_ && !hears_leaving_) return "the coordinator's version has no hand-overs";
  if (!registered_) {
    *until = std::min(*until, std::max(lost_at_, began) + kCoordinatorBack);
    if (MonotonicNow() >= *until) return "no coordinator answers";
  }
  return MonotonicNow() >= leave_by_ ? "the time limit is over" : "";
}

void Service::HandOver(absl::Duration limit) {
  if (limit <= absl::ZeroDuration() || !store_.HoldsJobs()) return;
  const absl::Duration began = MonotonicNow();
  Log(services::kInfo, "hand_over").Kv("within", limit);
  {
    MutexLock lock(mu_);
    leave_by_ = began + limit;
  }
  server_->SetReady(false);
  session_->Notify();
  std::string why_not;
  while (true) {
    int64_t seen = 0;
    {
      MutexLock lock(mu_);
      seen = changes_;
    }
    if (!store_.HoldsJobs()) break;
    MutexLock lock(mu_);
    absl::Duration until;
    why_not = WhyNot(began, &until);
    if (!why_not.empty()) break;
    if (changes_ == seen) changed_.WaitWithTimeout(mu_, until - MonotonicNow());
  }
  Log(why_not.empty() ? services::kInfo : services::kWarning, "handed_over")
      .Kv("seconds", MonotonicNow() - began)
      .Kv("left_undone", why_not.empty() ? "nothing" : why_not);
}

void Service::Shutdown() {
  if (server_ != nullptr) server_->Shutdown();
  if (http_ != nullptr) http_->Stop();
}

Service::~Service() {
  Shutdown();
  if (diagnoser_ != nullptr) diagnoser_->Stop();
  if (session_ != nullptr) session_->Stop();
}

std::string Service::Addresses() const {
  return absl::StrCat("grpc=", server_->endpoint().ToString(),
                      " http=", http_ == nullptr ? "off" : http_->endpoint().ToString());
}

}  // namespace capstan::param_store
