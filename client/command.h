// What every sub-command has: the flags before it, its output, a coordinator that answers.
#ifndef CAPSTAN_CLIENT_COMMAND_H_
#define CAPSTAN_CLIENT_COMMAND_H_

#include <functional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/command_line.h"
#include "client/console.h"
#include "client/coordinator_address.h"
#include "client/exit_codes.h"
#include "client/job_client.h"

namespace capstan::client {

// The flags that stand outside of the sub-command.
struct Context {
  Console console;
  ConnectFlags connect;
};
using Action = std::function<ExitCode(const Context&)>;

// Which flags of the program a command acts on, beside -o, -q, --no-color and --no-input.
struct Acts {
  bool coordinator = true;  // flags of the connection: --address, --context, --tls-ca ...
  bool timeout = true;      // --timeout
  bool verbose = false;     // -v
};
inline constexpr Acts kActsAlone = {.coordinator = false, .timeout = false};  // speaks to nobody

// Makes `action` what the process carries out where `command` was given; `outputs` are the values
// that it has for -o. Flags of the program that it does not act on are refused. `slot` is where the
// parsed command line leaves it.
void CarryOut(Command command, Action& slot, std::set<Output> outputs, Action action,
              Acts acts = {});

// The first flag of a connection that was given on the command line: "--tls-ca". --timeout is none.
// Empty: none was given.
std::string GivenFlag(const ConnectFlags& flags);

// A flag that would do nothing: says why on stderr; kExitUsage.
ExitCode RefuseFlag(const std::string& flag, const std::string& why, const Console& console);

// FindCoordinator, with its notes to the person.
absl::StatusOr<Connection> FindCoordinator(const Context& context);

// kExitUsage where nobody has said which coordinator: that, and how to start one, on stderr. There is
// none at the default address then, as TCP needs certificates or --insecure.
ExitCode NeedCoordinator(const Connection& connection, const Console& console);

// Finds the coordinator, waits until it answers (says so after a second), then `body`. An error of
// the connection is printed and gives its exit code.
ExitCode WithCoordinator(const Context& context, const std::function<ExitCode(JobClient&)>& body);

// The same where the connection is known.
ExitCode WithConnection(const Connection& connection, const Console& console,
                        const std::function<ExitCode(JobClient&)>& body);

// The id of the job that a person named (FindJob), or the code of an error, which was printed.
struct NamedJob {
  std::string id;
  ExitCode code = kExitDone;
};
NamedJob NameJob(JobClient& client, const std::string& name, const Console& console);

// WithCoordinator for what concerns one job, with its id.
ExitCode WithJob(const Context& context, const std::string& name,
                 const std::function<ExitCode(JobClient&, const std::string&)>& body);

// Prints what a call came back with and gives its exit code. For a job that is not known it names
// one with nearly that id.
ExitCode Report(const absl::Status& status, const Console& console);
ExitCode ReportJob(JobClient& client, const std::string& job_id, const absl::Status& status,
                   const Console& console);

// "got 'x', want a duration": for a flag with its name.
absl::StatusOr<absl::Duration> ReadDuration(const std::string& flag, const std::string& text);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMAND_H_
