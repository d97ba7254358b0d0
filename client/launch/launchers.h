// The command lines with which each launcher starts the ranks of a launch. Pure functions.
//
// Ranks 0..shards-1 are shards. The workers follow, as in MXNet's launch.py.
#ifndef CAPSTAN_CLIENT_LAUNCH_LAUNCHERS_H_
#define CAPSTAN_CLIENT_LAUNCH_LAUNCHERS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::client {

enum class Launcher { kLocal, kSsh, kMpi, kSlurm, kSge, kYarn };

// The names that --launcher accepts, in the order of the enumeration.
const std::vector<std::string>& LauncherNames();

struct LaunchOptions {
  Launcher launcher = Launcher::kLocal;
  std::vector<std::string> hosts;          // -H; for ssh each may have a port (SplitPort)
  std::string interface;                   // --interface
  std::vector<std::string> env;            // --env, after ReadEnv
  std::string sync_dst_dir;                // --sync-dst-dir
  std::string ssh;                         // --ssh: the command and its flags, split at spaces
  std::vector<std::string> launcher_args;  // --launcher-arg, for the command that starts the ranks
  std::string shared_dir;                  // --shared-dir: absolute; for sge and yarn
  std::string resource_manager;            // --resource-manager: http://HOST:PORT; for yarn
  std::string program;                     // path of `capstan` on the hosts
  std::string job_id;     // of the one job, and where its coordinator has its state;
  std::string state_dir;  // empty: in a private folder
};

// Reads the hosts of a -H: names separated by commas, or a file with one host a line ('#' begins a
// comment, and words after the host are ignored). NotFound and other codes: the file cannot be
// read. InvalidArgument: there is no host, or one begins with '-'.
absl::StatusOr<std::vector<std::string>> ReadHosts(const std::string& text);

// "me@a:2222", as in MXNet's host files: the host argument of ssh, and its -p. A colon begins no
// port if no number follows or if there are several colons (an IPv6 address).
struct SshHost {
  std::string host;
  std::string port;  // empty: ssh's own
};
SshHost SplitPort(const std::string& host);

// For each --env, NAME=VALUE stays, and NAME gets the value that the variable has here, as with
// MXNet's launch.py. InvalidArgument: no name, a variable that is not set here, or a value that is
// not UTF-8 (values travel as JSON).
absl::StatusOr<std::vector<std::string>> ReadEnv(const std::vector<std::string>& entries);

// How a node gets its bundle; see NodeOptions::by.
enum class BundleWay { kStdin, kVariable };

struct NodeCommand {
  int first_rank = 0;
  int ranks = 1;
  std::string where;              // of one rank: its host; of several ranks: the launcher
  std::vector<std::string> args;  // args[0] is searched in PATH unless it contains a '/'
};

struct LaunchCommands {
  BundleWay way = BundleWay::kStdin;
  // If not empty, these run first, to their end: each rank prints its address.
  std::vector<NodeCommand> addresses;
  std::vector<NodeCommand> nodes;
};

// Makes the commands for `ranks` ranks and a coordinator at HOST:PORT. `self`: the path of
// `capstan` on this host. `as_root`: the commands run as root.
LaunchCommands MakeLaunchCommands(const LaunchOptions& options, int ranks,
                                  const std::string& coordinator, const std::string& self,
                                  bool as_root);

// Whether the ranks wait in a queue that others also use. Ranks may then start long after each
// other.
bool IsBatch(Launcher launcher);

// The commands that copy the working directory to --sync-dst-dir of each host: `tar` here, piped
// into a remote `tar`.
std::vector<std::string> SyncCommands(const LaunchOptions& options);

// Quotes `word` for a POSIX shell.
std::string ShellQuote(absl::string_view word);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_LAUNCHERS_H_
