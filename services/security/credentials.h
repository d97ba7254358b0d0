// Mutual TLS and bearer tokens for gRPC, on TCP; Unix sockets and --insecure have neither.
//
// A server checks in this order. The handshake needs a certificate that the authority signed. At
// the headers, before any body is read: the token is known and not expired, it belongs to the name
// and role of the certificate, and that role may call the service. The health service needs only
// the certificate. A caller checks the server's host name, and that its certificate has the role
// that the caller wants to speak to. So a worker's certificate cannot impersonate a coordinator.
//
// The files are read again while the process runs: certificates and keys every kRereadSeconds, for
// new connections; tokens within kTokensFresh. Loading any of them makes the process's memory private
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

// Which roles may call which service (full name, e.g. capstan.job.v1.JobService). Nobody may call a
// service that is not listed.
using ServiceRoles = std::map<std::string, std::vector<Role>>;

// Credentials of a server on TCP. Plaintext without --tls-* and with --insecure. Returns the errors
// of CheckKeyPair and ReadSecretFile, with the flag's name. --tokens is required if `roles` is not
// empty.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const Security& security, const ServiceRoles& roles);

// Credentials of a channel on TCP to a server of role `peer`; nullopt: to any service, without a
// token. Plaintext without --tls-* and with --insecure. Credentials of the same files and role are
// one object, so that channels share a connection.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const Security& security, std::optional<Role> peer);

// The caller, by its certificate; its token agrees. nullopt: a Unix socket or plaintext, where
// callers need no credentials.
std::optional<Identity> CallerOf(const grpc::ServerContextBase& context);

// Checks the files of --tls-cert, --tls-key and --tls-ca as any process needs them.
absl::Status CheckTlsFiles(const Security& security);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_CREDENTIALS_H_
