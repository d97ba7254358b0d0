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
  std::string not_on_gpus;          // what of its model GPUs do not carry out; empty: nothing
  int num_shards = 1;               // 0 for local and device
  std::set<std::string> exclude;    // nodes that are not taken
  // A service with the devices of several workers stands for one all the same: where as many services
  // as workers were started for the job.
  bool one_per_node = false;
  // What its workers and shards registered as; not set: any, and of one version all of them. Without
  // shards it does not matter.
  std::optional<std::string> version;
  // clang-tidy 14 takes the 0 in what the compiler writes here for a pointer.
  auto operator<=>(const GangRequest&) const = default;  // NOLINT(modernize-use-nullptr)
};

// What a valid spec asks for, defaults filled in.
GangRequest RequestOf(const job::v1::JobSpec& spec);

struct Gang {
  // One task. Each on its own node, with as many devices as the workers that it stands for have.
  struct Worker {
    std::string node;
    std::vector<int> devices;  // indices into the node's devices
  };
  std::vector<Worker> workers;      // by rank
  int num_workers = 0;              // that these stand for
  std::vector<std::string> shards;  // by index; each on its own node
  bool on_gpus = false;
};

// What a job computes on, however its services were started:
//   gpu    cards alone. A card of a host is held by one worker at a time (cards.h), so the workers
//          of a host are dealt different ones.
//   cpu    CPU devices alone. They share the cores of their host and nothing else, so a worker with
//          one slot carries a job of any number of them: its indices are then repeated. Where a job
//          wants more than a worker has slots, or names others, it gets all slots of the worker.
//   auto   cards where as many workers as the job needs have as many as it asks for, be they held
//          by others or not; else CPU devices. Never both. So a job waits for cards that are busy,
//          and only where there will never be enough of them it takes CPUs. A model that GPUs do not
//          carry out takes CPUs at once.
// Nodes that are lost or drained do not count, those that are only not heard of yet do.
bool WantsGpus(const NodeTable& nodes, const GangRequest& request);

// At least min_workers, at most num_workers, with the shards all of one version: of several the one
// with most workers, then the newest. Nodes by name; param_stores with the fewest jobs first. Where
// there are fewer nodes than workers, a node with the devices of several stands for as many: it gets
// one task with all of them. nullopt: it does not fit now.
std::optional<Gang> FindGang(const NodeTable& nodes, const GangRequest& request);

// As many of `num_workers` as are free, on fewer nodes where these have the devices.
std::vector<Gang::Worker> FreeWorkers(const NodeTable& nodes, const GangRequest& request);

// Whether it would fit if nobody else held a slot.
bool CouldFit(const NodeTable& nodes, const GangRequest& request);

// How many workers one with so many devices stands for, at least 1.
int WorkersFor(size_t devices, int devices_per_worker);

// "needs 2 workers with 1 free device each, 1 is there; needs 1 param_store, 0 are there"; "needs 2
// workers with 1 free device each, 0 of 2 are free (lenet-x3n9 has them)". Where
// cards are missing, and a worker said why it has none, with its sentence. Where only their versions
// keep nodes apart: "its workers and param_stores are to be of one version: worker w0 is of 0.1.0,
// param_store s0 is of 0.2.0".
std::string MissingText(const NodeTable& nodes, const GangRequest& request);

// "GPUs", "CPUs" or, where `auto` did not take cards that there are, why: "CPUs (2 workers with 1 GPU
// each are needed, 1 is there)", "CPUs (GPUs do not carry out node bn1 (BatchNormalization))".
std::string KindText(const NodeTable& nodes, const GangRequest& request, bool on_gpus);

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_GANG_H_
