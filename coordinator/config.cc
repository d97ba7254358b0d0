#include "coordinator/config.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace capstan::coordinator {
namespace {

constexpr size_t kMaxOnlyJobBytes = 127;

// Whether this is a valid id. It becomes the name of a folder.
bool IsJobId(absl::string_view id) {
  return id.size() <= kMaxOnlyJobBytes && absl::ascii_islower(static_cast<unsigned char>(id[0])) &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
         });
}

}  // namespace

std::optional<int> ParseConfig(int argc, const char* const* argv, Config& config) {
  services::FlagSet flags("capstan_coordinator", "Admits, places and watches training jobs.");
  flags.AddCommon(config.common, "127.0.0.1:7070", "127.0.0.1:7071");
  flags.AddString("state-dir", config.state_dir, "DIR",
                  "folder for its state, and for checkpoints of jobs that name no folder");
  flags.AddList("data-root", config.data_roots, "URI",
                "folders that a job may read from (data.uri, model.initial_weights)");
  flags.AddList("checkpoint-root", config.checkpoint_roots, "URI",
                "folders that a job may write to (checkpoint.storage_path), besides "
                "<state-dir>/checkpoints");
  flags.AddDuration("lease", config.lease, "how long a silent node keeps its place",
                    absl::Milliseconds(200), absl::Minutes(10));
  flags.AddDuration("heartbeat", config.heartbeat, "how often a node sends a heartbeat",
                    absl::Milliseconds(50), absl::Minutes(1));
  flags.AddInt("accept-journal", config.accept_journal, "commits",
               "continue with a damaged journal that still holds this many commits (see the "
               "refusal); -1: never",
               -1, std::numeric_limits<int64_t>::max());
  flags.AddInt("expect-nodes", config.expected_nodes, "nodes",
               "exactly this many will come, so a job too large for them fails at once; 0: any "
               "number may come",
               0, 10000);
  flags.AddString(
      "only-job", config.only_job, "ID",
      "accept only the job of this id; its services end together with this one; for capstan "
      "run");
  flags.AddString("look", config.look, "FOLDER",
                  "show the runs that capstan run has left in this folder; change nothing and "
                  "accept no node");
  return flags.Parse(argc, argv);
}

absl::Status CheckConfig(const Config& config) {
  if (config.state_dir.empty()) return absl::InvalidArgumentError("--state-dir: is empty");
  if (2 * config.heartbeat > config.lease) {
    return absl::InvalidArgumentError(absl::StrCat("--heartbeat: want at most half of --lease (",
                                                   absl::FormatDuration(config.lease), "), got ",
                                                   absl::FormatDuration(config.heartbeat)));
  }
  if (!config.only_job.empty() && !IsJobId(config.only_job)) {
    return absl::InvalidArgumentError(absl::StrCat("--only-job: want [a-z][a-z0-9-]{0,",
                                                   kMaxOnlyJobBytes - 1, "}, got '",
                                                   config.only_job, "'"));
  }
  if (!config.look.empty() && !config.only_job.empty()) {
    return absl::InvalidArgumentError("--look: does not go with --only-job");
  }
  return config.common.Apply().status();
}

}  // namespace capstan::coordinator
