// `capstan run --resume`: goes on with a job whose services have ended with the command that
// started them.
#ifndef CAPSTAN_CLIENT_RESUME_RUN_H_
#define CAPSTAN_CLIENT_RESUME_RUN_H_

#include <string>

#include "client/console.h"
#include "client/exit_codes.h"

namespace capstan::client {

// Of the run that a person names (FindRunFolder): starts services on what its coordinator knew,
// lets the job go on from its newest checkpoint that is whole, and follows it as `run` does. Prints
// errors; the exit code is that of `run`, or kExitRefused: the job has succeeded, its services
// live, or the folder was moved.
ExitCode ResumeRun(const std::string& name, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_RESUME_RUN_H_
