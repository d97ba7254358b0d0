// Commands about jobs that may be runs in a folder instead of jobs of a coordinator.
//
// The coordinator of a run has ended with the run and has left its state in the run's folder
// (run_folder.h). These commands start a coordinator that only reads that state and ends with the
// command.
#ifndef CAPSTAN_CLIENT_COMMANDS_LOOK_H_
#define CAPSTAN_CLIENT_COMMANDS_LOOK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cluster.h"
#include "client/commands/command.h"
#include "client/job_client.h"

namespace capstan::client {

class Look {
 public:
  // Opens all runs in `folder`, or the single run that `folder` is. `http`: the address of the
  // status page; empty: none. `timeout`: of one call. Internal: the coordinator could not be
  // started or cannot read the folder; the message has its last lines.
  static absl::StatusOr<std::unique_ptr<Look>> Open(const std::string& folder,
                                                    absl::Duration timeout,
                                                    const std::string& http = "");

  JobClient& client() { return *client_; }
  const LocalCluster& cluster() const { return *cluster_; }

 private:
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<JobClient> client_;
};

// Calls `body` with a client for the runs in `folder`. An error is printed and gives the exit code.
ExitCode WithRuns(const Context& context, const std::string& folder,
                  const std::function<ExitCode(JobClient&)>& body);

// For a command that reads a folder of runs: refuses connection flags with kExitUsage, printed.
// --timeout is allowed, because it also limits calls about a folder.
ExitCode RefuseFlagsOfRuns(const Context& context);

// WithCoordinator for a command about `job`, the name that a person gave, perhaps with @STEP. If
// that is the folder of a run (a path with '/'), or if no coordinator is configured and
// ./capstan-out has a run of that name (FindRunFolder), `body` gets a client that looks at the run,
// and `job` becomes its id. `follow_flag`: a given flag that waits for news. A run in a folder has
// no news, so the flag is refused then. Empty: no such flag was given.
ExitCode WithPlaceOf(const Context& context, std::string& job,
                     const std::function<ExitCode(JobClient&)>& body,
                     const std::string& follow_flag = "");

// WithJob (command.h) if `name` may also be the name of a run.
ExitCode WithJobOrRun(const Context& context, const std::string& name,
                      const std::function<ExitCode(JobClient&, const std::string&)>& body,
                      const std::string& follow_flag = "");

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_LOOK_H_
