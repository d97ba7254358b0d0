// What all sub-commands share: the flags before them, their output, and a connected coordinator.
#ifndef CAPSTAN_CLIENT_COMMANDS_COMMAND_H_
#define CAPSTAN_CLIENT_COMMANDS_COMMAND_H_

#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/commands/command_line.h"
#include "client/console.h"
#include "client/coordinator_address.h"
#include "client/job_client.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

// The program's own flags.
struct Context {
  Console console;
  ConnectFlags connect;
};
using Action = std::function<ExitCode(const Context&)>;

// Which flags of the program a command uses, besides -o, -q, --no-color and --no-input.
struct Acts {
  bool coordinator = true;  // flags of the connection: --address, --context, --tls-ca ...
  bool timeout = true;      // --timeout
  bool verbose = false;     // -v
};
inline constexpr Acts kActsAlone = {.coordinator = false, .timeout = false};  // calls nobody

// Makes `action` what the process does if `command` is given. `outputs` are the values of -o that
// it has. The program's flags that it does not use are refused. Parsing stores the action in
// `slot`.
void CarryOut(Command command, Action& slot, std::set<Output> outputs, Action action,
              Acts acts = {});

// The first connection flag on the command line, as "--tls-ca". --timeout does not count. Empty: no
// such flag was given.
std::string GivenFlag(const ConnectFlags& flags);

// Refuses connection flags and --timeout (RefuseFlag) in a command that calls no coordinator.
// kExitDone: none was given.
ExitCode RefuseConnection(const Context& context, const std::string& why);

// Says on stderr why a flag has no effect. Returns kExitUsage.
ExitCode RefuseFlag(const std::string& flag, const std::string& why, const Console& console);

// Calls FindCoordinator and prints its notes to the person.
absl::StatusOr<Connection> FindCoordinator(const Context& context);

// If no flag, variable or file names a coordinator, says so on stderr, says how to start one, and
// returns kExitUsage. No coordinator can serve the default address without settings, because TCP
// needs certificates or --insecure.
ExitCode NeedCoordinator(const Connection& connection, const Console& console);

// Finds the coordinator, waits until it answers (says so after a second) and calls `body`. An error
// of the connection is printed and gives the exit code.
ExitCode WithCoordinator(const Context& context, const std::function<ExitCode(JobClient&)>& body);

// The same with a known connection.
ExitCode WithConnection(const Connection& connection, const Console& console,
                        const std::function<ExitCode(JobClient&)>& body);

// The id of the job that a person named (FindJob), or the exit code of an error, already printed.
struct NamedJob {
  std::string id;
  ExitCode code = kExitDone;
};
NamedJob NameJob(JobClient& client, const std::string& name, const Console& console);

// WithCoordinator for a command about one job; `body` gets the job's id.
ExitCode WithJob(const Context& context, const std::string& name,
                 const std::function<ExitCode(JobClient&, const std::string&)>& body);

// Prints the error of a call and returns its exit code. If the job is unknown, ReportJob suggests
// one with a similar id.
ExitCode Report(const absl::Status& status, const Console& console);
ExitCode ReportJob(JobClient& client, const std::string& job_id, const absl::Status& status,
                   const Console& console);

// Parses the value of a flag. The error has the flag's name: "got 'x', want a duration".
absl::StatusOr<absl::Duration> ReadDuration(const std::string& flag, const std::string& text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_COMMAND_H_
