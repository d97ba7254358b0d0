// Writes the files of a cluster's private authority for `capstan certs`. Knows no command line.
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
  bool force = false;  // replaces an existing authority; all that it signed becomes invalid
};

// Writes ca.crt (0644), ca.key (0600) and an empty tokens.json (0600). `now` is the wall clock.
// AlreadyExists: one of the files exists, and `force` is not set.
absl::Status InitCerts(const CertsInitOptions& options, absl::Time now);

struct CertsRotateOptions {
  std::string folder;  // the folder given to InitCerts
  int days = 3650;     // of the new authority
  bool finish = false;
};

// Replaces the authority in two steps, between which the old and the new one are both trusted. The
// first step makes a new ca.key and a ca.crt with the new certificate before the old one. From then
// on IssueCerts signs with the new key, and everybody who has that ca.crt trusts both. The second
// step (`finish`) removes the old certificate from ca.crt. tokens.json is not changed. NotFound:
// there is no authority. FailedPrecondition: the steps are called out of order.
absl::Status RotateCerts(const CertsRotateOptions& options, absl::Time now);

struct CertsIssueOptions {
  services::Role role = services::Role::kClient;
  std::string name;                // of the owner; empty: the first host, else the role
  std::vector<std::string> hosts;  // names and addresses that others use to reach it
  std::string authority;           // folder of InitCerts; empty: `out`
  std::string out;                 // made with mode 0700
  int days = 365;                  // of the certificate and the token
  std::optional<uid_t> uid;        // owner of the files, if set
  bool force = false;              // replaces existing files and withdraws their token
  int overlap_days = 0;            // with `force`: how long the replaced token stays valid, at most
};

// Writes ROLE.crt (0644), ROLE.key and ROLE.token (0600), and ca.crt if it does not exist. Adds the
// token's hash to the authority's tokens.json and removes expired tokens there. Two calls at once
// wait for each other. Returns the identity as issued. AlreadyExists: a file exists, and `force` is
// not set. InvalidArgument: a server's role without a host, or an invalid name or host.
absl::StatusOr<services::Identity> IssueCerts(const CertsIssueOptions& options, absl::Time now);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_CERTS_H_
