#include "client/launch/launched_cluster.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/launch/node.h"
#include "client/launch/program.h"
#include "client/launch/reach.h"
#include "client/launch/scheduler.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

using services::Identity;
using services::Role;

constexpr absl::Duration kStartTimeout = absl::Minutes(2);  // of a coordinator, of all ranks
constexpr absl::Duration kClusterLook = absl::Milliseconds(100);
// A node notices within seconds that its coordinator is gone, and then gives its service 5 s.
constexpr absl::Duration kStopTimeout = absl::Seconds(20);
constexpr absl::Duration kKillTimeout = absl::Seconds(5);
constexpr size_t kKeptLines = 50;
constexpr size_t kMaxVariableBytes = 128 * 1024;  // of one variable, the kernel's MAX_ARG_STRLEN
constexpr char kClientName[] = "launch";

// The address in "event=listening grpc=HOST:PORT http=..."; "": another line.
std::string Listening(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "event=listening grpc=")) return "";
  return std::string(line.substr(0, line.find(' ')));
}

absl::StatusOr<std::string> AddressOnTheWay(const std::string& host) {
  absl::StatusOr<std::string> address = AddressTowards(host);
  if (address.ok()) return address;
  return absl::InvalidArgumentError(
      absl::StrCat(address.status().message(), "; --interface names the network instead"));
}

// The address by which the hosts of the launch reach this host.
absl::StatusOr<std::string> OwnAddress(const LaunchOptions& options) {
  if (!options.interface.empty()) return services::InterfaceAddress(options.interface);
  switch (options.launcher) {
    case Launcher::kLocal:
      return std::string("127.0.0.1");
    case Launcher::kMpi:
      if (options.hosts.empty()) return std::string("127.0.0.1");  // all ranks are on this host
      break;
    case Launcher::kYarn: {
      const absl::StatusOr<services::Endpoint> manager =
          ResourceManagerEndpoint(options.resource_manager);
      return manager.ok() ? AddressOnTheWay(manager->host) : manager.status();
    }
    case Launcher::kSlurm:
    case Launcher::kSge:
      if (options.hosts.empty()) {
        return absl::InvalidArgumentError(
            "--interface is not given, and without -H the network of the nodes is not known");
      }
      break;
    case Launcher::kSsh:
      break;
  }
  // "user@host", as ssh accepts it.
  const std::string first = SplitPort(options.hosts[0]).host;
  return AddressOnTheWay(first.substr(first.find('@') + 1));
}

// The prefix of a line: "w0 hostb", or "w0" while the host is not known.
std::string Who(const std::string& name, const std::string& host) {
  return host.empty() ? name : absl::StrCat(name, " ", host);
}

}  // namespace

LaunchedCluster::LaunchedCluster(LaunchOptions options, const ClusterSize& size, Print print)
    : options_(std::move(options)), size_(size), print_(std::move(print)) {}

absl::StatusOr<std::unique_ptr<LaunchedCluster>> LaunchedCluster::Start(
    const LaunchOptions& options, const ClusterSize& size, Print print) {
  std::unique_ptr<LaunchedCluster> cluster(new LaunchedCluster(options, size, std::move(print)));
  if (absl::Status status = cluster->StartAll(); !status.ok()) return status;
  return cluster;
}

