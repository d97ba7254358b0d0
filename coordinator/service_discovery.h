// GET /sd: where Prometheus finds the /metrics of all services (its http_sd_configs).
#ifndef CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_
#define CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_

#include <string>

#include "coordinator/core/node_table.h"

namespace capstan::coordinator {

// [{"targets": ["host:port"], "labels": {"__scheme__": "http", "component": "gpu_worker", "node":
// "w0"}}, ...]: the coordinator at `own_url` first, then the nodes by name. A node that fell silent
// is listed, so that `up` says so, until it is forgotten; one that stopped in good order is not.
std::string ServiceDiscoveryJson(const std::string& own_url, const core::NodeTable& nodes);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_SERVICE_DISCOVERY_H_
