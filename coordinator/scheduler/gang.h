// Which nodes a job gets: a whole gang to begin with, workers that it lacks, homes for its shards.
#ifndef CAPSTAN_COORDINATOR_SCHEDULER_GANG_H_
#define CAPSTAN_COORDINATOR_SCHEDULER_GANG_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "coordinator/scheduler/snapshot.h"

namespace capstan::coordinator::scheduler {

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
//   gpu    cards alone. A card of a host is held by one worker at a time, so the workers of a host
//          are dealt different ones. A card is known by its host and its UUID, whichever nodes offer
//          it. One without a UUID is held where its slot is.
//   cpu    CPU devices alone. They share the cores of their host and nothing else, so a worker with
//          one slot carries a job of any number of them: its indices are then repeated. Where a job
//          wants more than a worker has slots, or names others, it gets all slots of the worker.
//   auto   cards where as many workers as the job needs have as many as it asks for, be they held
//          by others or not; else CPU devices. Never both. So a job waits for cards that are busy,
//          and only where there will never be enough of them it takes CPUs. A model that GPUs do not
//          support takes CPUs at once.
// Nodes that are lost or drained do not count, those that are only not heard of yet do.
bool WantsGpus(const Nodes& nodes, const GangRequest& request);

// At least min_workers, at most num_workers, with the shards all of one version: of several the one
// with most workers, then the newest. Nodes by name; param_stores with the fewest jobs first. Where
// there are fewer nodes than workers, a node with the devices of several stands for as many: it gets
// one task with all of them. nullopt: it does not fit now.
std::optional<Gang> FindGang(const Nodes& nodes, const GangRequest& request);

// As many of `num_workers` as are free, on fewer nodes where these have the devices.
std::vector<Gang::Worker> FreeWorkers(const Nodes& nodes, const GangRequest& request);

// Shards of a job that runs, of which some need another home.
struct HomesRequest {
  struct Shard {
    int32_t index = 0;
    std::string node;    // where it is, or was
    bool needs = false;  // another home; the same node counts if it has started anew
  };
  std::vector<Shard> shards;
  // What the members that the job still has registered as; not set: it has none left.
  std::optional<std::string> version;
  std::set<std::string> exclude;  // nodes that are not taken
};

// By index, a node for each shard that needs one: that of the same name, or any param_store that the
// job does not use, with the fewest jobs. All of one version: where `version` is not set, the newest
// that has homes for all of them. A worker of that version must be there, too: new shards would
// otherwise tie the job to a version that no worker can compute. Where all nodes are of one version
// there is nothing to choose. nullopt: some would have none.
std::optional<std::map<int32_t, std::string>> FindHomes(const Nodes& nodes,
                                                        const HomesRequest& request);

// Whether it would fit if nobody else held a slot.
bool CouldFit(const Nodes& nodes, const GangRequest& request);

// Null: there is none.
Node* Find(Nodes& nodes, absl::string_view name);
const Node* Find(const Nodes& nodes, absl::string_view name);

// How many workers one with so many devices stands for, at least 1.
int WorkersFor(size_t devices, int devices_per_worker);

// "needs 2 workers with 1 free device each, 1 is there; needs 1 param_store, 0 are there"; "needs 2
// workers with 1 free device each, 0 of 2 are free (lenet-x3n9 has them)". Where
// cards are missing, and a worker said why it has none, with its sentence. Where only their versions
// keep nodes apart: "its workers and param_stores must have one version: worker w0 is of 0.1.0,
// param_store s0 is of 0.2.0".
std::string MissingText(const Nodes& nodes, const GangRequest& request);

// "GPUs", "CPUs" or, where `auto` did not take cards that there are, why: "CPUs (2 workers with 1 GPU
// each are needed, 1 is there)", "CPUs (GPUs do not support node bn1 (BatchNormalization))".
std::string KindText(const Nodes& nodes, const GangRequest& request, bool on_gpus);

}  // namespace capstan::coordinator::scheduler

#endif  // CAPSTAN_COORDINATOR_SCHEDULER_GANG_H_
