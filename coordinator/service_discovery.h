// GET /sd: where Prometheus finds the /metrics of all services (its http_sd_configs).
#ifndef CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_
#define CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_

#include <string>

#include "coordinator/core/node_table.h"

namespace capstan::coordinator {

// Of this machine, as nodes tell theirs when they register.
std::string HostName();

// [{"targets": ["host:port"], "labels": {"__scheme__": "http", "component": "gpu_worker", "node":
// "w0"}}, ...]: the coordinator at `own_url` first, then the nodes by name. A node that fell silent
// is listed, so that `up` says so, until it is forgotten; one that stopped in good order is not.
// Nor is one with a loopback address on another host than `own_host`: Prometheus would find whoever
// has this port on its own host, and take it for that node.
std::string ServiceDiscoveryJson(const std::string& own_url, const core::NodeTable& nodes,
                                 const std::string& own_host = HostName());

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_
