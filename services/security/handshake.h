// Finds out why a server does not answer: makes one connection to it and gives the reason for
// people. gRPC retries for ever, and gives no more details for an unsuitable certificate than for a
// host that does not exist.
//
// Sends no token and makes no call. Blocks. Thread-safe. Knows no gRPC.
#ifndef CAPSTAN_SERVICES_SECURITY_HANDSHAKE_H_
#define CAPSTAN_SERVICES_SECURITY_HANDSHAKE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/security/role.h"

namespace capstan::services {

enum class Met {
  kAnswers,  // the handshake succeeded and the server answered
  kAbsent,   // nothing listens there, or the host name is unknown
  kUnfit,    // a server listens, but no call will succeed
  kSilent,   // nothing came back in time
};

struct Handshake {
  Met met = Met::kSilent;
  // If not kAnswers, a clause about "it", the server: "nothing listens there", "its certificate (of
  // coordinator c) is for localhost, 127.0.0.1, not for vm; ...".
  std::string why;
};

struct HandshakeOptions {
  Endpoint peer;
  Security security;                              // as for a channel; its files can be read
  std::optional<Role> role = Role::kCoordinator;  // of the server; nullopt: any service
  absl::Duration timeout = absl::Seconds(2);      // in addition to the resolver's time for a name
};

// Connects like a channel with these credentials: TLS on TCP unless `insecure`.
Handshake TryHandshake(const HandshakeOptions& options);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_HANDSHAKE_H_
