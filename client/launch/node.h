// One rank of `capstan launch` on its host. It gets its bundle, starts its service, and ends with
// the service, with its input, with a signal, or when the coordinator is gone. Leaves nothing
// behind.
#ifndef CAPSTAN_CLIENT_LAUNCH_NODE_H_
#define CAPSTAN_CLIENT_LAUNCH_NODE_H_

#include <string>

#include "absl/time/time.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

struct NodeOptions {
  int rank = -1;            // below 0: the rank in the launcher's variables
  std::string by;           // "stdin", "variable", "folder" or "address"
  std::string folder;       // with by = folder: the launch's folder, the same on all hosts
  std::string coordinator;  // HOST:PORT; empty: this rank is the coordinator
  std::string
      interface;  // by whose address others reach us; empty: the one that faces the coordinator
};

// With by = stdin, the bundle comes from standard input, and the end of the input ends the node.
// variable: it comes from kBundlesVariable, a JSON array with the bundle of each rank. folder: it
// comes from RANK.bundle in the folder, which the node removes; the node ends when kLaunchMarker is
// gone from the folder. address: the node prints where it is and ends.
inline constexpr char kBundlesVariable[] = "CAPSTAN_LAUNCH_BUNDLES";
inline constexpr char kLaunchMarker[] = "rank.sh";
// How long ranks in a queue wait for each other.
inline constexpr absl::Duration kQueueTimeout = absl::Hours(1);

// Blocks until the node has ended. Writes NodeLines to standard output. kExitInternal: its service
// could not be started, or ended by itself with an error.
ExitCode RunNode(const NodeOptions& options);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_NODE_H_
