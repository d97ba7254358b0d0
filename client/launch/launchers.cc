#include "client/launch/launchers.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/launch/node.h"
#include "services/files/files.h"
#include "training/codec/strict_json.h"

namespace capstan::client {
namespace {

constexpr int64_t kMaxHostFileBytes = 1 << 20;
constexpr char kSsh[] = "ssh -o BatchMode=yes";

std::vector<std::string> NodeArgs(const LaunchOptions& options, absl::string_view by,
                                  const std::string& coordinator) {
  std::vector<std::string> args = {options.program, "launch-node",   "--by",
                                   std::string(by), "--coordinator", coordinator};
  if (!options.interface.empty()) args.insert(args.end(), {"--interface", options.interface});
  return args;
}

void Append(std::vector<std::string>& to, const std::vector<std::string>& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::vector<std::string> Words(const std::string& text) {
  return absl::StrSplit(text, ' ', absl::SkipEmpty());
}

// The arguments of ssh, up to the remote command.
std::vector<std::string> SshTo(const LaunchOptions& options, const std::string& host) {
  std::vector<std::string> args = Words(options.ssh.empty() ? kSsh : options.ssh);
  const SshHost to = SplitPort(host);
  if (!to.port.empty()) args.insert(args.end(), {"-p", to.port});
  args.push_back(to.host);
  return args;
}

// Makes one line for the remote shell, as ssh itself would do.
std::string RemoteLine(const std::vector<std::string>& args) {
  return absl::StrJoin(args, " ", [](std::string* out, const std::string& arg) {
    absl::StrAppend(out, ShellQuote(arg));
  });
}

std::vector<std::string> MpiArgs(const LaunchOptions& options, int ranks, bool as_root) {
  // Without --enable-recovery, one killed rank would end all. The job decides about that.
  std::vector<std::string> args = {
      "mpirun", "--oversubscribe", "--enable-recovery", "--mca", "orte_abort_on_non_zero_status",
      "0"};
  if (as_root) args.push_back("--allow-run-as-root");
  if (!options.hosts.empty()) {
    // ":ranks" slots on each host, so that mpirun fills the hosts in turn.
    args.insert(args.end(),
                {"--map-by", "node", "--host",
                 absl::StrJoin(options.hosts, ",", [&](std::string* out, const auto& h) {
                   absl::StrAppend(out, h, ":", ranks);
                 })});
  }
  if (!options.ssh.empty()) args.insert(args.end(), {"--mca", "plm_rsh_agent", options.ssh});
  if (!options.interface.empty()) {
    args.insert(args.end(), {"--mca", "oob_tcp_if_include", options.interface});
  }
  Append(args, options.launcher_args);
  args.insert(args.end(), {"-np", absl::StrCat(ranks)});
  return args;
}

// A process on this host that does for a scheduler what srun does for Slurm (batch.h).
std::vector<std::string> BatchArgs(const LaunchOptions& options, int ranks,
                                   const std::string& coordinator, const std::string& self) {
  std::vector<std::string> args = {
      self, "launch-batch", "--ranks", absl::StrCat(ranks), "--shared-dir", options.shared_dir};
  if (options.launcher == Launcher::kYarn) {
    args.insert(args.end(), {"--resource-manager", options.resource_manager});
  }
  for (const std::string& host : options.hosts) args.push_back("--host=" + host);
  for (const std::string& arg : options.launcher_args) args.push_back("--launcher-arg=" + arg);
  if (!options.sync_dst_dir.empty()) args.push_back("--folder=" + options.sync_dst_dir);
  args.push_back("--");
  Append(args, NodeArgs(options, "folder", coordinator));
  return args;
}

std::vector<std::string> SlurmArgs(const LaunchOptions& options, int ranks) {
  // srun gives its own input to every task, and the end of it to all of them.
  std::vector<std::string> args = {"srun",        "--ntasks",     absl::StrCat(ranks),
                                   "--input=all", "--export=ALL", "--kill-on-bad-exit=0",
                                   "--no-kill"};
  if (!options.hosts.empty()) {
    args.insert(args.end(), {"--nodelist", absl::StrJoin(options.hosts, ","), "--nodes",
                             absl::StrCat(options.hosts.size()), "--distribution=cyclic"});
  }
  Append(args, options.launcher_args);
  return args;
}

}  // namespace

const std::vector<std::string>& LauncherNames() {
  static const auto& names =
      *new std::vector<std::string>{"local", "ssh", "mpi", "slurm", "sge", "yarn"};
  return names;
}

absl::StatusOr<std::vector<std::string>> ReadHosts(const std::string& text) {
  std::vector<std::string> hosts;
  struct stat info;
  if (stat(text.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
    const absl::StatusOr<std::string> file = services::ReadWholeFile(text, kMaxHostFileBytes);
    if (!file.ok()) return file.status();
    for (absl::string_view line : absl::StrSplit(*file, '\n')) {
      line = line.substr(0, line.find('#'));
      const std::vector<std::string> words =
          absl::StrSplit(line, absl::ByAnyChar(" \t\r"), absl::SkipEmpty());
      if (!words.empty()) hosts.push_back(words[0]);
    }
  } else {
    hosts = absl::StrSplit(text, ',', absl::SkipEmpty());
  }
  if (hosts.empty())
    return absl::InvalidArgumentError(absl::StrCat("-H ", text, ": names no host"));
  for (const std::string& host : hosts) {
    // A program of the launcher would read it as a flag.
    if (host[0] == '-') {
      return absl::InvalidArgumentError(absl::StrCat("-H: got '", host, "', want a host"));
    }
  }
  return hosts;
}

SshHost SplitPort(const std::string& host) {
  const size_t colon = host.find(':');
  if (colon == std::string::npos || colon + 1 == host.size() ||
      !std::all_of(host.begin() + static_cast<std::ptrdiff_t>(colon) + 1, host.end(),
                   absl::ascii_isdigit)) {
    return {host, ""};
  }
  return {host.substr(0, colon), host.substr(colon + 1)};
}

absl::StatusOr<std::vector<std::string>> ReadEnv(const std::vector<std::string>& entries) {
  std::vector<std::string> env;
  for (const std::string& entry : entries) {
    const std::string name = entry.substr(0, entry.find('='));
    if (name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--env: got '", entry, "', want NAME or NAME=VALUE"));
    }
    env.push_back(entry);
    if (name == entry) {
      const char* const value = std::getenv(name.c_str());
      if (value == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("--env ", name, ": it is not set here; want NAME=VALUE"));
      }
      absl::StrAppend(&env.back(), "=", value);
    }
    if (!training::IsUtf8(env.back())) {
      return absl::InvalidArgumentError(absl::StrCat("--env ", name, ": the value is not UTF-8"));
    }
  }
  return env;
}

LaunchCommands MakeLaunchCommands(const LaunchOptions& options, int ranks,
                                  const std::string& coordinator, const std::string& self,
                                  bool as_root) {
  LaunchCommands commands;
  switch (options.launcher) {
    case Launcher::kLocal:
    case Launcher::kSsh:
      for (int rank = 0; rank < ranks; ++rank) {
        NodeCommand node{rank, 1, "", NodeArgs(options, "stdin", coordinator)};
        node.args.insert(node.args.end(), {"--rank", absl::StrCat(rank)});
        if (options.launcher == Launcher::kSsh) {
          node.where = options.hosts[static_cast<size_t>(rank) % options.hosts.size()];
          std::string line = absl::StrCat("exec ", RemoteLine(node.args));
          if (!options.sync_dst_dir.empty()) {
            line = absl::StrCat("cd ", ShellQuote(options.sync_dst_dir), " && ", line);
          }
          node.args = SshTo(options, node.where);
          node.where = SplitPort(node.where).host;
          node.args.push_back(std::move(line));
        }
        commands.nodes.push_back(std::move(node));
      }
      return commands;
    case Launcher::kMpi: {
      // Only one rank reads mpirun's input. So bundles travel in a variable, and only its name is
      // in the arguments. The bundles need the addresses, which a first run prints.
      commands.way = BundleWay::kVariable;
      std::vector<std::string> args = MpiArgs(options, ranks, as_root);
      NodeCommand first{0, ranks, "mpirun", args};
      Append(first.args, NodeArgs(options, "address", coordinator));
      commands.addresses.push_back(std::move(first));
      args.insert(args.end(), {"-x", kBundlesVariable});
      if (!options.sync_dst_dir.empty()) args.insert(args.end(), {"-wdir", options.sync_dst_dir});
      Append(args, NodeArgs(options, "variable", coordinator));
      commands.nodes.push_back({0, ranks, "mpirun", std::move(args)});
      return commands;
    }
    case Launcher::kSlurm: {
      std::vector<std::string> args = SlurmArgs(options, ranks);
      if (!options.sync_dst_dir.empty()) args.insert(args.end(), {"--chdir", options.sync_dst_dir});
      Append(args, NodeArgs(options, "stdin", coordinator));
      commands.nodes.push_back({0, ranks, "srun", std::move(args)});
      return commands;
    }
    case Launcher::kSge:
    case Launcher::kYarn:
      commands.nodes.push_back({0, ranks, options.launcher == Launcher::kSge ? "qsub" : "yarn",
                                BatchArgs(options, ranks, coordinator, self)});
      return commands;
  }
  return commands;
}

bool IsBatch(Launcher launcher) {
  return launcher == Launcher::kSge || launcher == Launcher::kYarn;
}

std::vector<std::string> SyncCommands(const LaunchOptions& options) {
  std::vector<std::string> commands;
  std::vector<std::string> hosts = options.hosts;
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  const std::string folder = ShellQuote(options.sync_dst_dir);
  for (const std::string& host : hosts) {
    std::vector<std::string> args = SshTo(options, host);
    args.push_back(absl::StrCat("mkdir -p ", folder, " && tar -xf - -C ", folder));
    // The output of jobs stays here. It is large, and no host reads it.
    commands.push_back(absl::StrCat("tar -cf - --exclude=./capstan-out . | ", RemoteLine(args)));
  }
  return commands;
}

std::string ShellQuote(absl::string_view word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           absl::string_view("_-./:=,@%+").find(c) != absl::string_view::npos;
  });
  if (plain) return std::string(word);
  std::string quoted = "'";
  for (const char c : word) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

}  // namespace capstan::client
