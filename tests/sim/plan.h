// What a seed means: a small cluster, a job, and the faults that befall it.
//
// Swarm testing (Groce et al. 2012): each seed draws which classes of faults it has at all, then
// how many of each. The faults of a plan stand alone: any of them can be left out, which is how a
// failing seed is made small.
#ifndef CAPSTAN_TESTS_SIM_PLAN_H_
#define CAPSTAN_TESTS_SIM_PLAN_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/sim/network.h"
#include "tests/sim/toy.h"
#include "training/lead/lead.h"

namespace capstan::sim {

enum class FaultClass {
  kSlow,              // messages are late
  kRepeat,            // ... come twice
  kReorder,           // ... overtake each other
  kCorrupt,           // ... have a wrong bit
  kDiskFull,          // writes fail
  kSyncError,         // fsync fails
  kPowerCut,          // a host that crashes loses what was not synced
  kStreamBreak,       // streams of a task break
  kCut,               // two hosts do not hear each other
  kOneWayCut,         // one of them does not hear the other
  kTaskCrash,         // a task ends by a signal; its service reports it
  kWorkerCrash,       // a worker's host; it comes back
  kShardCrash,        // a shard's host; it comes back
  kCoordinatorCrash,  // likewise
  kTaskPause,         // a process stands still: afterwards it is a zombie for a while
  kShardPause,
  kCoordinatorPause,
  kDamage,     // a bit of a checkpoint's file flips on the disk
  kLeadBreak,  // streams between a shard and the others break
};
inline constexpr int kFaultClasses = static_cast<int>(FaultClass::kLeadBreak) + 1;
absl::string_view NameOf(FaultClass what);

struct Fault {
  FaultClass what = FaultClass::kStreamBreak;
  absl::Duration at;      // since the start
  absl::Duration length;  // of a cut, a pause, a host's absence
  int target = 0;         // worker or shard
  int peer = 0;           // of a cut: 0 the coordinator, i + 1 shard i
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
  int lanes = 8;
  int64_t steps = 12;
  int64_t checkpoint_every = 0;  // 0: the last version alone
  Toy toy;
  LinkFaults exchange;  // until everything heals
  double disk_full = 0, sync_error = 0;
  bool power_cuts = false;
  std::vector<Fault> faults;
  std::vector<PlannedOrder> orders;
  absl::Duration fault_time = absl::Seconds(3);  // then everything heals

  bool has(FaultClass what) const;
  void Remove(FaultClass what);
};

Plan DrawPlan(uint64_t seed);
// For people: one line for the cluster, one for each fault.
std::string ToString(const Plan& plan);

// The smallest plan that still fails, by leaving classes out, then single faults and orders. `fails`
// is true for `plan`; it is called at most `max_runs` times.
Plan Shrink(Plan plan, const std::function<bool(const Plan&)>& fails, int max_runs);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_PLAN_H_
