// `capstan run`: coordinator, shards and workers in this process tree, one job, its progress and
// its result.
#ifndef CAPSTAN_CLIENT_RUN_COMMAND_H_
#define CAPSTAN_CLIENT_RUN_COMMAND_H_

#include "client/console.h"
#include "client/exit_codes.h"
#include "client/job_source.h"

namespace capstan::client {

struct RunOptions {
  JobSource source;
};

// Blocks until the job has ended. The first SIGINT or SIGTERM cancels the job, the second ends
// everything at once.
ExitCode Run(const RunOptions& options, const Console& console);

// `capstan clean`: removes the runs under ./capstan-out, all but the newest `keep`.
ExitCode Clean(int keep, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_RUN_COMMAND_H_
