#include "coordinator/core/scheduling.h"

#include <algorithm>
#include <string>
#include <utility>

#include "coordinator/core/cards.h"

namespace capstan::coordinator::core {

using scheduler::GangRequest;

GangRequest RequestOf(const job::v1::JobSpec& spec) {
  const job::v1::Resources& resources = spec.resources();
  GangRequest request;
  if (resources.has_num_workers()) request.num_workers = resources.num_workers();
  request.min_workers = std::min(resources.min_workers(), request.num_workers);
  request.device_indices.assign(resources.devices().begin(), resources.devices().end());
  if (resources.has_gpus_per_worker()) {
    request.devices_per_worker = resources.gpus_per_worker();
  } else if (!request.device_indices.empty()) {
    request.devices_per_worker = static_cast<int>(request.device_indices.size());
  }
  if (resources.has_device()) request.device = resources.device();
  const std::string type = spec.kvstore().has_type() ? spec.kvstore().type()
                           : request.num_workers > 1 ? "dist_sync"
                                                     : "local";
  if (type == "local" || type == "device") {
    request.num_shards = 0;
  } else if (resources.has_num_shards()) {
    request.num_shards = resources.num_shards();
  }
  return request;
}

scheduler::Nodes NodesOf(const NodeTable& nodes) {
  scheduler::Nodes out;
  out.reserve(nodes.size());
  for (const auto& [name, node] : nodes.all()) {
    scheduler::Node& to = out.emplace_back();
    to.name = name;
    to.host = node.host();
    to.version = node.reg().version();
    to.no_gpu = node.reg().no_gpu();
    to.worker = node.is_worker();
    to.lost = node.lost();
    to.drained = node.drained();
    to.takes_work = node.takes_work();
    to.jobs = node.jobs().size();
    to.devices.reserve(node.slots().size());
    for (int i = 0; i < node.reg().devices_size(); ++i) {
      const node::v1::Device& device = node.reg().devices(i);
      to.devices.push_back({IsCpu(device), device.uuid(), node.slots()[static_cast<size_t>(i)]});
    }
  }
  return out;
}

std::map<std::string, std::set<std::string>> StraysOf(const NodeTable& table) {
  std::map<std::string, std::set<std::string>> strays;
  for (const auto& [name, node] : table.all()) {
    for (const auto& [job, sent] : node.strays()) strays[job].insert(name);
  }
  return strays;
}

}  // namespace capstan::coordinator::core
