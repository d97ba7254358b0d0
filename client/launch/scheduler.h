// Schedulers that start the ranks of a launch some time after the request, on hosts of their
// choice, and pass through neither input nor output.
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

// One job with a task for each rank. Use from one thread. Every call ends within seconds.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Call once. `script`: a path on all hosts. /bin/sh runs it without arguments, with the task's
  // number, from 1, in the variable that TaskVariable names. Returns the scheduler's name of the
  // job.
  virtual absl::StatusOr<std::string> Submit(const std::string& script, int ranks) = 0;
  virtual absl::string_view TaskVariable() const = 0;

  // OK: the job waits or runs, or the scheduler does not answer at the moment. Aborted: the job is
  // gone. FailedPrecondition: some of its tasks cannot run, and why.
  virtual absl::Status Look() = 0;

  // Ends what is left of the job. Does nothing if none was submitted.
  virtual void Delete() = 0;
};

// An array job of Grid Engine, by the qsub, qstat and qdel in PATH. Runs only on `hosts` unless
// that is empty. `args` go to qsub.
std::unique_ptr<Scheduler> MakeGridEngine(std::vector<std::string> hosts,
                                          std::vector<std::string> args);
// Parses the output of qsub -terse: "12.1-3:1" is job 12. Internal: it is something else.
absl::StatusOr<std::string> ParseQsub(absl::string_view out);
// Parses the output of `qstat -j` for a job; see Look.
absl::Status ParseQstat(bool success, absl::string_view out, absl::string_view error);

// An application of YARN, by the REST interface of its ResourceManager. Hadoop's own
// ApplicationMaster of the distributed shell requests the containers and gets `args`.
// InvalidArgument: the URL is invalid.
absl::StatusOr<std::unique_ptr<Scheduler>> MakeYarn(const std::string& resource_manager,
                                                    std::vector<std::string> args);
// Parses "http://HOST:PORT". InvalidArgument: it is something else.
absl::StatusOr<services::Endpoint> ResourceManagerEndpoint(const std::string& url);
// The body of a submission, as JSON.
std::string YarnApplication(const std::string& id, const std::string& script, int ranks,
                            const std::vector<std::string>& args);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_SCHEDULER_H_
