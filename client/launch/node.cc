#include "client/launch/node.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/launch/authority.h"
#include "client/launch/bundle.h"
#include "client/launch/reach.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/process/process.h"
#include "services/security/secret_file.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kBundleTimeout = absl::Minutes(5);  // for ranks that start together
constexpr absl::Duration kNodeLook = absl::Milliseconds(100);
constexpr absl::Duration kServiceStopTimeout = absl::Seconds(5);  // for the service, after SIGTERM
// A launch never restarts its coordinator. So a coordinator that refuses connections is gone, while
// a silent one may be behind a network that recovers.
constexpr absl::Duration kCoordinatorLook = absl::Seconds(1);
constexpr absl::Duration kCoordinatorTimeout = absl::Seconds(2);
constexpr absl::Duration kCoordinatorSilence = absl::Seconds(30);
constexpr int kRefusals = 2;
constexpr int kShardRestarts = 3;
constexpr size_t kMaxInputLine = 1 << 20;

// The rank of processes that were started together, by Open MPI, PMI (MPICH, Slurm) or Slurm.
std::optional<int> RankOfLauncher() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    int rank = 0;
    const char* const text = std::getenv(name);
    if (text != nullptr && absl::SimpleAtoi(text, &rank) && rank >= 0) return rank;
  }
  return std::nullopt;
}

const char* BinaryOf(services::Role role) {
  switch (role) {
    case services::Role::kCoordinator:
      return "capstan_coordinator";
    case services::Role::kParamStore:
      return "capstan_param_store";
    default:
      return "capstan_gpu_worker";
  }
}

class LaunchedNode {
 public:
  explicit LaunchedNode(const NodeOptions& options) : options_(options), rank_(options.rank) {}
  ~LaunchedNode() {
    Stop();
    process_.reset();
    RemoveFolder();
  }

  absl::Status Run() {
    if (rank_ < 0) {
      const std::optional<int> rank = RankOfLauncher();
      if (!rank.has_value()) {
        return absl::InvalidArgumentError("--rank is not given, and no launcher has set it");
      }
      rank_ = *rank;
    }
    if (!options_.coordinator.empty()) {
      const auto endpoint = services::ParseEndpoint(options_.coordinator);
      if (!endpoint.ok()) return endpoint.status();
      coordinator_ = *endpoint;
      const absl::StatusOr<std::string> address =
          options_.interface.empty() ? AddressTowards(coordinator_->host)
                                     : services::InterfaceAddress(options_.interface);
      if (!address.ok()) return address.status();
      if (options_.by != "variable") {
        Say(NodeLine::Kind::kHello, absl::StrCat(*address, " ", HostName()));
      }
    }
    if (options_.by == "address") return absl::OkStatus();
    absl::StatusOr<NodeBundle> bundle =
        options_.by == "variable" ? BundleOfVariable() : BundleToCome();
    if (!bundle.ok()) {
      return absl::IsCancelled(bundle.status()) ? absl::OkStatus() : bundle.status();
    }
    if (absl::Status status = Prepare(*bundle); !status.ok()) return status;
    return Serve();
  }

  // Ends the service: asks it first, then kills it.
  void Stop() {
    // Remove the folder first: a scheduler may soon kill us, and no key must be left behind.
    if (role_ != services::Role::kCoordinator) RemoveFolder();
    if (process_ == nullptr || process_->WaitFor(absl::ZeroDuration()).has_value()) return;
    process_->Kill(SIGTERM);
    if (!process_->WaitFor(kServiceStopTimeout).has_value()) process_->Kill(SIGKILL);
  }

  void Say(NodeLine::Kind kind, absl::string_view text) const {
    const std::string line = FormatNodeLine({rank_, kind, std::string(text)});
    // If the reader is gone, the other ends of the connection show it.
    (void)!write(STDOUT_FILENO, line.data(), line.size());
  }

 private:
  // True: the input has ended, or is too long.
  bool ReadInput() {
    char block[16 * 1024];
    const ssize_t got = read(STDIN_FILENO, block, sizeof(block));
    if (got < 0) return errno != EINTR && errno != EAGAIN;
    input_.append(block, static_cast<size_t>(got));
    return got == 0 || input_.size() > kMaxInputLine * 64;
  }

