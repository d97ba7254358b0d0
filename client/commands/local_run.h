// Runs one job on services of its own, in this process tree.
#ifndef CAPSTAN_CLIENT_COMMANDS_LOCAL_RUN_H_
#define CAPSTAN_CLIENT_COMMANDS_LOCAL_RUN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "client/cluster.h"
#include "client/commands/follow.h"
#include "client/job_client.h"

namespace capstan::client {

// Gives a job without a storage path ./capstan-out and makes that folder. Removes nothing in it.
// Tells the person if it holds many runs, and how much disk is free. InvalidArgument: the files of
// the job do not fit.
absl::Status PrepareStorage(job::v1::JobSpec& spec, const job::v1::ResolvedSpec& plan,
                            const Console& console);

// The folders of a run and of its coordinator's state.
struct RunPlace {
  std::string job_id;
  std::string folder;         // <storage_path>/<job_id>
  std::string state_dir;      // in `folder`; empty: the file system has no locks (a note says so)
  bool shared_memory = true;  // between workers and shards
};
// The absolute storage_path of the job must exist.
absl::StatusOr<RunPlace> MakeRunPlace(const job::v1::JobSpec& spec, const Console& console);
// Removes the folder of a run that never had a job.
void RemoveRunPlace(const RunPlace& place);

// The services, and the job that was submitted to them. The services end with this object.
struct LocalRun {
  std::unique_ptr<LocalCluster> cluster;
  std::unique_ptr<JobClient> client;
  std::string job_id;
  std::string name;  // what `run --resume` takes to continue it; empty: it cannot be continued
};

// Starts as many services as `plan` needs, for the job at `place`. Submits nothing. Internal: a
// service could not be started.
absl::StatusOr<LocalRun> StartServices(const RunPlace& place, const job::v1::ResolvedSpec& plan,
                                       const Console& console);

// Starts the services and submits the new job `spec`, for which `place` was made. If the job is not
// accepted, its folder is removed. Internal: a service could not be started, or ended. Other codes
// are those of SubmitJob.
absl::StatusOr<LocalRun> StartLocalRun(const RunPlace& place, const job::v1::JobSpec& spec,
                                       const job::v1::ResolvedSpec& plan, const Console& console);

// Follows the job. The first signal cancels it. It is an error if a service ends.
Followed FollowLocalRun(const LocalRun& run, FollowOptions::Show show, const Console& console);

// "checkpoint 1-40", or "the initial weights" if there is none.
std::string GoesOnFrom(const std::string& checkpoint_uri);
// Call it when the job has ended early. Prints the command that continues the job; prints nothing
// if it cannot be continued or has succeeded.
void SayHowToGoOn(const LocalRun& run, const Followed& followed, const Console& console);
// The same for services outside a LocalRun. `name` is that of LocalRun.
void SayHowToGoOn(const std::string& name, const Followed& followed, const Console& console);

// Prints how a job ended if its services end with this command, and returns its exit code.
ExitCode ReportOwnJob(JobClient& client, const std::string& job_id, const Followed& followed,
                      const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_LOCAL_RUN_H_