absl::Status LaunchedCluster::StartAll() {
  if (absl::Status status = StartCoordinator(); !status.ok()) return status;
  const absl::StatusOr<std::string> self = services::SiblingBinary("capstan");
  if (!self.ok()) return self.status();
  const LaunchCommands commands =
      MakeLaunchCommands(options_, CoordinatorRank(), coordinator_, *self, geteuid() == 0);
  for (const NodeCommand& command : commands.addresses) {
    if (absl::Status status = Spawn(command, false, /*only_addresses=*/true, {}); !status.ok())
      return status;
  }
  const bool by_stdin = commands.way == BundleWay::kStdin;
  if (by_stdin) {
    for (const NodeCommand& command : commands.nodes) {
      if (absl::Status status = Spawn(command, true, false, {}); !status.ok()) return status;
    }
  }
  if (absl::Status status = HearFromAll(); !status.ok()) return status;
  if (absl::Status status = EquipAll(); !status.ok()) return status;
  if (by_stdin) {
    for (int rank = 0; rank < CoordinatorRank(); ++rank) SendBundle(rank);
    return absl::OkStatus();
  }
  nlohmann::json all = nlohmann::json::array();
  {
    MutexLock lock(mu_);
    for (int rank = 0; rank < CoordinatorRank(); ++rank) {
      all.push_back(nlohmann::json::parse(BundleText(ranks_[static_cast<size_t>(rank)].bundle)));
    }
  }
  const std::string variable = absl::StrCat(kBundlesVariable, "=", all.dump());
  if (variable.size() > kMaxVariableBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the credentials of ", CoordinatorRank(), " ranks are ", variable.size(),
                     " bytes, an environment variable has at most ", kMaxVariableBytes));
  }
  for (const NodeCommand& command : commands.nodes) {
    if (absl::Status status = Spawn(command, false, false, {variable}); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LaunchedCluster::StartCoordinator() {
  const absl::StatusOr<std::string> address = OwnAddress(options_);
  if (!address.ok()) return address.status();
  absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-launch");
  if (!folder.ok()) return folder.status();
  folder_ = *std::move(folder);

  std::vector<Identity> members = {{Role::kClient, kClientName}};
  {
    MutexLock lock(mu_);
    for (int i = 0; i <= CoordinatorRank(); ++i) {
      NodeBundle bundle;
      bundle.env = options_.env;
      bundle.nodes = CoordinatorRank();
      if (i == CoordinatorRank()) {
        bundle.role = Role::kCoordinator;
        bundle.name = "c";
        bundle.folder = folder_;
        bundle.address = *address;
        bundle.job_id = options_.job_id;
        bundle.state_dir = options_.state_dir;
      } else if (i < size_.shards) {
        bundle.role = Role::kParamStore;
        bundle.name = absl::StrCat("s", i);
      } else {
        bundle.role = Role::kWorker;
        bundle.name = absl::StrCat("w", i - size_.shards);
      }
      members.push_back({bundle.role, bundle.name});
      ranks_.push_back({std::move(bundle), "", false, ""});
    }
    ranks_.back().host = HostName();
  }
  absl::StatusOr<LaunchAuthority> authority = LaunchAuthority::Create(members, absl::Now());
  if (!authority.ok()) return authority.status();
  authority_ = std::make_unique<LaunchAuthority>(*std::move(authority));
  NodeBundle own;
  own.role = Role::kClient;
  own.name = kClientName;
  own.address = *address;
  if (absl::Status status = authority_->Equip(own, absl::Now()); !status.ok()) return status;
  const absl::StatusOr<services::Security> security = WriteSecrets(own, folder_);
  if (!security.ok()) return security.status();
  connection_.security = *security;
  connection_.security.tokens.clear();
  connection_.timeout = kDefaultTimeout;

  const int rank = CoordinatorRank();
  {
    MutexLock lock(mu_);
    absl::Status status = authority_->Equip(ranks_[static_cast<size_t>(rank)].bundle, absl::Now());
    if (!status.ok()) return status;
  }
  const absl::StatusOr<std::string> self = services::SiblingBinary("capstan");
  if (!self.ok()) return self.status();
  const NodeCommand command = {
      rank, 1, "", {*self, "launch-node", "--by", "stdin", "--rank", absl::StrCat(rank)}};
  if (absl::Status status = Spawn(command, true, false, {}); !status.ok()) return status;
  SendBundle(rank);
  folder_is_handed_over_ = true;
  const absl::StatusOr<bool> listening = WaitUntil(kStartTimeout, [this, rank] {
    mu_.AssertHeld();
    return !listening_.empty() || ranks_[static_cast<size_t>(rank)].ended;
  });
  if (!listening.ok()) return listening.status();
  if (absl::Status health = Health(); !health.ok()) return health;
  {
    MutexLock lock(mu_);
    coordinator_ = listening_;
  }
  if (coordinator_.empty()) {
    return absl::InternalError(absl::StrCat("the coordinator did not listen within ",
                                            absl::FormatDuration(kStartTimeout)));
  }
  const absl::StatusOr<services::Endpoint> endpoint = services::ParseEndpoint(coordinator_);
  if (!endpoint.ok()) return endpoint.status();
  connection_.address = *endpoint;
  return absl::OkStatus();
}

absl::Status LaunchedCluster::HearFromAll() {
  const auto missing = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<std::string> names;
    for (int i = 0; i < CoordinatorRank(); ++i) {
      const Rank& rank = ranks_[static_cast<size_t>(i)];
      if (rank.host.empty()) names.push_back(rank.bundle.name);
    }
    return names;
  };
  const absl::Duration timeout = IsBatch(options_.launcher) ? kQueueTimeout : kStartTimeout;
  const absl::StatusOr<bool> all = WaitUntil(timeout, [this, &missing] {
    mu_.AssertHeld();
    return missing().empty() || addresses_done_ ||
           std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.ended; });
  });
  if (!all.ok()) return all.status();
  MutexLock lock(mu_);
  for (const Rank& rank : ranks_) {
    if (rank.ended) {
      return absl::InternalError(
          absl::StrCat(rank.bundle.name, " did not start: ", rank.how, LastLines()));
    }
  }
  if (const std::vector<std::string> names = missing(); !names.empty()) {
    return absl::InternalError(
        absl::StrCat("no answer from ", absl::StrJoin(names, ", "),
                     addresses_done_ ? "" : absl::StrCat(" within ", absl::FormatDuration(timeout)),
                     LastLines()));
  }
  return absl::OkStatus();
}

