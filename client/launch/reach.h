// Whether and how hosts of a launch reach each other.
#ifndef CAPSTAN_CLIENT_LAUNCH_REACH_H_
#define CAPSTAN_CLIENT_LAUNCH_REACH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"

namespace capstan::client {

// The address of this host that faces `host` (a name or an address), so that `host` and its
// neighbours can answer to it. Sends nothing. NotFound: the name is unknown. Unavailable: there is
// no route.
absl::StatusOr<std::string> AddressTowards(const std::string& host);

enum class Reach {
  kThere,    // a connection was made
  kRefused,  // the host answers that nothing listens
  kSilent,   // no answer within the timeout
};
// Connects to a TCP `endpoint` and closes the connection.
Reach TryToReach(const services::Endpoint& endpoint, absl::Duration timeout);

std::string HostName();  // of this host, first label only

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_REACH_H_
