// A gRPC server with the settings of all our services, their health and their shutdown.
//
//   auto server = Server::Start({.listen = *ParseEndpoint("unix:/run/capstan/c.sock")},
//                               {{JobService::service_full_name(), &job_adapter}});
//   (*server)->SetReady(true);
//   ... ShutdownSignal::Install().Wait(); (*server)->Shutdown();
//
// Settings (measured on gRPC 1.51): a ResourceQuota and disabled gzip and deflate limit the cost of
// a hostile message; the receive limit alone does not. There is no SO_REUSEPORT, and a Unix socket
// has a lock file beside it, so a second start at one address fails instead of sharing it. The
// handshake must finish in 5 s. A silent peer is noticed after keepalive_interval +
// keepalive_timeout. The age of a connection is not limited, because that would cut the long
// streams of nodes and watchers.
//
// A call that no service has ends with UNIMPLEMENTED and a sentence with our version.
//
// Health (grpc.health.v1): "liveness" serves from Start to Shutdown. "readiness", "" and every API
// service follow SetReady, and SetServing may set one of them by itself. Other names get NOT_FOUND.
//
// Thread-safe. Adapters are borrowed until Shutdown has returned.
#ifndef CAPSTAN_SERVICES_SERVER_SERVER_H_
#define CAPSTAN_SERVICES_SERVER_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/security/role.h"

namespace grpc {
class Service;
namespace experimental {
class ServerInterceptorFactoryInterface;
}  // namespace experimental
}  // namespace grpc

namespace capstan::services {

inline constexpr int kDefaultMaxReceiveBytes = 4 * 1024 * 1024;
inline constexpr int kExchangeMaxReceiveBytes = 1024 * 1024 + 64 * 1024;  // a frame and its header

struct ServerOptions {
  Endpoint listen;
  Security security;

  int max_receive_bytes = kDefaultMaxReceiveBytes;  // of one message
  int64_t quota_bytes = int64_t{256} << 20;         // for the buffers of all connections together
  int max_threads = 32;                             // for synchronous handlers
  int max_concurrent_streams = 100;                 // RPCs per connection
  absl::Duration handshake_timeout = absl::Seconds(5);
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);
  absl::Duration max_connection_idle = absl::Minutes(5);  // without a call; then GOAWAY
  absl::Duration drain_timeout = absl::Seconds(5);        // then calls in flight are cancelled

  // Path of a second Unix socket with the same services, reflection (v1alpha) and channelz; empty:
  // none. Its folder must be 0700 too, and only users who may enter it can look inside.
  std::string admin_socket;

  // Outermost first; metrics come first (RpcMetrics::MakeInterceptorFactory).
  std::vector<
      std::function<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>()>>
      interceptors;
};

struct ServedService {
  std::string name;         // Service::service_full_name(), e.g. capstan.job.v1.JobService
  grpc::Service* service;   // borrowed
  std::vector<Role> roles;  // who may call it on TCP with TLS; empty: nobody
};

// The channel arguments for `options`, by their GRPC_ARG names.
std::vector<std::pair<std::string, int>> ServerChannelArgs(const ServerOptions& options);

class Server {
 public:
  // Listens and serves once it returns. The adapters may be called before. Returns the errors of
  // CheckListenSecurity, MakeServerCredentials and CheckSocketFolder. AlreadyExists: another
  // process listens at the Unix path; FailedPrecondition: the address cannot be bound, with the
  // system's message.
  static absl::StatusOr<std::unique_ptr<Server>> Start(ServerOptions options,
                                                       const std::vector<ServedService>& services);
  ~Server();  // Shutdown()
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // The listening address, with the port that was chosen.
  const Endpoint& endpoint() const;

  void SetReady(bool ready);
  bool ready() const;
  void SetServing(absl::string_view health_name, bool serving);

  // Hooks run in the order of their registration, in the thread that calls Shutdown. Drain hooks
  // run after health says NOT_SERVING and before the server stops accepting. They end long streams,
  // which would block the drain. Stop hooks run after the last call has ended, for snapshots and
  // files.
  void AddDrainHook(std::string name, std::function<void()> hook);
  void AddStopHook(std::string name, std::function<void()> hook);

  // Sets health to NOT_SERVING, runs the drain hooks, stops accepting, and drains for at most
  // drain_timeout. Then it cancels calls in flight, waits for their handlers, and runs the stop
  // hooks. Logs each step with its seconds. A second call waits for the first one.
  void Shutdown();

  struct Step {
    std::string name;  // "health", "drain", or the name of a hook
    absl::Duration took;
  };
  // The steps done so far, in order.
  std::vector<Step> shutdown_steps() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SERVER_SERVER_H_
