// Commands about a job or the jobs, where these may be runs in a folder instead of a coordinator's.
//
// A run's coordinator has ended with it and has left its state in the run's folder (run_folder.h).
// What that state says is asked of a coordinator of our own, which only looks and ends with the
// command.
#ifndef CAPSTAN_CLIENT_LOOK_H_
#define CAPSTAN_CLIENT_LOOK_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cluster.h"
#include "client/command.h"
#include "client/job_client.h"

namespace capstan::client {

class Look {
 public:
  // At all runs in `folder`, or at the one that it is. `http`: an address for the status page,
  // empty: none. Internal: it could not be started, or cannot read the folder; the message has its
  // last words.
  static absl::StatusOr<std::unique_ptr<Look>> Open(const std::string& folder,
                                                    const std::string& http = "");

  JobClient& client() { return *client_; }
  const LocalCluster& cluster() const { return *cluster_; }

 private:
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<JobClient> client_;
};

// `body` with the jobs of `folder`. An error is printed and gives its exit code.
ExitCode WithRuns(const Context& context, const std::string& folder,
                  const std::function<ExitCode(JobClient&)>& body);

// WithCoordinator for a command about `job`, as a person named it, perhaps with @STEP. Where it is the folder of a
// run (a path with '/'), or where no coordinator is configured and ./capstan-out has a run with
// that id, `body` gets what looks at that run, and `job` becomes its id.
ExitCode WithPlaceOf(const Context& context, std::string& job,
                     const std::function<ExitCode(JobClient&)>& body);

// WithJob (command.h) where `name` may also be that of a run.
ExitCode WithJobOrRun(const Context& context, const std::string& name,
                      const std::function<ExitCode(JobClient&, const std::string&)>& body);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LOOK_H_
