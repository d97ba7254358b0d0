// `capstan validate`: what is wrong with a job file, or what it implies. Needs no coordinator.
#ifndef CAPSTAN_CLIENT_VALIDATE_COMMAND_H_
#define CAPSTAN_CLIENT_VALIDATE_COMMAND_H_

#include "client/console.h"
#include "client/exit_codes.h"
#include "client/job_source.h"

namespace capstan::client {

struct ValidateOptions {
  JobSource source;
  bool show_defaults = false;
};

ExitCode Validate(const ValidateOptions& options, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_VALIDATE_COMMAND_H_
