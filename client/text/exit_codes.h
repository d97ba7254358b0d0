// Exit codes of the command line: docs/interface.md section 4.
#ifndef CAPSTAN_CLIENT_TEXT_EXIT_CODES_H_
#define CAPSTAN_CLIENT_TEXT_EXIT_CODES_H_

#include "absl/status/status.h"
#include "capstan/common/v1/common.pb.h"

namespace capstan::client {

enum ExitCode : int {
  kExitDone = 0,
  kExitInternal = 1,
  kExitUsage = 2,        // usage error or invalid job file; nothing was sent
  kExitUnreachable = 3,  // coordinator unreachable or call timed out
  kExitRefused = 4,
  kExitFound = 5,          // doctor has found something that stops jobs from training
  kExitDifferent = 6,      // verify has got other weights or samples
  kExitFailed = 100,       // job FAILED
  kExitNotFinished = 101,  // job not finished
  kExitNotFound = 102,     // no such job
  kExitCancelled = 103,
  kExitInterrupted = 130,  // SIGINT before anything was started
};

// For a failed call. Calls about a job go through ReportJob, since only it knows whether the job
// itself was not found.
ExitCode ExitCodeOf(const absl::Status& status);

// For a job, by its state. kExitNotFinished if it has not ended.
ExitCode ExitCodeOf(common::v1::JobState state);

// True for SUCCEEDED, FAILED and CANCELLED.
bool IsTerminal(common::v1::JobState state);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_TEXT_EXIT_CODES_H_
