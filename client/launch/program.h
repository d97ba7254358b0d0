// Runs the programs of a launcher.
#ifndef CAPSTAN_CLIENT_LAUNCH_PROGRAM_H_
#define CAPSTAN_CLIENT_LAUNCH_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace capstan::client {

// The path of a program, as a shell finds it. NotFound: no such program in PATH.
absl::StatusOr<std::string> FindProgram(const std::string& name);

struct ProgramEnd {
  bool success = false;
  std::string out;    // standard output
  std::string error;  // standard error, and how it ended unless with exit code 0
};
// Runs args[0] to its end. NotFound and other codes: it could not be started. DeadlineExceeded: it
// was killed after `timeout`.
absl::StatusOr<ProgramEnd> RunProgram(const std::vector<std::string>& args, absl::Duration timeout);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_PROGRAM_H_
