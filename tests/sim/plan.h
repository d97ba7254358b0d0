// What a seed stands for: a small cluster, a job, and its faults.
//
// Swarm testing (Groce et al. 2012): each seed first draws its classes of faults, then how many
// faults of each. The faults of a plan are independent, so Shrink can leave out any of them to make
// a failing seed small.
#ifndef CAPSTAN_TESTS_SIM_PLAN_H_
#define CAPSTAN_TESTS_SIM_PLAN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "capstan/job/v1/job_service.pb.h"
#include "tests/sim/fault_class.h"
#include "tests/sim/network.h"
#include "tests/sim/toy.h"
#include "training/lead/lead.h"

namespace capstan::sim {

// A worker's host that starts later than the others.
struct LateHost {
  int worker = 0;
  absl::Duration at;  // since the start
};

// What the coordinator will have to forget: jobs of another person, each cancelled as soon as it is
// accepted, and one more worker's host, which goes away for good.
struct Forgetting {
  std::vector<absl::Duration> submits;  // since the start
  absl::Duration gone_at;
  bool goodbye = false;  // true: the host's service ends itself; false: it is cut off
};

// A shard's service is told to stop. It stays until its job continues without it, at most for
// `grace`. Another service starts on its host after `away`.
struct ShardLeave {
  absl::Duration at;  // since the start
  int shard = 0;
  absl::Duration grace;
  absl::Duration away;
};

// A person's order to move a shard, which is repeated until it is accepted.
struct PlannedMove {
  absl::Duration at;  // since the start
  job::v1::ShardChange change = job::v1::SHARD_CHANGE_ADD;
  int shard = 0;  // of as many as the job has then
};

struct Fault {
  FaultClass what = FaultClass::kStreamBreak;
  absl::Duration at;      // since the start
  absl::Duration length;  // of a cut, a pause or a host's absence
  int target = 0;         // a worker or a shard; for a cut, the host that does not hear
  // For a cut, the host that is not heard. 0 is the coordinator, then come shards, then workers.
  int peer = 0;
};

// A person's order, which is repeated until it is answered.
struct PlannedOrder {
  training::Order::What what = training::Order::What::kCheckpoint;
  absl::Duration at;           // since the start
  double learning_rate = 0;    // for kLearningRate
  int64_t max_staleness = -1;  // for kMaxStaleness
  absl::Duration rest;         // for kSuspend: how long the job stays suspended
  int workers = 0;             // for kSuspend: workers after that; 0: as many as before
  int shards = 0;              // likewise
};

struct Plan {
  uint64_t seed = 0;
  int workers = 3;
  int shards = 2;
  int spare_shards = 0;  // services beyond those that the job asks for
  int lanes = 8;
  int64_t steps = 12;
  int64_t checkpoint_every = 0;  // in steps; 0: only the last version
  Toy toy;
  bool local = false;           // kvstore local: one worker, which is its own store
  bool asynchronous = false;    // kvstore dist_async
  int64_t max_staleness = -1;   // for an asynchronous job; -1: any
  bool compressed = false;      // gradients are sent as bfloat16, which they fit into
  bool replicas = false;        // kvstore.update_on_kvstore: false
  bool evaluates = true;        // false: only the last version
  int min_workers = 0;          // above 0: an elastic job
  std::vector<LateHost> later;  // for an elastic job
  std::optional<Forgetting> forgetting;
  LinkFaults exchange;  // until everything heals
  double disk_full = 0, sync_error = 0;
  bool power_cuts = false;
  int thin_worker = -1;  // -1: none
  double thin_bytes_per_second = 0;
  absl::Duration thin_from;  // since the start
  std::vector<Fault> faults;
  std::vector<PlannedOrder> orders;
  std::vector<ShardLeave> leaves;                // DrawPlan draws none
  std::vector<PlannedMove> moves;                // likewise
  absl::Duration fault_time = absl::Seconds(3);  // then everything heals

  bool has(FaultClass what) const;
  void Remove(FaultClass what);
};

Plan DrawPlan(uint64_t seed);
// The faults of DrawPlan, with an asynchronous job. Half of the jobs bound the staleness. Half do not
// evaluate, so that weights come only as answers.
Plan AsynchronousPlan(uint64_t seed);
// The faults of DrawPlan, with compressed gradients, and all else as in DrawPlan.
Plan CompressedPlan(uint64_t seed);
// The faults of DrawPlan, with error feedback whose residuals checkpoints have, and all else as in
// DrawPlan.
Plan ResidualsPlan(uint64_t seed);
// The faults of DrawPlan, with workers that update replicas, and all else as in DrawPlan.
Plan ReplicaPlan(uint64_t seed);
// No faults. One of three workers has a link so thin that a version takes many steps.
Plan ThinLinkPlan(uint64_t seed);
// No faults, but shards leave. An odd seed has three shards, one of them spare. An even one has
// two.
Plan LeavesPlan(uint64_t seed);
// One to three leaves within the time of faults. They depend on the seed and not on the plan's
// other faults.
std::vector<ShardLeave> DrawLeaves(const Plan& plan);
// No faults. A shard is added, one is drained, and one is moved. There are two shards and two spare ones.
Plan MovesPlan(uint64_t seed);
// Two to five moves within the time of faults. They depend on the seed and not on the plan's other faults.
std::vector<PlannedMove> DrawMoves(const Plan& plan);
// For people: a line for the cluster and a line for each fault.
std::string ToString(const Plan& plan);

// Returns a smaller plan that still fails: leaves out whole classes, then single faults and orders.
// `fails` is true for `plan`, and is called at most `max_runs` times.
Plan Shrink(Plan plan, const std::function<bool(const Plan&)>& fails, int max_runs);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_PLAN_H_
