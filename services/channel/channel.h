// Client channels with the settings that all our services use, and deadlines for calls.
//
// Keepalive of 10 s + 5 s notices a cut network or a stopped peer; gRPC's default never does.
// Reconnecting backs off 50 ms .. 2 s, and one attempt may take 2 s (5 s with TLS). Calls wait for
// the connection, because fail-fast calls take 5 to 10 s longer after a restart. A control channel
// makes up to 5 attempts on UNAVAILABLE, with jitter and a throttle of 10 tokens, ratio 0.1 (gRFC
// A6). Use it for idempotent calls only. Bulk channels do not retry: gRPC's retry buffer is 256
// KiB, and the exchange client repeats its pushes itself. Messages are never compressed.
#ifndef CAPSTAN_SERVICES_CHANNEL_CHANNEL_H_
#define CAPSTAN_SERVICES_CHANNEL_CHANNEL_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/security/role.h"

namespace grpc {
class Channel;
class ChannelArguments;
class ClientContext;
class ServerContextBase;
}  // namespace grpc
namespace grpc::experimental {
class ClientInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace capstan::services {

struct ChannelOptions {
  Endpoint peer;
  Security security;
  // The role that a server on TCP must prove. nullopt: any of our services. Such a server gets no
  // token, so it only answers health checks.
  std::optional<Role> peer_role = Role::kCoordinator;
  int max_receive_bytes = 4 * 1024 * 1024;  // of one message
  bool retry = true;                        // see above; false for bulk streams
  // Use a separate connection. Otherwise all channels to one peer share one.
  bool own_connection = false;
  absl::Duration keepalive_interval = absl::Seconds(10);
  absl::Duration keepalive_timeout = absl::Seconds(5);
  absl::Duration min_backoff = absl::Milliseconds(50);
  absl::Duration max_backoff = absl::Seconds(2);
  // Outermost first (RpcMetrics::MakeClientInterceptorFactory).
  std::vector<
      std::function<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>()>>
      interceptors;
};

// Does not connect; the first call does. Returns the errors of CheckConnectSecurity and
// MakeChannelCredentials.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options);

// The channel arguments and the service config (JSON) for `options`.
grpc::ChannelArguments MakeChannelArguments(const ChannelOptions& options);
std::string ServiceConfigJson(const ChannelOptions& options);

// Gives `context` a deadline `timeout` from now on the monotonic clock. `timeout` must be finite
// and > 0.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);
// A context with that deadline for one call. Use it for every call.
std::unique_ptr<grpc::ClientContext> NewContext(absl::Duration timeout);

// The time that the caller of this handler still waits: InfiniteDuration if it set no deadline,
// zero if the deadline has passed. A handler passes min(this, its own limit) to the calls that it
// makes.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_CHANNEL_CHANNEL_H_
