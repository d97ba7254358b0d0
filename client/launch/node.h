// One rank of `capstan launch` on its host: gets its bundle, starts its service and ends with it,
// with its input, with a signal, or when the coordinator is gone. Leaves nothing behind.
#ifndef CAPSTAN_CLIENT_LAUNCH_NODE_H_
#define CAPSTAN_CLIENT_LAUNCH_NODE_H_

#include <string>

#include "absl/time/time.h"
#include "client/exit_codes.h"

namespace capstan::client {

struct NodeOptions {
  int rank = -1;            // below 0: what the launcher's variables say
  std::string by;           // "stdin", "variable", "folder" or "address"
  std::string folder;       // with by = folder: of the launch, the same on all hosts
  std::string coordinator;  // HOST:PORT; empty: this rank is the coordinator
  std::string
      interface;  // whose address others reach us by; empty: the one on the way to the coordinator
};

// With by = stdin: the bundle comes from standard input, and its end is the end of the node.
// variable: from kBundlesVariable, a JSON array with the bundle of each rank. folder: from
// RANK.bundle in there, which the node removes; the end of kLaunchMarker in there is the end of the
// node. address: says where it is and does nothing more.
inline constexpr char kBundlesVariable[] = "CAPSTAN_LAUNCH_BUNDLES";
inline constexpr char kLaunchMarker[] = "rank.sh";
// How long the ranks of a queue wait for each other.
inline constexpr absl::Duration kQueueTimeout = absl::Hours(1);

// Blocks until the node has ended. Writes NodeLines to standard output. kExitInternal: it could not
// start its service, or that ended by itself and not well.
ExitCode RunNode(const NodeOptions& options);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_NODE_H_
