// Nodes and the cluster as the API shows them.
#ifndef CAPSTAN_COORDINATOR_NODE_INFO_H_
#define CAPSTAN_COORDINATOR_NODE_INFO_H_

#include "absl/time/time.h"
#include "capstan/job/v1/admin_service.pb.h"
#include "coordinator/core/core.h"

namespace capstan::coordinator {

// `now`: the core's time.
job::v1::NodeInfo DescribeNode(const core::Node& node, absl::Duration now);

// `started`: when this coordinator started.
job::v1::ClusterInfo DescribeCluster(const core::CoordinatorCore& core, absl::Duration started,
                                     absl::Duration now);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_NODE_INFO_H_
