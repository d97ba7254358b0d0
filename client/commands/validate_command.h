// `capstan validate`: prints the errors of a job file, or its plan. Needs no coordinator.
#ifndef CAPSTAN_CLIENT_COMMANDS_VALIDATE_COMMAND_H_
#define CAPSTAN_CLIENT_COMMANDS_VALIDATE_COMMAND_H_

#include "client/console.h"
#include "client/job_source.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

struct ValidateOptions {
  JobSource source;
  bool show_defaults = false;
};

ExitCode Validate(const ValidateOptions& options, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_VALIDATE_COMMAND_H_