  // Waits at most kNodeLook. True: the launch has ended, the input has ended, or a signal arrived.
  bool ToldToEnd() {
    if (options_.by == "folder" && !IsThere(kLaunchMarker)) return true;
    if (options_.by != "stdin") return signal_.WaitFor(kNodeLook);
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const int ready = poll(&input, 1, static_cast<int>(absl::ToInt64Milliseconds(kNodeLook)));
    if (ready > 0 && ReadInput()) return true;
    return signal_.WaitFor(absl::ZeroDuration());
  }

  void RemoveFolder() {
    if (!folder_.empty()) (void)services::RemoveTree("/tmp", std::exchange(folder_, ""));
  }

  bool IsThere(absl::string_view name) const {
    return access(absl::StrCat(options_.folder, "/", name).c_str(), F_OK) == 0;
  }

  // Adds a bundle in the folder to input_, if there is one.
  absl::Status LookIntoFolder() {
    const std::string path = absl::StrCat(options_.folder, "/", rank_, ".bundle");
    absl::StatusOr<std::string> line = services::ReadSecretFile(path);
    if (absl::IsNotFound(line.status())) return absl::OkStatus();
    if (!line.ok()) return line.status();
    (void)unlink(path.c_str());
    input_ = *std::move(line);
    return absl::OkStatus();
  }

  // Cancelled: no bundle will come.
  absl::StatusOr<NodeBundle> BundleToCome() {
    const absl::Duration timeout = options_.by == "folder" ? kQueueTimeout : kBundleTimeout;
    const absl::Duration until = MonotonicNow() + timeout;
    while (MonotonicNow() < until) {
      if (ToldToEnd()) return absl::CancelledError();
      if (options_.by == "folder") {
        if (absl::Status status = LookIntoFolder(); !status.ok()) return status;
        // The marker stays if the launch was killed together with the process that would remove it.
        if (CoordinatorIsGone()) return absl::CancelledError();
      }
      for (size_t end = input_.find('\n'); end != std::string::npos; end = input_.find('\n')) {
        const std::string line = input_.substr(0, end);
        input_.erase(0, end + 1);
        if (auto bundle = ParseBundleLine(rank_, line)) return *std::move(bundle);
      }
    }
    return absl::DeadlineExceededError(
        absl::StrCat("no bundle within ", absl::FormatDuration(timeout)));
  }

