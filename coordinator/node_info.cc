#include "coordinator/node_info.h"

#include <algorithm>
#include <string>

#include "coordinator/core/cards.h"
#include "services/version/version.h"

namespace capstan::coordinator {

job::v1::NodeInfo DescribeNode(const core::Node& node, absl::Duration now) {
  job::v1::NodeInfo info;
  info.set_name(node.name());
  info.set_role(node.reg().role());
  info.set_host(node.host());
  info.set_version(node.reg().version());
  info.set_drained(node.drained());
  info.set_state(node.lost()            ? "LOST"
                 : node.leaving()       ? "LEAVING"
                 : !node.drained()      ? "READY"
                 : !node.jobs().empty() ? "DRAINING"
                                        : "DRAINED");
  info.set_incarnation(node.incarnation());
  info.set_last_seen_seconds(std::max(0.0, absl::ToDoubleSeconds(now - node.last_heard())));
  for (const node::v1::Device& device : node.reg().devices()) info.add_devices(device.name());
  for (const std::string& job : node.slots()) info.add_device_jobs(job);
  info.set_busy_devices(
      static_cast<int32_t>(std::count_if(node.slots().begin(), node.slots().end(),
                                         [](const std::string& job) { return !job.empty(); })));
  for (const std::string& job : node.jobs()) info.add_job_ids(job);
  info.set_data_address(node.reg().data_address());
  *info.mutable_usage() = node.usage();
  return info;
}

job::v1::ClusterInfo DescribeCluster(const core::CoordinatorCore& core, absl::Duration started,
                                     absl::Duration now) {
  job::v1::ClusterInfo info;
  info.set_version(std::string(Version()));
  info.set_uptime_seconds(absl::ToDoubleSeconds(now - started));
  core.ForEachJob([&](const core::Job& job) {
    if (job.state() == common::v1::JOB_STATE_PENDING) {
      info.set_pending_jobs(info.pending_jobs() + 1);
    } else if (!job.resting()) {
      info.set_running_jobs(info.running_jobs() + 1);
    }
  });
  for (const auto& entry : core.nodes().all()) {
    if (entry.second.lost() || entry.second.drained()) continue;
    for (int i = 0; i < static_cast<int>(entry.second.slots().size()); ++i) {
      if (core::IsSpare(entry.second, i)) continue;
      info.set_slots(info.slots() + 1);
      if (!entry.second.slots()[static_cast<size_t>(i)].empty())
        info.set_busy_slots(info.busy_slots() + 1);
    }
  }
  return info;
}

}  // namespace capstan::coordinator
