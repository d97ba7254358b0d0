#include "services/server/server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/channelz_service_plugin.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/impl/server_builder_option.h"
#include "grpcpp/impl/server_builder_plugin.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/support/server_interceptor.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/grpc_init/grpc_init.h"
#include "services/logging/log.h"
#include "services/security/credentials.h"
#include "services/server/acceptor.h"
#include "services/server/http2_guard.h"
#include "services/status/status.h"
#include "services/sync/hand_over.h"
#include "services/sync/mutex.h"
#include "services/version/version.h"

namespace capstan::services {
namespace {

constexpr char kLiveness[] = "liveness";
constexpr char kReadiness[] = "readiness";

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

// Holds "<socket>.lock" while a server listens there. gRPC unlinks any socket that it finds at the
// path, so without the lock a second server would silently take the address of a live one.
class SocketLock {
 public:
  static absl::StatusOr<std::unique_ptr<SocketLock>> Take(const Endpoint& endpoint) {
    if (absl::Status status = CheckSocketFolder(endpoint); !status.ok()) return status;
    const std::string path = absl::StrCat(endpoint.path, ".lock");
    for (int attempt = 0; attempt < 100; ++attempt) {
      const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
      if (fd < 0) {
        return absl::FailedPreconditionError(
            absl::StrCat("lock ", path, ": ", std::strerror(errno)));
      }
      auto lock = std::unique_ptr<SocketLock>(new SocketLock(path, fd));
      if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        lock->held_ = false;
        return absl::AlreadyExistsError(absl::StrCat("listen on ", endpoint.ToString(),
                                                     ": another process listens there (it holds ",
                                                     path, ")"));
      }
      // The last holder may have unlinked the file between our open and our lock.
      struct stat ours;
      struct stat there;
      if (fstat(fd, &ours) == 0 && stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino &&
          ours.st_dev == there.st_dev) {
        return lock;
      }
      lock->held_ = false;
    }
    return absl::UnavailableError(
        absl::StrCat("lock ", path, ": locked and released again and again"));
  }
  ~SocketLock() {
    if (held_) unlink(path_.c_str());
    close(fd_);
  }
  SocketLock(const SocketLock&) = delete;
  SocketLock& operator=(const SocketLock&) = delete;

 private:
  SocketLock(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
  bool held_ = true;
};

// Reflection and channelz register themselves for every server of the process. Keep them for the
// admin socket and remove them from the others by their names.
class AdminPlugins : public grpc::ServerBuilderOption {
 public:
  explicit AdminPlugins(bool keep) : keep_(keep) {}
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    if (keep_) return;
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
                                    const std::string name = plugin->name();
                                    return name == "proto_server_reflection" ||
                                           name == "channelz_service";
                                  }),
                   plugins->end());
  }

 private:
  const bool keep_;
};

// Answers calls that no service of a server has. Callers of another version then know why. It
// belongs to one server for ever; a second server that takes it would end the process.
class UnknownCalls final : public grpc::CallbackGenericService {
  class Reactor final : public grpc::ServerGenericBidiReactor {
   public:
    Reactor() {
      Finish(
          {grpc::StatusCode::UNIMPLEMENTED,
           absl::StrCat("this service is of version ", Version(), " and does not know the call")});
    }
    void OnDone() override {
      TakeOver(this);
      delete this;
    }
  };
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override {
    auto* const reactor = new Reactor;
    HandOver(reactor);
    return reactor;
  }
};

std::unique_ptr<grpc::Server> Build(const ServerOptions& options, const Endpoint& listen,
                                    const std::shared_ptr<grpc::ServerCredentials>& credentials,
                                    const std::vector<ServedService>& services, bool admin,
                                    UnknownCalls* unknown, Acceptor* acceptor) {
  grpc::ServerBuilder builder;
  builder.SetOption(std::make_unique<AdminPlugins>(admin));
  for (const auto& [name, value] : ServerChannelArgs(options)) {
    builder.AddChannelArgument(name, value);
  }
  builder.SetMaxReceiveMessageSize(options.max_receive_bytes);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder.SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  grpc::ResourceQuota quota(admin ? "capstan_admin" : "capstan");
  quota.Resize(static_cast<size_t>(options.quota_bytes));
  quota.SetMaxThreads(options.max_threads);
  builder.SetResourceQuota(quota);
  // One queue with one or two pollers, because arithmetic has its own pool and needs the cores
  // more.
  builder.SetSyncServerOption(grpc::ServerBuilder::NUM_CQS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MIN_POLLERS, 1);
  builder.SetSyncServerOption(grpc::ServerBuilder::MAX_POLLERS, 2);
  if (!admin) {
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> factories;
    for (const auto& make : options.interceptors) factories.push_back(make());
    builder.experimental().SetInterceptorCreators(std::move(factories));
  }
  std::unique_ptr<Acceptor::Target> target;
  if (acceptor == nullptr) {
    builder.AddListeningPort(listen.ToString(), credentials);
  } else {
    using Kind = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
    target = builder.experimental().AddExternalConnectionAcceptor(Kind::FROM_FD, credentials);
  }
  for (const ServedService& served : services) {
    CAPSTAN_CHECK(served.service != nullptr && !served.name.empty());
    builder.RegisterService(served.service);
  }
  // Without it gRPC does not start a server that has only health: nobody would poll its queue.
  builder.RegisterCallbackGenericService(unknown);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server != nullptr && acceptor != nullptr) {
    acceptor->Start(std::move(target), options.keepalive_timeout);
  }
  return server;
}

}  // namespace

