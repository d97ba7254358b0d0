// One simulated cluster and one job: the real cores of coordinator, shards and tasks, a virtual
// clock, a faulty network and a disk. Faults occur until `fault_time`. Then everything heals, and
// the job must succeed: safety first, then liveness.
//
// Checked while the job runs:
//   - Every version that a shard publishes or a task assembles has the bits of the plain reference
//     of its history.
//   - The weights of an asynchronous job have each contribution at most once, and all that their
//     marks say. No lane computes on weights that are staler than the job allows.
//   - All shards carry out the same decisions.
//   - A generation never names two assignments.
//   - A lineage begins where the history that it continues ended.
//   - No frame is ahead of its shard.
//   - Each process has one incarnation, and no two processes have the same.
//   - A node that was never silent is not taken for lost.
// Checked at the end:
//   - The job is SUCCEEDED, and every sample of the surviving history is counted once. The last
//     weights of an asynchronous job have every contribution exactly once.
//   - The manifest names files that exist and have the right bytes.
//   - Every order took effect at most once, and at the step that was reported.
//   - Nothing still runs, and nothing is left of forgotten jobs.
#ifndef CAPSTAN_TESTS_SIM_WORLD_H_
#define CAPSTAN_TESTS_SIM_WORLD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"
#include "tests/sim/fault_class.h"
#include "tests/sim/plan.h"

namespace capstan::sim {

struct WorldResult {
  job::v1::Job job;
  uint64_t trace_hash = 0;
  Effects effects;  // of the faults, for each class
  int takeovers = 0;
  int rollbacks = 0;
  int manifests = 0;
  int left = 0;           // shards that left after they held nothing
  int64_t decided = 0;    // steps of all lineages
  int moves = 0;          // of shards, that took effect
  int late_versions = 0;  // versions that a task took whole although there was a newer one
  int coordinator_restarts = 0;
  int orders = 0;           // orders that took effect in the surviving history
  int suspends = 0;         // suspends that a person saw
  int joins = 0;            // workers that joined a lineage begun by others
  int64_t stale_steps = 0;  // of lanes of an asynchronous job: on weights that lack earlier steps
  int resumed = 0;          // sessions that came back after a break
  int forgotten_jobs = 0;
  int forgotten_nodes = 0;
  int reused_requests = 0;              // request ids of forgotten jobs that made new jobs
  std::vector<std::string> violations;  // the first ten
};

// Deterministic: the result depends only on the plan.
WorldResult RunWorld(const Plan& plan);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_WORLD_H_
