// What the scheduler knows of the cluster: plain data, made anew by the core for each question.
//
// Texts of nodes are borrowed: they belong to whoever made the snapshot and outlive it.
#ifndef CAPSTAN_COORDINATOR_SCHEDULER_SNAPSHOT_H_
#define CAPSTAN_COORDINATOR_SCHEDULER_SNAPSHOT_H_

#include <compare>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::coordinator::scheduler {

struct Device {
  bool cpu = false;          // else a card
  absl::string_view uuid;    // of a card; empty: a CPU, or a card of an older worker
  absl::string_view holder;  // the job that holds it; empty: it is free
};

struct Node {
  absl::string_view name;
  absl::string_view host;
  absl::string_view version;
  absl::string_view no_gpu;  // why it has no cards, in its own words; empty: it did not say
  bool worker = false;       // else a param_store
  bool lost = false;
  bool drained = false;
  bool takes_work = false;  // connected, heard, not drained and not about to stop
  std::vector<Device> devices;
  size_t jobs = 0;  // of which it has a worker or a shard
};

// By name, each once.
using Nodes = std::vector<Node>;

// What a job asks for.
struct GangRequest {
  int num_workers = 1;
  int min_workers = 0;  // as many are enough to begin with; 0: all
  int devices_per_worker = 1;
  std::vector<int> device_indices;  // empty: any; else exactly these of each worker
  std::string device = "auto";      // auto | cpu | gpu
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

// A job that waits for its gang.
struct PendingJob {
  std::string id;
  GangRequest request;
  absl::Duration not_before = -absl::InfiniteDuration();  // it backs off until then
};

// How far a pass through the queue has got. A job that is submitted when nothing else has changed
// continues the last pass.
struct Queue {
  size_t places = 0;        // jobs that wait so far
  std::string reserved_by;  // the job that all jobs behind it wait for; empty: there is none
  std::map<GangRequest, std::string> lacks;              // requests that do not fit now, and why
  absl::Duration next_retry = absl::InfiniteDuration();  // the first end of a back-off

  // Plan needs no nodes to answer this request.
  bool Knows(const GangRequest& request) const {
    return !reserved_by.empty() || lacks.count(request) > 0;
  }
};

struct Snapshot {
  // All that have registered. They may be left out if `queue` knows every request. What running
  // jobs hold is in Device::holder and Node::jobs.
  Nodes nodes;
  std::vector<PendingJob> pending;  // first come, first served
  Queue queue;
  bool nobody_else_comes = false;  // all nodes that will ever register are there
};

}  // namespace capstan::coordinator::scheduler

#endif  // CAPSTAN_COORDINATOR_SCHEDULER_SNAPSHOT_H_
