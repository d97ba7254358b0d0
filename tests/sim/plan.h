// What a seed means: a small cluster, a job, and the faults that befall it.
//
// Swarm testing (Groce et al. 2012): each seed draws which classes of faults it has at all, then
// how many of each. The faults of a plan stand alone: any of them can be left out, which is how a
// failing seed is made small.
#ifndef CAPSTAN_TESTS_SIM_PLAN_H_
#define CAPSTAN_TESTS_SIM_PLAN_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/sim/fault_class.h"
#include "tests/sim/network.h"
#include "tests/sim/toy.h"
#include "training/lead/lead.h"

namespace capstan::sim {

// A worker's host that is not there from the beginning.
struct LateHost {
  int worker = 0;
  absl::Duration at;  // since the start
};

// What there is to forget: jobs of somebody else, each cancelled as soon as it is accepted, and one
// more host for workers, which goes away for good.
struct Forgetting {
  std::vector<absl::Duration> submits;  // since the start
  absl::Duration gone_at;
  bool goodbye = false;  // the host's service ends itself; else it is cut off
};

// A shard's service is told to stop: it stays until its job has gone on without it, at most `grace`,
// and its host has another one `away` later.
struct ShardLeave {
  absl::Duration at;  // since the start
  int shard = 0;
  absl::Duration grace;
  absl::Duration away;
};

struct Fault {
  FaultClass what = FaultClass::kStreamBreak;
  absl::Duration at;      // since the start
  absl::Duration length;  // of a cut, a pause, a host's absence
  int target = 0;         // worker or shard; of a cut: the host that does not hear
  int peer = 0;  // of a cut: the host that is not heard. 0 is the coordinator, then shards, workers
};

// What a person asks for, again and again until it is answered.
struct PlannedOrder {
  training::Order::What what = training::Order::What::kCheckpoint;
  absl::Duration at;         // since the start
  double learning_rate = 0;  // of kLearningRate
  absl::Duration rest;       // of kSuspend: until the job is resumed,
  int workers = 0;           // with so many (0: as many as before)
  int shards = 0;
};

struct Plan {
  uint64_t seed = 0;
  int workers = 3;
  int shards = 2;
  int spare_shards = 0;  // services that the job does not ask for
  int lanes = 8;
  int64_t steps = 12;
  int64_t checkpoint_every = 0;  // 0: the last version alone
  Toy toy;
  bool local = false;           // kvstore local: one worker, its own store
  int min_workers = 0;          // above 0: an elastic job
  std::vector<LateHost> later;  // of an elastic job
  std::optional<Forgetting> forgetting;
  LinkFaults exchange;  // until everything heals
  double disk_full = 0, sync_error = 0;
  bool power_cuts = false;
  int thin_worker = -1;  // -1: none
  double thin_bytes_per_second = 0;
  absl::Duration thin_from;  // since the start
  std::vector<Fault> faults;
  std::vector<PlannedOrder> orders;
  std::vector<ShardLeave> leaves;                // of no drawn plan
  absl::Duration fault_time = absl::Seconds(3);  // then everything heals

  bool has(FaultClass what) const;
  void Remove(FaultClass what);
};

Plan DrawPlan(uint64_t seed);
// No faults; one of three workers is behind a link on which a version takes many steps.
Plan ThinLinkPlan(uint64_t seed);
// No faults; shards leave, of three with one to spare or of two without, as the seed is odd or even.
Plan LeavesPlan(uint64_t seed);
// Of a seed's own, whatever else the plan has: one to three within the time of faults.
std::vector<ShardLeave> DrawLeaves(const Plan& plan);
// For people: one line for the cluster, one for each fault.
std::string ToString(const Plan& plan);

// The smallest plan that still fails, by leaving classes out, then single faults and orders. `fails`
// is true for `plan`; it is called at most `max_runs` times.
Plan Shrink(Plan plan, const std::function<bool(const Plan&)>& fails, int max_runs);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_PLAN_H_
