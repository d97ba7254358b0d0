// GET /sd: tells Prometheus where the /metrics of all services are (its http_sd_configs).
#ifndef CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_
#define CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_

#include <string>

#include "coordinator/core/node_table.h"

namespace capstan::coordinator {

// The name of this machine, as nodes report theirs at registration.
std::string HostName();

// [{"targets": ["host:port"], "labels": {"__scheme__": "http", "component": "gpu_worker", "node":
// "w0"}}, ...], with the coordinator at `own_url` first, then the nodes by name. A silent node is
// listed until it is forgotten, so that `up` shows it. A node that stopped in good order is not
// listed. Nor is a node with a loopback address on a host other than `own_host`: Prometheus would
// find a process with that port on its own host and take it for that node.
std::string ServiceDiscoveryJson(const std::string& own_url, const core::NodeTable& nodes,
                                 const std::string& own_host = HostName());

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_
