// The private certificate authority of a cluster: P-256 keys, certificates for servers and callers.
//
// A certificate carries its owner's role as a URI and its name as the common name. Servers are
// checked by host name and role, callers by role and name. Text is PEM. The functions are pure
// except for random numbers, and thread-safe. Needs OpenSSL 3.
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
  std::string certificate;  // PEM; only the leaf, because peers have the authority's
  std::string key;          // PEM, PKCS #8, not encrypted
};

// A new authority (CA:TRUE, path length 0), valid from a minute before `now`.
absl::StatusOr<KeyPair> MakeAuthority(absl::string_view name, absl::Time now,
                                      absl::Duration lifetime);

struct LeafOptions {
  Identity identity;
  std::vector<std::string> hosts;  // DNS names and IP addresses at which a server is reached
  absl::Time now;
  absl::Duration lifetime;  // cut to the authority's
};
// A new key and its certificate, for both ends of a connection. InvalidArgument: a host is neither
// a name nor an address, `authority` is not an authority, or its key does not match.
absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority, const LeafOptions& options);

// The owner of a certificate. InvalidArgument: not PEM, or without a role or a name.
absl::StatusOr<Identity> IdentityOf(absl::string_view certificate);

// The DNS names and IP addresses at which a server with this certificate is reached, in the
// certificate's order. InvalidArgument: not PEM.
absl::StatusOr<std::vector<std::string>> HostsOf(absl::string_view certificate);

struct Validity {
  absl::Time from;
  absl::Time until;
};
// InvalidArgument: not PEM.
absl::StatusOr<Validity> ValidityOf(absl::string_view certificate);

// The end of validity of each certificate in a PEM file, in the order of the file. InvalidArgument:
// it contains none.
absl::StatusOr<std::vector<absl::Time>> EndsOf(absl::string_view certificates);

// Checks that a service makes before it starts, because gRPC would only fail every handshake later:
// all three can be read, the key belongs to the certificate, `authorities` signed it, and it is
// valid at `now`. InvalidArgument otherwise, saying which check failed.
absl::Status CheckKeyPair(const KeyPair& pair, absl::string_view authorities, absl::Time now);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_SECURITY_CERTIFICATES_H_
