// Schedulers that start the ranks of a launch some time after they were asked to, on hosts of their
// choice, and hand neither input nor output through.
#ifndef CAPSTAN_CLIENT_LAUNCH_SCHEDULER_H_
#define CAPSTAN_CLIENT_LAUNCH_SCHEDULER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/endpoint/endpoint.h"

namespace capstan::client {

// One job of as many tasks as there are ranks. For one thread; every call ends within seconds.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Once. `script`: a path on all hosts, run by /bin/sh without arguments, with the task's number,
  // from 1, in the variable named by TaskVariable. The scheduler's name of the job.
  virtual absl::StatusOr<std::string> Submit(const std::string& script, int ranks) = 0;
  virtual absl::string_view TaskVariable() const = 0;

  // OK: the job waits or runs, or the scheduler does not answer just now. Aborted: it is not there
  // any more. FailedPrecondition: not all of it will run; why.
  virtual absl::Status Look() = 0;

  // Ends what is left of the job. Nothing happens where none was submitted.
  virtual void Delete() = 0;
};

// An array job of Grid Engine, by qsub, qstat and qdel of the PATH. On `hosts` alone unless that is
// empty; `args` are qsub's.
std::unique_ptr<Scheduler> MakeGridEngine(std::vector<std::string> hosts,
                                          std::vector<std::string> args);
// What qsub -terse said: "12.1-3:1" is job 12. Internal: something else.
absl::StatusOr<std::string> ParseQsub(absl::string_view out);
// What `qstat -j` said of a job: see Look.
absl::Status ParseQstat(bool success, absl::string_view out, absl::string_view error);

// An application of YARN, by the REST interface of its ResourceManager: Hadoop's own
// ApplicationMaster of the distributed shell asks for the containers; `args` are its.
// InvalidArgument: the URL.
absl::StatusOr<std::unique_ptr<Scheduler>> MakeYarn(const std::string& resource_manager,
                                                    std::vector<std::string> args);
// Of "http://HOST:PORT". InvalidArgument: it is something else.
absl::StatusOr<services::Endpoint> ResourceManagerEndpoint(const std::string& url);
// The body of a submission, as JSON.
std::string YarnApplication(const std::string& id, const std::string& script, int ranks,
                            const std::vector<std::string>& args);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_SCHEDULER_H_
