// `capstan run --resume`: continues a job whose services ended with the command that started them.
#ifndef CAPSTAN_CLIENT_COMMANDS_RESUME_RUN_H_
#define CAPSTAN_CLIENT_COMMANDS_RESUME_RUN_H_

#include <string>

#include "client/console.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

// Continues the run that a person names (FindRunFolder). Starts services on its coordinator's
// state, lets the job continue from its newest complete checkpoint, and follows it as `run` does.
// Prints errors. The exit code is that of `run`, or kExitRefused: the job has succeeded, its
// services still live, or the folder was moved.
ExitCode ResumeRun(const std::string& name, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_RESUME_RUN_H_
