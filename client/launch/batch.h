// `capstan launch-batch` is for queueing schedulers what srun is for Slurm. It submits the ranks as
// one job, passes each bundle on its standard input to its rank, and prints the lines of the ranks
// on its standard output. It ends the job when its input ends, at a signal, or when all ranks have
// ended.
//
// The ranks meet in a new folder (0700) inside a folder that all hosts share. In it are rank.sh,
// which each rank runs and which shows that the launch lives; RANK.bundle (0600), which the rank
// removes; and RANK.out, the output of the rank. The job's arguments and environment contain that
// folder's path and no secret.
#ifndef CAPSTAN_CLIENT_LAUNCH_BATCH_H_
#define CAPSTAN_CLIENT_LAUNCH_BATCH_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/launch/scheduler.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

struct BatchOptions {
  int ranks = 0;
  std::string shared_dir;          // has the same path on all hosts
  std::string folder;              // where the ranks run; empty: the scheduler chooses
  std::string resource_manager;    // of YARN; empty: Grid Engine
  std::vector<std::string> hosts;  // of Grid Engine
  std::vector<std::string> args;   // for the scheduler
  std::vector<std::string> node;   // the command of a rank, without its folder and its number
};

// Blocks until all ranks have ended. kExitInternal: the job could not be submitted, or it ended
// before its ranks did.
ExitCode RunBatch(const BatchOptions& options);

// The script of each rank. `meeting` is the folder of the launch.
std::string RankScript(const BatchOptions& options, absl::string_view task_variable,
                       absl::string_view meeting);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_BATCH_H_
