// Mutual TLS and bearer tokens for gRPC, on TCP; Unix sockets and --insecure have neither.
//
// Order of checks on a server: the handshake (a certificate that the authority signed), then at the
// headers, before any body is read: the token is known and not expired, it belongs to the name and
// role of the certificate, and that role may call the service. The health service asks for the
// certificate alone. A caller checks the server's host name and that its certificate has the role
// that it wants to speak to: a worker's certificate does not make a coordinator.
//
// The files are looked at while the process runs: certificates and keys every kRereadSeconds, for
// new connections; tokens at the next call. Loading any of them makes the process's memory private
// (KeepMemoryPrivate). Thread-safe.
#ifndef CAPSTAN_SERVICES_SECURITY_CREDENTIALS_H_
#define CAPSTAN_SERVICES_SECURITY_CREDENTIALS_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/endpoint/endpoint.h"
#include "services/security/role.h"

namespace grpc {
class ChannelCredentials;
class ServerCredentials;
class ServerContextBase;
}  // namespace grpc

namespace capstan::services {

inline constexpr unsigned kRereadSeconds = 2;

// Which roles may call which service (full name, e.g. capstan.job.v1.JobService); a service that is
// not named is nobody's.
using ServiceRoles = std::map<std::string, std::vector<Role>>;

// Of a server on TCP. Without --tls-* and with --insecure: plaintext. What CheckKeyPair and
// ReadSecretFile say, with the flag's name; --tokens is needed where `roles` is not empty.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const Security& security, const ServiceRoles& roles);

// Of a channel on TCP to a server of `peer`'s role; nullopt: of any service's, without a token.
// Without --tls-* and with --insecure: plaintext. Credentials of the same files and role are one
// object, so that channels share a connection.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const Security& security, std::optional<Role> peer);

// Who calls, by the certificate, which the token agrees with. nullopt: a Unix socket or plaintext,
// where nobody is asked.
std::optional<Identity> CallerOf(const grpc::ServerContextBase& context);

// Checks the files behind --tls-cert, --tls-key and --tls-ca as a process of any kind needs them.
absl::Status CheckTlsFiles(const Security& security);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_CREDENTIALS_H_
