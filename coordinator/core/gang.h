// Which nodes a job could run on: all of its workers and shards at once, or none.
#ifndef CAPSTAN_COORDINATOR_CORE_GANG_H_
#define CAPSTAN_COORDINATOR_CORE_GANG_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "capstan/job/v1/job_spec.pb.h"
#include "coordinator/core/node_table.h"

namespace capstan::coordinator::core {

struct GangRequest {
  int num_workers = 1;
  int min_workers = 0;  // as many are enough to begin with; 0: all
  int devices_per_worker = 1;
  std::vector<int> device_indices;  // empty: any; else exactly these of each worker
  std::string device = "auto";      // auto | cpu | gpu
  int num_shards = 1;               // 0 for local and device
  std::set<std::string> exclude;    // nodes that are not taken
  // clang-tidy 14 takes the 0 in what the compiler writes here for a pointer.
  auto operator<=>(const GangRequest&) const = default;  // NOLINT(modernize-use-nullptr)
};

// What a valid spec asks for, defaults filled in.
GangRequest RequestOf(const job::v1::JobSpec& spec);

struct Gang {
  struct Worker {
    std::string node;
    std::vector<int> devices;  // indices into the node's devices
  };
  std::vector<Worker> workers;      // by rank; each on its own node
  std::vector<std::string> shards;  // by index; each on its own node
};

// At least min_workers, at most num_workers. Nodes by name; param_stores with the fewest jobs first. `auto` takes GPUs where enough of them
// are free, else CPUs, never both. nullopt: it does not fit now.
std::optional<Gang> FindGang(const NodeTable& nodes, const GangRequest& request);

// As many of `num_workers` as are free.
std::vector<Gang::Worker> FreeWorkers(const NodeTable& nodes, const GangRequest& request);

// Whether it would fit if nobody else held a slot.
bool CouldFit(const NodeTable& nodes, const GangRequest& request);

// "needs 2 workers with 1 free device each, 1 is there; needs 1 param_store, 0 are there".
std::string MissingText(const NodeTable& nodes, const GangRequest& request);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_GANG_H_
