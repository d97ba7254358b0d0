// How hosts of a launch see each other.
#ifndef CAPSTAN_CLIENT_LAUNCH_REACH_H_
#define CAPSTAN_CLIENT_LAUNCH_REACH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"

namespace capstan::client {

// The address of this host on its way to `host`, which is a name or an address: the one that `host`
// and its neighbours answer to. Sends nothing. NotFound: the name; Unavailable: there is no way.
absl::StatusOr<std::string> AddressTowards(const std::string& host);

enum class Reach {
  kThere,    // a connection was made
  kRefused,  // the host says that nobody listens
  kSilent,   // nothing came back within the time
};
// Connects to a TCP `endpoint` and hangs up.
Reach TryToReach(const services::Endpoint& endpoint, absl::Duration timeout);

std::string HostName();  // of this host, its first label

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_REACH_H_
