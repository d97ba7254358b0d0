// `capstan launch-batch`: for a scheduler with a queue what srun is for Slurm. Submits the ranks as
// one job, hands each bundle of its standard input to its rank and the ranks' lines to its standard
// output, and takes everything back when its input ends, at a signal, or once all ranks have ended.
//
// They meet in a folder (0700) that is made in a folder of all hosts: rank.sh, what each rank runs
// and the sign that the launch is there; RANK.bundle (0600), which the rank removes; RANK.out, what
// it prints. The job's arguments and environment have that folder's path and no secret.
#ifndef CAPSTAN_CLIENT_LAUNCH_BATCH_H_
#define CAPSTAN_CLIENT_LAUNCH_BATCH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/exit_codes.h"
#include "client/launch/scheduler.h"

namespace capstan::client {

struct BatchOptions {
  int ranks = 0;
  std::string shared_dir;          // under the same path on all hosts
  std::string folder;              // that the ranks run in; empty: the scheduler's choice
  std::string resource_manager;    // of YARN; empty: Grid Engine
  std::vector<std::string> hosts;  // of Grid Engine
  std::vector<std::string> args;   // for the scheduler
  std::vector<std::string> node;   // the command of a rank, less its folder and its number
};

// Blocks until all has ended. kExitInternal: the job could not be submitted, or ended before its
// ranks did.
ExitCode RunBatch(const BatchOptions& options);

// What each rank runs, with `meeting` as the folder of the launch.
std::string RankScript(const BatchOptions& options, absl::string_view task_variable,
                       absl::string_view meeting);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_BATCH_H_
