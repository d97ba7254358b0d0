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
  // --data-root: folders that data.uri and model.initial_weights may lie in. Default: none.
  std::vector<std::string> data_roots;
  // --checkpoint-root: the same for checkpoint.storage_path. <state-dir>/checkpoints is always one.
  std::vector<std::string> checkpoint_roots;
  absl::Duration lease = absl::Seconds(5);      // --lease, 200 ms to 10 min
  absl::Duration heartbeat = absl::Seconds(1);  // --heartbeat, 50 ms to 1 min, at most half a lease
  // --accept-journal: JournalOptions::accept_commits. Below 0: no.
  int64_t accept_journal = -1;
  // --expect-nodes: so many nodes come and no more; 0: any number.
  int64_t expected_nodes = 0;
  // --look: ReadRunJournals of it is all that there is, and nothing changes it. Empty: no.
  std::string look;
  // --only-job: CoreOptions::only_job. Empty: any job.
  std::string only_job;
};

// nullopt: go on with `config`. Otherwise the exit code of the process.
std::optional<int> ParseConfig(int argc, const char* const* argv, Config& config);

// Sets the log level. Not OK, naming the flag: a setting that is wrong, that does not go together
// with another one, or that this version does not carry out.
absl::Status CheckConfig(const Config& config);

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_CONFIG_H_
