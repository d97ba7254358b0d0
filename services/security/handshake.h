// Why a server does not answer: one connection to it made by hand, with a reason for people. gRPC tries
// again for ever, and says of a certificate that does not fit as little as of a host that is not there.
//
// Sends no token and no call. Blocks. Thread-safe. Knows no gRPC.
#ifndef CAPSTAN_SERVICES_SECURITY_HANDSHAKE_H_
#define CAPSTAN_SERVICES_SECURITY_HANDSHAKE_H_

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/security/role.h"

namespace capstan::services {

enum class Met {
  kAnswers,  // the handshake is done, and the server spoke
  kAbsent,   // nobody listens there, or nobody knows the host's name
  kUnfit,    // somebody listens, and no call will get through to him
  kSilent,   // nothing came back within the time
};

struct Handshake {
  Met met = Met::kSilent;
  // Not kAnswers: a clause about "it", the server: "nobody listens there", "its certificate (of
  // coordinator c) is for localhost, 127.0.0.1, not for vm; ...".
  std::string why;
};

struct HandshakeOptions {
  Endpoint peer;
  Security security;                              // as a channel has it; its files can be read
  std::optional<Role> role = Role::kCoordinator;  // of the server; nullopt: of any service
  absl::Duration timeout = absl::Seconds(2);      // beside what the resolver needs for a name
};

// Connects as a channel with these credentials does: TLS on TCP unless `insecure`.
Handshake TryHandshake(const HandshakeOptions& options);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_HANDSHAKE_H_
