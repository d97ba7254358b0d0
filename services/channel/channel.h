// Client channels with the settings that every service of ours uses, and deadlines for calls.
//
// Keepalive of 10 s + 5 s notices a cut network or a stopped peer (the default never does),
// reconnecting backs off 50 ms .. 2 s, an attempt may take 2 s (5 s with TLS), and calls wait for
// the connection (fail-fast calls take +5 to +10 s after a restart). A control channel retries
// UNAVAILABLE up to 5 attempts with jitter and a throttle of 10 tokens, ratio 0.1 (gRFC A6); only
// idempotent calls belong on it. Bulk channels do not retry: gRPC's retry buffer is 256 KiB, and
// pushes are repeated by their own client. A message is never compressed.
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
  // Whom a server on TCP must prove to be. nullopt: any service of ours; it gets no token, so it
  // answers about its health alone.
  std::optional<Role> peer_role = Role::kCoordinator;
  int max_receive_bytes = 4 * 1024 * 1024;  // of one message
  bool retry = true;                        // see above; false for bulk streams
  // A connection of its own: channels to one peer share one otherwise, whatever their number.
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

// Does not connect yet; the first call does. What CheckConnectSecurity and MakeChannelCredentials
// say.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options);

// The arguments and the service config (JSON) that `options` stand for.
grpc::ChannelArguments MakeChannelArguments(const ChannelOptions& options);
std::string ServiceConfigJson(const ChannelOptions& options);

// Gives `context` a deadline `timeout` from now on the monotonic clock. `timeout` is finite and >
// 0.
void SetTimeout(grpc::ClientContext& context, absl::Duration timeout);
// A context for one call with that deadline: the way to make a call.
std::unique_ptr<grpc::ClientContext> NewContext(absl::Duration timeout);

// What the caller of this handler still waits for; InfiniteDuration when it set no deadline, zero
// when it is over. A handler passes min(this, its own limit) on to the calls it makes.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_CHANNEL_CHANNEL_H_
