// The command lines that start the ranks of a launch, per launcher. Pure functions.
//
// Ranks 0..shards-1 are shards, the workers follow, as in MXNet's launch.py.
#ifndef CAPSTAN_CLIENT_LAUNCH_LAUNCHERS_H_
#define CAPSTAN_CLIENT_LAUNCH_LAUNCHERS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::client {

enum class Launcher { kLocal, kSsh, kMpi, kSlurm, kSge, kYarn };

// The names that --launcher takes, in the order of the enumeration.
const std::vector<std::string>& LauncherNames();

struct LaunchOptions {
  Launcher launcher = Launcher::kLocal;
  std::vector<std::string> hosts;          // -H; of ssh with SplitPort's ports
  std::string interface;                   // --interface
  std::vector<std::string> env;            // --env, after ReadEnv
  std::string sync_dst_dir;                // --sync-dst-dir
  std::string ssh;                         // --ssh: the command and its flags, split at spaces
  std::vector<std::string> launcher_args;  // --launcher-arg, for what starts the ranks
  std::string shared_dir;                  // --shared-dir: absolute; of sge and yarn
  std::string resource_manager;            // --resource-manager: http://HOST:PORT; of yarn
  std::string program;                     // of `capstan` on the hosts
  std::string job_id;     // of the one job, and where its coordinator has its state;
  std::string state_dir;  // empty: in a private folder
};

// Hosts of a -H: names with commas between them, or a file with one a line ('#' begins a comment,
// what follows a host is passed over). NotFound and others: the file; InvalidArgument: no host, or
// one that begins with '-'.
absl::StatusOr<std::vector<std::string>> ReadHosts(const std::string& text);

// "me@a:2222", as MXNet's host files may say it: what ssh is given as the host, and its -p. A colon that no number follows, or one
// of several (an IPv6 address), begins no port.
struct SshHost {
  std::string host;
  std::string port;  // empty: ssh's own
};
SshHost SplitPort(const std::string& host);

// Each --env: NAME=VALUE stays, and NAME becomes the one with the value that it has here, as with MXNet's launch.py.
// InvalidArgument: no name, a variable that is not set here, or a value that is not UTF-8 (they travel as JSON).
absl::StatusOr<std::vector<std::string>> ReadEnv(const std::vector<std::string>& entries);

// How a node gets its bundle; see NodeOptions::by.
enum class BundleWay { kStdin, kVariable };

struct NodeCommand {
  int first_rank = 0;
  int ranks = 1;
  std::string where;              // of one rank: its host; of several: the launcher
  std::vector<std::string> args;  // args[0] is looked for in PATH unless it has a '/'
};

struct LaunchCommands {
  BundleWay way = BundleWay::kStdin;
  // Run first, to their end, where not empty: each rank says its address.
  std::vector<NodeCommand> addresses;
  std::vector<NodeCommand> nodes;
};

// For `ranks` ranks and a coordinator at HOST:PORT. `self`: the path of `capstan` on this host.
// `as_root`: who starts them is.
LaunchCommands MakeLaunchCommands(const LaunchOptions& options, int ranks,
                                  const std::string& coordinator, const std::string& self,
                                  bool as_root);

// The ranks wait in a queue that others use too, one of them perhaps long after another.
bool IsBatch(Launcher launcher);

// The commands that copy the working directory to --sync-dst-dir of each host: `tar` here, and what
// it is piped into.
std::vector<std::string> SyncCommands(const LaunchOptions& options);

// `word` as a POSIX shell reads it back.
std::string ShellQuote(absl::string_view word);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_LAUNCH_LAUNCHERS_H_
