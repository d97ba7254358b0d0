#include "services/channel/channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "grpcpp/grpcpp.h"
#include "services/check/check.h"
#include "services/grpc_init/grpc_init.h"
#include "services/security/credentials.h"
#include "services/status/status.h"

namespace capstan::services {
namespace {

// A TLS handshake costs the server CPU. If it were cut off after the 2 s of a connection attempt
// without an answer, a thousand nodes that come back at once would all give up, and start again for
// ever. The server drops a handshake after the same time (ServerOptions).
constexpr absl::Duration kHandshakePatience = absl::Seconds(5);

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

std::string ServiceConfigJson(const ChannelOptions& options) {
  if (!options.retry) return R"({"methodConfig":[{"name":[{}],"waitForReady":true}]})";
  return absl::StrFormat(
      R"({"methodConfig":[{"name":[{}],"waitForReady":true,"retryPolicy":{"maxAttempts":5,)"
      R"("initialBackoff":"%.3fs","maxBackoff":"%.3fs","backoffMultiplier":2,)"
      R"("retryableStatusCodes":["UNAVAILABLE"]}}],"retryThrottling":{"maxTokens":10,"tokenRatio":0.1}})",
      absl::ToDoubleSeconds(options.min_backoff), absl::ToDoubleSeconds(options.max_backoff));
}

grpc::ChannelArguments MakeChannelArguments(const ChannelOptions& options) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_interval));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Millis(options.min_backoff));
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Millis(options.max_backoff));
  // Despite its name, this is the time limit of one attempt to connect.
  const bool tls = !options.peer.is_unix() && !options.security.insecure;
  args.SetInt(
      GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
      Millis(tls ? std::max(options.max_backoff, kHandshakePatience) : options.max_backoff));
  args.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, options.retry ? 1 : 0);
  // http_proxy of the environment is for people's browsers, not for connections inside a cluster.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.own_connection) args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetMaxReceiveMessageSize(options.max_receive_bytes);
  args.SetServiceConfigJSON(ServiceConfigJson(options));
  return args;
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const ChannelOptions& options) {
  absl::Status status =
      CheckConnectSecurity(options.peer, options.security, options.peer_role.has_value());
  if (!status.ok()) return status;
  KeepGrpcInitialised();
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!options.peer.is_unix()) {
    auto made = MakeChannelCredentials(options.security, options.peer_role);
    if (!made.ok()) return made.status();
    credentials = *std::move(made);
  }
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  for (const auto& make : options.interceptors) interceptors.push_back(make());
  return grpc::experimental::CreateCustomChannelWithInterceptors(
      options.peer.ToString(), credentials, MakeChannelArguments(options), std::move(interceptors));
}

void SetTimeout(grpc::ClientContext& context, absl::Duration timeout) {
  CAPSTAN_CHECK(timeout > absl::ZeroDuration() && timeout < absl::Hours(24 * 365));
  context.set_deadline(
      gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                   gpr_time_from_nanos(absl::ToInt64Nanoseconds(timeout), GPR_TIMESPAN)));
}

std::unique_ptr<grpc::ClientContext> NewContext(absl::Duration timeout) {
  auto context = std::make_unique<grpc::ClientContext>();
  SetTimeout(*context, timeout);
  return context;
}

absl::Duration TimeLeft(const grpc::ServerContextBase& context) {
  const gpr_timespec deadline = context.raw_deadline();
  const gpr_timespec now = gpr_now(GPR_CLOCK_MONOTONIC);
  const gpr_timespec same_clock = gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC);
  if (gpr_time_cmp(same_clock, gpr_inf_future(GPR_CLOCK_MONOTONIC)) == 0) {
    return absl::InfiniteDuration();
  }
  const gpr_timespec left = gpr_time_sub(same_clock, now);
  return std::max(absl::ZeroDuration(),
                  absl::Seconds(left.tv_sec) + absl::Nanoseconds(left.tv_nsec));
}

}  // namespace capstan::services