  absl::StatusOr<NodeBundle> BundleOfVariable() const {
    const char* const text = std::getenv(kBundlesVariable);
    if (text == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(kBundlesVariable, " is not set"));
    }
    const auto all = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    // The service and its tasks must not see the variable.
    unsetenv(kBundlesVariable);
    if (!all.is_array() || static_cast<size_t>(rank_) >= all.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kBundlesVariable, " has nothing for rank ", rank_));
    }
    return ParseBundle(all[static_cast<size_t>(rank_)].dump());
  }

  absl::Status Prepare(const NodeBundle& bundle) {
    role_ = bundle.role;
    if (bundle.folder.empty()) {
      absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan-node");
      if (!folder.ok()) return folder.status();
      folder_ = *std::move(folder);
    } else {
      folder_ = bundle.folder;
    }
    const absl::StatusOr<services::Security> security = WriteSecrets(bundle, folder_);
    if (!security.ok()) return security.status();
    services::Endpoint listen;
    listen.kind = services::Endpoint::Kind::kTcp;
    listen.host = bundle.address;
    env_ = bundle.env;
    args_ = {"--listen",  listen.ToString(), "--tls-cert", security->tls_cert,
             "--tls-key", security->tls_key, "--tls-ca",   security->tls_ca};
    if (!Given("CAPSTAN_HTTP")) args_.insert(args_.end(), {"--http", "off"});
    if (role_ == services::Role::kCoordinator) {
      const std::string state = bundle.state_dir.empty() ? folder_ + "/state" : bundle.state_dir;
      args_.insert(args_.end(),
                   {"--state-dir", state, "--data-root", "file:///", "--checkpoint-root",
                    "file:///", "--tokens", security->tokens, "--only-job", bundle.job_id,
                    "--expect-nodes", absl::StrCat(bundle.nodes)});
      return absl::OkStatus();
    }
    args_.insert(args_.end(), {"--coordinator", bundle.coordinator, "--node", bundle.name,
                               "--token-file", security->token_file});
    if (role_ == services::Role::kParamStore) {
      args_.insert(args_.end(), {"--tokens", security->tokens});
      // It ends with the launch, so no other shard takes over; and a scheduler may soon kill us.
      args_.insert(args_.end(), {"--hand-over", "0s"});
      return absl::OkStatus();
    }
    // Results do not depend on the number of threads.
    const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    args_.insert(
        args_.end(),
        {"--cpu-threads", absl::StrCat(std::max(1, cores / std::max(1, bundle.workers_of_host)))});
    return absl::OkStatus();
  }

  // Whether the person set a variable of the services. No flag of ours overrides it.
  bool Given(const char* variable) const {
    const char* const value = std::getenv(variable);
    if (value != nullptr && *value != 0) return true;
    return std::any_of(env_.begin(), env_.end(), [&](const std::string& entry) {
      return absl::StartsWith(entry, absl::StrCat(variable, "="));
    });
  }

  absl::Status Spawn() {
    absl::StatusOr<std::string> binary = services::SiblingBinary(BinaryOf(role_));
    if (!binary.ok()) return binary.status();
    services::ProcessOptions options;
    options.binary = *std::move(binary);
    options.args = args_;
    options.env = env_;
    options.on_line = [this](services::OutputStream, absl::string_view line) {
      Say(NodeLine::Kind::kOutput, line);
    };
    absl::StatusOr<std::unique_ptr<services::Process>> process = spawner_.Spawn(std::move(options));
    if (!process.ok()) return process.status();
    process_ = *std::move(process);
    return absl::OkStatus();
  }

  absl::Status Serve() {
    if (absl::Status status = Spawn(); !status.ok()) return status;
    int restarts = 0;
    while (true) {
      if (ToldToEnd()) return absl::OkStatus();
      if (CoordinatorIsGone()) return absl::OkStatus();
      const std::optional<services::ExitStatus> ended = process_->WaitFor(absl::ZeroDuration());
      if (!ended.has_value()) continue;
      // Other workers take over the lanes of a lost worker. Nobody else has a shard's chunks, but
      // the job continues from its last checkpoint once the shard is back.
      if (role_ == services::Role::kParamStore && ended->signal != 0 &&
          restarts++ < kShardRestarts) {
        Say(NodeLine::Kind::kOutput,
            absl::StrCat("the service ended with ", ended->ToString(), " and is started again"));
        if (absl::Status status = Spawn(); !status.ok()) return status;
        continue;
      }
      if (ended->success()) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("the service ended with ", ended->ToString()));
    }
  }

  bool CoordinatorIsGone() {
    const absl::Duration now = MonotonicNow();
    if (!coordinator_.has_value() || now < next_look_) return false;
    next_look_ = now + kCoordinatorLook;
    switch (TryToReach(*coordinator_, kCoordinatorTimeout)) {
      case Reach::kThere:
        refusals_ = 0;
        last_seen_ = MonotonicNow();
        return false;
      case Reach::kRefused:
        return ++refusals_ >= kRefusals;
      case Reach::kSilent:
        return MonotonicNow() - last_seen_ > kCoordinatorSilence;
    }
    return false;
  }

  const NodeOptions options_;
  int rank_;
  services::ShutdownSignal& signal_ = services::ShutdownSignal::Install();
  std::optional<services::Endpoint> coordinator_;
  std::string input_;  // of standard input, not used yet
  services::Role role_ = services::Role::kWorker;
  std::string folder_;
  std::vector<std::string> args_;
  std::vector<std::string> env_;
  int refusals_ = 0;
  absl::Duration last_seen_ = MonotonicNow();
  absl::Duration next_look_ = MonotonicNow() + kCoordinatorLook;

  services::ProcessSpawner spawner_;
  std::unique_ptr<services::Process> process_;  // dropped before the spawner
};

}  // namespace

ExitCode RunNode(const NodeOptions& options) {
  services::KeepMemoryPrivate();
  // These are settings of the person's shell or of an outer service, not meant for ours.
  for (const char* name : {"CAPSTAN_INSECURE", "CAPSTAN_ADVERTISE", "CAPSTAN_INTERFACE"}) {
    unsetenv(name);
  }
  LaunchedNode node(options);
  if (options.by == "folder") {
    // qsub -notify sends it before SIGKILL.
    signal(SIGUSR2, [](int) { services::ShutdownSignal::Install().Trigger(); });
  }
  const absl::Status status = node.Run();
  node.Stop();
  if (options.by != "address") {
    node.Say(NodeLine::Kind::kEnd, status.ok() ? "exit code 0" : status.message());
  }
  return status.ok() ? kExitDone : kExitInternal;
}

}  // namespace capstan::client