struct Server::Impl {
  using Hooks = std::vector<std::pair<std::string, std::function<void()>>>;

  void SetStatus(const std::string& name, bool serving) {
    server->GetHealthCheckService()->SetServingStatus(name, serving);
    if (admin_server != nullptr) {
      admin_server->GetHealthCheckService()->SetServingStatus(name, serving);
    }
  }
  void Timed(const std::string& name, const std::function<void()>& step) {
    const absl::Duration start = MonotonicNow();
    step();
    const absl::Duration took = MonotonicNow() - start;
    Log(kInfo, "shutdown_step").Kv("step", name).Kv("seconds", took);
    MutexLock lock(mu);
    steps.push_back({name, took});
  }
  void RunHooks(Hooks Impl::*which) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Hooks hooks;
    {
      MutexLock lock(mu);
      hooks = std::move(this->*which);
    }
    for (const auto& [name, hook] : hooks) Timed(name, hook);
  }

  ServerOptions options;
  Endpoint bound;
  std::vector<std::string> api_names;
  UnknownCalls unknown;  // both must outlive their servers
  UnknownCalls admin_unknown;
  std::unique_ptr<SocketLock> socket_lock;
  std::unique_ptr<grpc::Server> server;
  std::unique_ptr<Acceptor> acceptor;  // null if it listens on a Unix socket
  Endpoint admin_bound;
  std::unique_ptr<SocketLock> admin_lock;  // null if there is no admin socket
  std::unique_ptr<grpc::Server> admin_server;

  mutable Mutex mu;
  CondVar stopped_cv;
  bool ready ABSL_GUARDED_BY(mu) = false;
  bool stopping ABSL_GUARDED_BY(mu) = false;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  Hooks drain_hooks ABSL_GUARDED_BY(mu);
  Hooks stop_hooks ABSL_GUARDED_BY(mu);
  std::vector<Step> steps ABSL_GUARDED_BY(mu);
};

