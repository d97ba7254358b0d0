// One simulated cluster and one job: the real cores of coordinator, shards and tasks, a virtual
// clock, a faulty network, a disk. Faults until `fault_time`, then everything heals and the job
// must end well: safety, then liveness.
//
// What is checked while it runs: every version that any shard publishes and any task assembles has
// the bits of the plain reference of its history; all shards carry out the same decisions; a
// generation never names two assignments; a lineage begins where the history that it continues
// was; no frame is ahead of its shard. At the end: SUCCEEDED, every sample of the surviving history
// counted once, a manifest that names files that are there with the right bytes, every order that
// took effect did so once and at the step that was told, nothing left running, nothing left of what
// was forgotten. All the time: a process has one incarnation and no other one has it, and no node is
// taken for lost that was never silent.
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
  Effects effects;  // of the faults, by class
  int takeovers = 0;
  int rollbacks = 0;
  int manifests = 0;
  int left = 0;           // shards that left once they held nothing
  int64_t decided = 0;    // steps of all lineages
  int late_versions = 0;  // that a task took whole although there was a newer one
  int coordinator_restarts = 0;
  int orders = 0;    // that took effect in the surviving history
  int suspends = 0;  // that a person saw
  int joins = 0;     // workers that entered a lineage which others had begun
  int resumed = 0;   // sessions that came back after a break
  int forgotten_jobs = 0;
  int forgotten_nodes = 0;
  int reused_requests = 0;              // request ids of forgotten jobs that made new ones
  std::vector<std::string> violations;  // the first ten
};

// Deterministic: a function of the plan.
WorldResult RunWorld(const Plan& plan);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_WORLD_H_
