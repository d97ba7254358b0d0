// The certificate authority of one launch. It exists only in memory and ends with the launch.
#ifndef CAPSTAN_CLIENT_LAUNCH_AUTHORITY_H_
#define CAPSTAN_CLIENT_LAUNCH_AUTHORITY_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/launch/bundle.h"
#include "services/endpoint/endpoint.h"
#include "services/security/certificates.h"
#include "services/security/role.h"

namespace capstan::client {

// Use from one thread.
class LaunchAuthority {
 public:
  // Makes an authority, and a token for each of `members`. Their names must be unique.
  static absl::StatusOr<LaunchAuthority> Create(const std::vector<services::Identity>& members,
                                                absl::Time now);

  // Fills in authority, certificate (for bundle.address), key, token and tokens of a member.
  absl::Status Equip(NodeBundle& bundle, absl::Time now) const;

 private:
  services::KeyPair authority_;
  std::string tokens_;                        // tokens.json
  std::map<std::string, std::string> token_;  // by the member's name
};

// Writes the secrets of `bundle` into files (0600) of the private `folder`. Returns the settings
// with which a service or a client reads them.
absl::StatusOr<services::Security> WriteSecrets(const NodeBundle& bundle,
                                                const std::string& folder);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_AUTHORITY_H_
