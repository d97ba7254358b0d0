// The settings of capstan_coordinator, by flag and environment variable.
#ifndef CAPSTAN_COORDINATOR_CONFIG_H_
#define CAPSTAN_COORDINATOR_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/endpoint/endpoint.h"
#include "services/flags/flags.h"

namespace capstan::coordinator {

struct Config {
  services::CommonFlags common;
  std::string state_dir = "./capstan-state";  // --state-dir, created with mode 0700
  // --data-root: folders that may contain data.uri and model.initial_weights. Default: none.
  std::vector<std::string> data_roots;
  // --checkpoint-root: the same for checkpoint.storage_path. <state-dir>/checkpoints is always one.
  std::vector<std::string> checkpoint_roots;
  absl::Duration lease = absl::Seconds(5);      // --lease, 200 ms to 10 min
  absl::Duration heartbeat = absl::Seconds(1);  // --heartbeat, 50 ms to 1 min, at most half a lease
  // --accept-journal: JournalOptions::accept_commits. Below 0: not set.
  int64_t accept_journal = -1;
  // --expect-nodes: the number of nodes that will register, and no more. 0: any number.
  int64_t expected_nodes = 0;
  // --look: shows only what ReadRunJournals finds there, and allows no change. Empty: not set.
  std::string look;
  // --only-job: CoreOptions::only_job. Empty: any job.
  std::string only_job;
};

// nullopt: continue with `config`. Otherwise the exit code of the process.
std::optional<int> ParseConfig(int argc, const char* const* argv, Config& config);

// Sets the log level. An error names the flag: its value is wrong or contradicts another flag.
absl::Status CheckConfig(const Config& config);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CONFIG_H_