std::vector<std::pair<std::string, int>> ServerChannelArgs(const ServerOptions& options) {
  const int keepalive_ms = Millis(options.keepalive_interval);
  return {
      {GRPC_ARG_ALLOW_REUSEPORT, 0},
      {GRPC_ARG_ENABLE_CHANNELZ, options.admin_socket.empty() ? 0 : 1},
      {GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams},
      {GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Millis(options.handshake_timeout)},
      {GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes},
      {GRPC_ARG_MAX_CONNECTION_IDLE_MS, Millis(options.max_connection_idle)},
      {GRPC_ARG_KEEPALIVE_TIME_MS, keepalive_ms},
      {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout)},
      {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
      {GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0},
      // Clients ping as often as we do; the default of 5 min would answer GOAWAY too_many_pings.
      {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, keepalive_ms / 2},
  };
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(ServerOptions options,
                                                      const std::vector<ServedService>& services) {
  if (absl::Status status = CheckListenSecurity(options.listen, options.security); !status.ok()) {
    return status;
  }
  auto impl = std::make_unique<Impl>();
  if (options.listen.is_unix()) {
    absl::StatusOr<std::unique_ptr<SocketLock>> lock = SocketLock::Take(options.listen);
    if (!lock.ok()) return lock.status();
    impl->socket_lock = *std::move(lock);
  }
  if (!options.admin_socket.empty()) {
    absl::StatusOr<Endpoint> admin = ParseEndpoint(absl::StrCat("unix:", options.admin_socket));
    if (!admin.ok()) return admin.status();
    absl::StatusOr<std::unique_ptr<SocketLock>> lock = SocketLock::Take(*admin);
    if (!lock.ok()) return lock.status();
    impl->admin_bound = *std::move(admin);
    impl->admin_lock = *std::move(lock);
  }

  KeepGrpcInitialised();
  InstallHttp2Guard();
  static const bool once = [] {
    grpc::channelz::experimental::InitChannelzService();
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::EnableDefaultHealthCheckService(true);  // process-wide; only our servers use it
    return true;
  }();
  static_cast<void>(once);
  ServiceRoles roles;
  for (const ServedService& served : services) {
    impl->api_names.push_back(served.name);
    roles[served.name] = served.roles;
  }
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (!options.listen.is_unix()) {
    auto made = MakeServerCredentials(options.security, roles);
    if (!made.ok()) return made.status();
    credentials = *std::move(made);
    absl::StatusOr<std::unique_ptr<Acceptor>> acceptor = Acceptor::Listen(options.listen);
    if (!acceptor.ok()) return acceptor.status();
    impl->acceptor = *std::move(acceptor);
  }
  impl->server = Build(options, options.listen, credentials, services, /*admin=*/false,
                       &impl->unknown, impl->acceptor.get());
  if (impl->server == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("listen on ", options.listen.ToString(),
                     ": the address cannot be bound (is there another file?)"));
  }
  if (impl->admin_lock != nullptr) {
    impl->admin_server = Build(options, impl->admin_bound, grpc::InsecureServerCredentials(),
                               services, /*admin=*/true, &impl->admin_unknown, nullptr);
    if (impl->admin_server == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("listen on ", impl->admin_bound.ToString(),
                       ": the address cannot be bound (is there another file?)"));
    }
  }
  impl->bound = options.listen;
  if (impl->acceptor != nullptr) impl->bound.port = impl->acceptor->port();
  impl->options = std::move(options);
  auto server = std::unique_ptr<Server>(new Server(std::move(impl)));
  server->impl_->SetStatus(kLiveness, true);
  server->SetReady(false);
  return server;
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Shutdown(); }

const Endpoint& Server::endpoint() const { return impl_->bound; }

void Server::SetReady(bool ready) {
  MutexLock lock(impl_->mu);  // so that two callers cannot leave a mixture
  impl_->ready = ready && !impl_->stopping;
  impl_->SetStatus(kReadiness, impl_->ready);
  impl_->SetStatus("", impl_->ready);
  for (const std::string& name : impl_->api_names) impl_->SetStatus(name, impl_->ready);
}

bool Server::ready() const {
  MutexLock lock(impl_->mu);
  return impl_->ready;
}

void Server::SetServing(absl::string_view health_name, bool serving) {
  impl_->SetStatus(std::string(health_name), serving);
}

void Server::AddDrainHook(std::string name, std::function<void()> hook) {
  MutexLock lock(impl_->mu);
  impl_->drain_hooks.emplace_back(std::move(name), std::move(hook));
}

void Server::AddStopHook(std::string name, std::function<void()> hook) {
  MutexLock lock(impl_->mu);
  impl_->stop_hooks.emplace_back(std::move(name), std::move(hook));
}

void Server::Shutdown() {
  Impl& impl = *impl_;
  {
    MutexLock lock(impl.mu);
    if (impl.stopping) {
      while (!impl.stopped) impl.stopped_cv.Wait(impl.mu);
      return;
    }
    impl.stopping = true;
    impl.ready = false;
  }
  impl.Timed("health", [&impl] {
    impl.server->GetHealthCheckService()->Shutdown();
    if (impl.admin_server != nullptr) impl.admin_server->GetHealthCheckService()->Shutdown();
  });
  impl.RunHooks(&Impl::drain_hooks);
  impl.Timed("drain", [&impl] {
    impl.acceptor.reset();
    // The monotonic clock, because a step of the wall clock must not cut the drain short.
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis(Millis(impl.options.drain_timeout), GPR_TIMESPAN));
    for (grpc::Server* server : {impl.server.get(), impl.admin_server.get()}) {
      if (server == nullptr) continue;
      server->Shutdown(deadline);
      server->Wait();
    }
  });
  impl.RunHooks(&Impl::stop_hooks);
  if (impl.bound.is_unix()) unlink(impl.bound.path.c_str());
  impl.socket_lock.reset();
  if (impl.admin_lock != nullptr) unlink(impl.admin_bound.path.c_str());
  impl.admin_lock.reset();
  MutexLock lock(impl.mu);
  impl.stopped = true;
  impl.stopped_cv.NotifyAll();
}

std::vector<Server::Step> Server::shutdown_steps() const {
  MutexLock lock(impl_->mu);
  return impl_->steps;
}

}  // namespace capstan::services
