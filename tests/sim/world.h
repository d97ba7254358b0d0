// One simulated cluster and one job: the real cores of coordinator, shards and tasks, a virtual
// clock, a faulty network.
//
// What is checked while it runs: every version that any shard publishes and any task assembles has
// the bits of the plain reference; a generation never names two assignments; the log of samples
// adds up at the end.
#ifndef CAPSTAN_TESTS_SIM_WORLD_H_
#define CAPSTAN_TESTS_SIM_WORLD_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "capstan/job/v1/job_service.pb.h"
#include "coordinator/core/core.h"
#include "coordinator/core/journal.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_shard.h"
#include "tests/sim/sim_task.h"

namespace capstan::sim {

struct WorldOptions {
  uint64_t seed = 0;
  int workers = 3;
  int shards = 2;
  int lanes = 8;
  int64_t steps = 12;
  Toy toy;
  LinkFaults exchange;    // on the streams between tasks, shards and the lead
  int stream_breaks = 0;  // in the first seconds
  int worker_kills = 0;   // at most workers - 1
  int worker_cuts = 0;  // session to the coordinator lost for longer than a lease; the task goes on
  int pauses = 0;       // a task stands still for up to two seconds
  absl::Duration fault_time = absl::Seconds(3);
};

struct WorldResult {
  job::v1::Job job;
  uint64_t trace_hash = 0;
  int faults = 0;
  std::vector<std::string> violations;
};

// Runs until the job has ended and everything is quiet, at most 120 virtual seconds.
WorldResult RunWorld(const WorldOptions& options);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTS_SIM_WORLD_H_
