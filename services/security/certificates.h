// The private certificate authority of a cluster: P-256 keys, certificates for servers and callers.
//
// A certificate carries its owner's role as a URI and its name as the common name; servers are
// checked by host name and role, callers by role and name. Text is PEM. Pure functions but for
// random numbers; thread-safe. Needs OpenSSL 3.
#ifndef CAPSTAN_SERVICES_SECURITY_CERTIFICATES_H_
#define CAPSTAN_SERVICES_SECURITY_CERTIFICATES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/security/role.h"

namespace capstan::services {

struct KeyPair {
  std::string certificate;  // PEM; of a leaf alone, the authority's is with the peers
  std::string key;          // PEM, PKCS #8, not encrypted
};

// A new authority (CA:TRUE, path length 0) that is valid from a minute before `now` on.
absl::StatusOr<KeyPair> MakeAuthority(absl::string_view name, absl::Time now,
                                      absl::Duration lifetime);

struct LeafOptions {
  Identity identity;
  std::vector<std::string> hosts;  // DNS names and IP addresses that a server is reached by
  absl::Time now;
  absl::Duration lifetime;  // cut to the authority's
};
// A new key and its certificate for both ends of a connection. InvalidArgument: a host is neither a
// name nor an address; `authority` is none, or its key is another one's.
absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority, const LeafOptions& options);

// Whose certificate it is. InvalidArgument: not PEM, or without a role or a name.
absl::StatusOr<Identity> IdentityOf(absl::string_view certificate);

// The DNS names and IP addresses that a server with this certificate is reached by, as it lists them.
// InvalidArgument: not PEM.
absl::StatusOr<std::vector<std::string>> HostsOf(absl::string_view certificate);

struct Validity {
  absl::Time from;
  absl::Time until;
};
// InvalidArgument: not PEM.
absl::StatusOr<Validity> ValidityOf(absl::string_view certificate);

// When each certificate of a PEM file ends, in the order of the file. InvalidArgument: it has none.
absl::StatusOr<std::vector<absl::Time>> EndsOf(absl::string_view certificates);

// What a service checks before it starts, since gRPC would only fail every handshake later: the
// three can be read, the key is the certificate's, `authorities` signed it, and it is valid at
// `now`. InvalidArgument otherwise, saying which.
absl::Status CheckKeyPair(const KeyPair& pair, absl::string_view authorities, absl::Time now);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_CERTIFICATES_H_
