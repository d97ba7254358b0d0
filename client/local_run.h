// One job on services of its own, in this process tree.
#ifndef CAPSTAN_CLIENT_LOCAL_RUN_H_
#define CAPSTAN_CLIENT_LOCAL_RUN_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "client/cluster.h"
#include "client/follow.h"
#include "client/job_client.h"

namespace capstan::client {

// Gives a job of this plan without a storage path ./capstan-out, and makes the folder. Nothing in
// it is removed; a person is told where it holds many runs, and how much is free. InvalidArgument:
// the job does not fit.
absl::Status PrepareStorage(job::v1::JobSpec& spec, const job::v1::ResolvedSpec& plan,
                            const Console& console);

// Where a run and what its coordinator knows of it come to lie.
struct RunPlace {
  std::string job_id;
  std::string folder;     // <storage_path>/<job_id>
  std::string state_dir;  // in it; empty: its file system has no locks, and the person was told
};
// For a job with an absolute storage_path that is there.
absl::StatusOr<RunPlace> MakeRunPlace(const job::v1::JobSpec& spec, const Console& console);
// Of a run that never had a job.
void RemoveRunPlace(const RunPlace& place);

// The services, and the job that was submitted to them. They end with this object.
struct LocalRun {
  std::unique_ptr<LocalCluster> cluster;
  std::unique_ptr<JobClient> client;
  std::string job_id;
  std::string name;  // what `run --resume` takes to go on with it; empty: its end is the end
};

// Starts as many services as `plan` needs, for the job at `place`; nothing is submitted. Internal:
// a service could not be started.
absl::StatusOr<LocalRun> StartServices(const RunPlace& place, const job::v1::ResolvedSpec& plan,
                                       const Console& console);

// The same for a new job: submits `spec`, which has an absolute storage_path.
// Internal: a service could not be started, or ended; other codes are those of SubmitJob. A job
// that was not taken leaves no folder.
absl::StatusOr<LocalRun> StartLocalRun(const job::v1::JobSpec& spec,
                                       const job::v1::ResolvedSpec& plan, const Console& console);

// Follows the job; the first signal cancels it. A service that ends is an error.
Followed FollowLocalRun(const LocalRun& run, FollowOptions::Show show, const Console& console);

// "checkpoint 1-40", or "the initial weights" where there is none.
std::string GoesOnFrom(const std::string& checkpoint_uri);
// To be said once the job has ended early: what goes on with it. Nothing where it cannot be, or has
// succeeded.
void SayHowToGoOn(const LocalRun& run, const Followed& followed, const Console& console);

// Prints how a job ended whose services end with this command, and gives its exit code.
ExitCode ReportOwnJob(JobClient& client, const std::string& job_id, const Followed& followed,
                      const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LOCAL_RUN_H_
