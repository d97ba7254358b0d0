// The files of a cluster's private authority: what `capstan certs` makes, without the command line.
#ifndef CAPSTAN_CLIENT_CERTS_H_
#define CAPSTAN_CLIENT_CERTS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/security/role.h"

namespace capstan::client {

struct CertsInitOptions {
  std::string folder;  // made with mode 0700
  int days = 3650;
  bool force = false;  // replaces an authority that is there, and with it all that it signed
};

// Writes ca.crt (0644), ca.key (0600) and an empty tokens.json (0600). AlreadyExists: one of them
// is there. `now` is the wall clock.
absl::Status InitCerts(const CertsInitOptions& options, absl::Time now);

struct CertsRotateOptions {
  std::string folder;  // of InitCerts
  int days = 3650;     // of the new authority
  bool finish = false;
};

// Changes the authority in two steps, between which both hold. The first makes a new ca.key, and a
// ca.crt of the new certificate and the old one behind it: IssueCerts signs with the new one, and
// whoever has that ca.crt trusts both. With `finish` the old one goes out of ca.crt. tokens.json
// stays. NotFound: no authority; FailedPrecondition: the step does not follow the last one.
absl::Status RotateCerts(const CertsRotateOptions& options, absl::Time now);

struct CertsIssueOptions {
  services::Role role = services::Role::kClient;
  std::string name;                // of the owner; empty: the first host, else the role
  std::vector<std::string> hosts;  // names and addresses that others reach it by
  std::string authority;           // folder of InitCerts; empty: `out`
  std::string out;                 // made with mode 0700
  int days = 365;                  // of the certificate and the token
  std::optional<uid_t> uid;        // owner of the files
  bool force = false;              // replaces files that are there and withdraws their token
  int overlap_days = 0;  // with `force`: the token that is replaced stays valid so long, at most
};

// Writes ROLE.crt (0644), ROLE.key and ROLE.token (0600), and ca.crt where it is not there; adds
// the token's hash to the authority's tokens.json and drops those that have expired. Two calls at
// once wait for each other. The identity as issued. AlreadyExists: a file is there;
// InvalidArgument: a server's role without a host, a name or a host that is none.
absl::StatusOr<services::Identity> IssueCerts(const CertsIssueOptions& options, absl::Time now);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CERTS_H_
