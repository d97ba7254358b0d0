#include "coordinator/core/gang.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"

namespace capstan::coordinator::core {
namespace {

enum class Kind { kCpu, kGpu };

bool IsKind(const node::v1::Device& device, Kind kind) {
  const bool cpu = device.name() == "cpu" || absl::StartsWith(device.name(), "cpu:");
  return cpu == (kind == Kind::kCpu);
}

// The devices that a worker on `node` would get; empty: not enough of them.
std::vector<int> DevicesOn(const Node& node, const GangRequest& request, Kind kind,
                           bool ignore_holds) {
  std::vector<int> devices;
  const auto usable = [&](int i) {
    return i >= 0 && i < node.reg.devices_size() && IsKind(node.reg.devices(i), kind) &&
           (ignore_holds || node.slots[i].empty());
  };
  if (!request.device_indices.empty()) {
    for (const int i : request.device_indices) {
      if (!usable(i)) return {};
      devices.push_back(i);
    }
    return devices;
  }
  for (int i = 0; i < node.reg.devices_size(); ++i) {
    if (static_cast<int>(devices.size()) == request.devices_per_worker) break;
    if (usable(i)) devices.push_back(i);
  }
  if (static_cast<int>(devices.size()) < request.devices_per_worker) return {};
  return devices;
}

std::vector<Gang::Worker> WorkersOf(const NodeTable& nodes, const GangRequest& request, Kind kind,
                                    bool ignore_holds) {
  std::vector<Gang::Worker> workers;
  for (const auto& entry : nodes.all()) {
    const Node& node = entry.second;
    if (static_cast<int>(workers.size()) == request.num_workers) break;
    if (!node.takes_work() || !node.is_worker() || request.exclude.count(node.name()) > 0) continue;
    std::vector<int> devices = DevicesOn(node, request, kind, ignore_holds);
    if (!devices.empty()) workers.push_back({node.name(), std::move(devices)});
  }
  return workers;
}

std::vector<Kind> KindsOf(const GangRequest& request) {
  if (request.device == "cpu") return {Kind::kCpu};
  if (request.device == "gpu") return {Kind::kGpu};
  return {Kind::kGpu, Kind::kCpu};
}

// The largest set of workers that one kind of device gives.
std::vector<Gang::Worker> BestWorkers(const NodeTable& nodes, const GangRequest& request,
                                      bool ignore_holds) {
  std::vector<Gang::Worker> best;
  for (const Kind kind : KindsOf(request)) {
    std::vector<Gang::Worker> workers = WorkersOf(nodes, request, kind, ignore_holds);
    if (workers.size() > best.size()) best = std::move(workers);
  }
  return best;
}

std::vector<std::string> ShardsOf(const NodeTable& nodes, const GangRequest& request) {
  std::vector<std::pair<size_t, std::string>> free;
  for (const auto& entry : nodes.all()) {
    const Node& node = entry.second;
    if (!node.takes_work() || node.is_worker() || request.exclude.count(node.name()) > 0) continue;
    free.emplace_back(node.jobs.size(), node.name());
  }
  std::sort(free.begin(), free.end());
  std::vector<std::string> shards;
  for (const auto& entry : free) {
    if (static_cast<int>(shards.size()) == request.num_shards) break;
    shards.push_back(entry.second);
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

int Least(const GangRequest& request) {
  return request.min_workers > 0 ? request.min_workers : request.num_workers;
}

bool Enough(const Gang& gang, const GangRequest& request) {
  return static_cast<int>(gang.workers.size()) >= Least(request) &&
         static_cast<int>(gang.shards.size()) == request.num_shards;
}

}  // namespace

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

std::vector<Gang::Worker> FreeWorkers(const NodeTable& nodes, const GangRequest& request) {
  return BestWorkers(nodes, request, /*ignore_holds=*/false);
}

std::optional<Gang> FindGang(const NodeTable& nodes, const GangRequest& request) {
  Gang gang;
  gang.workers = BestWorkers(nodes, request, /*ignore_holds=*/false);
  gang.shards = ShardsOf(nodes, request);
  if (!Enough(gang, request)) return std::nullopt;
  return gang;
}

bool CouldFit(const NodeTable& nodes, const GangRequest& request) {
  Gang gang;
  gang.workers = BestWorkers(nodes, request, /*ignore_holds=*/true);
  gang.shards = ShardsOf(nodes, request);
  return Enough(gang, request);
}

std::string MissingText(const NodeTable& nodes, const GangRequest& request) {
  std::vector<std::string> missing;
  const int workers = static_cast<int>(BestWorkers(nodes, request, false).size());
  const int least = Least(request);
  if (workers < least) {
    std::string what =
        request.device_indices.empty()
            ? absl::StrCat(request.devices_per_worker, " free ",
                           request.device == "auto" ? "" : request.device + " ",
                           request.devices_per_worker == 1 ? "device" : "devices")
            : absl::StrCat("free devices ", absl::StrJoin(request.device_indices, ","));
    missing.push_back(absl::StrCat("needs ", least, least == 1 ? " worker" : " workers", " with ",
                                   what, least == 1 ? "" : " each", ", ", workers,
                                   workers == 1 ? " is there" : " are there"));
  }
  const int shards = static_cast<int>(ShardsOf(nodes, request).size());
  if (shards < request.num_shards) {
    missing.push_back(absl::StrCat("needs ", request.num_shards,
                                   request.num_shards == 1 ? " param_store" : " param_stores", ", ",
                                   shards, shards == 1 ? " is there" : " are there"));
  }
  return absl::StrJoin(missing, "; ");
}

}  // namespace capstan::coordinator::core