absl::Status LaunchedCluster::EquipAll() {
  MutexLock lock(mu_);
  for (int i = 0; i < CoordinatorRank(); ++i) {
    Rank& rank = ranks_[static_cast<size_t>(i)];
    rank.bundle.coordinator = coordinator_;
    const auto workers = std::count_if(ranks_.begin(), ranks_.end(), [&](const Rank& other) {
      return other.bundle.role == Role::kWorker && other.host == rank.host;
    });
    // A host may have only a shard.
    rank.bundle.workers_of_host = std::max(1, static_cast<int>(workers));
    if (absl::Status status = authority_->Equip(rank.bundle, absl::Now()); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> LaunchedCluster::WaitUntil(absl::Duration timeout,
                                                const std::function<bool()>& done) {
  const absl::Duration until = MonotonicNow() + timeout;
  while (true) {
    {
      MutexLock lock(mu_);
      if (done()) return true;
    }
    if (MonotonicNow() > until) return false;
    if (services::ShutdownSignal::Install().WaitFor(kClusterLook)) return absl::CancelledError();
  }
}

absl::Status LaunchedCluster::Spawn(const NodeCommand& command, bool with_input,
                                    bool only_addresses, std::vector<std::string> env) {
  const absl::StatusOr<std::string> binary = FindProgram(command.args[0]);
  if (!binary.ok()) return binary.status();
  int ends[2] = {-1, -1};
  if (with_input && pipe2(ends, O_CLOEXEC) != 0) {
    return services::ErrnoStatus(errno, "pipe2", *binary);
  }
  services::ProcessOptions options;
  options.binary = *binary;
  options.args.assign(command.args.begin() + 1, command.args.end());
  options.env = std::move(env);
  options.stdin_fd = ends[0];
  options.on_line = [this, command](services::OutputStream, absl::string_view line) {
    OnLine(command, line);
  };
  options.on_exit = [this, command, only_addresses](const services::ExitStatus& status) {
    OnExit(command, only_addresses, status.ToString());
  };
  absl::StatusOr<std::unique_ptr<services::Process>> process = spawner_.Spawn(std::move(options));
  if (ends[0] >= 0) close(ends[0]);
  if (!process.ok()) {
    if (ends[1] >= 0) close(ends[1]);
    return process.status();
  }
  members_.push_back({command.first_rank, command.ranks, ends[1], *std::move(process)});
  return absl::OkStatus();
}

void LaunchedCluster::SendBundle(int rank) {
  std::string line;
  {
    MutexLock lock(mu_);
    line = FormatBundleLine(rank, ranks_[static_cast<size_t>(rank)].bundle);
  }
  for (const Member& member : members_) {
    if (member.input < 0 || rank < member.first_rank || rank >= member.first_rank + member.ranks) {
      continue;
    }
    // If the member has ended, that is noticed elsewhere.
    for (absl::string_view left = line; !left.empty();) {
      const ssize_t written = write(member.input, left.data(), left.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;
      left.remove_prefix(static_cast<size_t>(written));
    }
  }
}

void LaunchedCluster::OnLine(const NodeCommand& command, absl::string_view line) {
  const std::optional<NodeLine> said = ParseNodeLine(line);
  MutexLock lock(mu_);
  if (!said.has_value() || said->rank < 0 || said->rank > CoordinatorRank()) {
    const Rank& first = ranks_[static_cast<size_t>(command.first_rank)];
    Show(command.ranks > 1 ? command.where : Who(first.bundle.name, command.where), line);
    return;
  }
  Rank& rank = ranks_[static_cast<size_t>(said->rank)];
  switch (said->kind) {
    case NodeLine::Kind::kHello: {
      const std::pair<std::string, std::string> words =
          absl::StrSplit(said->text, absl::MaxSplits(' ', 1));
      rank.bundle.address = words.first;
      rank.host = command.ranks == 1 && !command.where.empty() ? command.where : words.second;
      return;
    }
    case NodeLine::Kind::kOutput:
      if (said->rank == CoordinatorRank() && listening_.empty()) listening_ = Listening(said->text);
      Show(Who(rank.bundle.name, rank.host), said->text);
      return;
    case NodeLine::Kind::kEnd:
      rank.ended = true;
      rank.how = said->text;
      if (!stopping_) Show(Who(rank.bundle.name, rank.host), said->text);
      return;
  }
}

void LaunchedCluster::OnExit(const NodeCommand& command, bool only_addresses,
                             const std::string& how) {
  MutexLock lock(mu_);
  if (only_addresses) {
    addresses_done_ = true;
    return;
  }
  for (int i = command.first_rank; i < command.first_rank + command.ranks; ++i) {
    Rank& rank = ranks_[static_cast<size_t>(i)];
    if (rank.ended) continue;
    rank.ended = true;
    rank.how =
        absl::StrCat(command.ranks > 1 ? command.where : command.args[0], " ended with ", how);
    if (!stopping_) Show(Who(rank.bundle.name, rank.host), rank.how);
  }
}

void LaunchedCluster::Show(const std::string& who, absl::string_view line) {
  last_lines_.push_back(absl::StrCat("[", who, "] ", line, "\n"));
  if (last_lines_.size() > kKeptLines) last_lines_.erase(last_lines_.begin());
  print_(who, line);
}

std::string LaunchedCluster::LastLines() const {
  return last_lines_.empty() ? ""
                             : absl::StrCat("; the last output:\n", absl::StrJoin(last_lines_, ""));
}

absl::Status LaunchedCluster::Health() const {
  MutexLock lock(mu_);
  bool worker_lives = false;
  const Rank* gone = nullptr;
  for (const Rank& rank : ranks_) {
    const bool worker = rank.bundle.role == Role::kWorker;
    if (!rank.ended && worker) worker_lives = true;
    if (rank.ended && !worker) gone = &rank;
  }
  if (gone == nullptr && worker_lives) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(gone == nullptr ? "every worker has ended"
                                   : absl::StrCat(gone->bundle.name, " has ended: ", gone->how),
                   LastLines()));
}

void LaunchedCluster::CloseInputs(bool coordinator) {
  for (Member& member : members_) {
    if ((member.first_rank == CoordinatorRank()) != coordinator || member.input < 0) continue;
    close(std::exchange(member.input, -1));
  }
}

bool LaunchedCluster::WaitForMembers(absl::Duration timeout) {
  const absl::Duration until = MonotonicNow() + timeout;
  return std::all_of(members_.begin(), members_.end(), [until](const Member& member) {
    return member.process->WaitFor(std::max(absl::ZeroDuration(), until - MonotonicNow()))
        .has_value();
  });
}

LaunchedCluster::~LaunchedCluster() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  // Workers and shards first, because they report a failure if they lose their coordinator. Members
  // without input from us end because the coordinator ends.
  CloseInputs(/*coordinator=*/false);
  for (const Member& member : members_) {
    if (member.first_rank != CoordinatorRank() && options_.launcher != Launcher::kMpi) {
      (void)member.process->WaitFor(kStopTimeout);
    }
  }
  CloseInputs(/*coordinator=*/true);
  for (const int signal : {SIGTERM, SIGKILL}) {
    if (WaitForMembers(signal == SIGTERM ? kStopTimeout : kKillTimeout)) break;
    for (const Member& member : members_) member.process->Kill(signal);
  }
  members_.clear();
  if (!folder_.empty() && !folder_is_handed_over_) (void)services::RemoveTree("/tmp", folder_);
}

}  // namespace capstan::client
