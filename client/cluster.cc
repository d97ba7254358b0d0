#include "client/cluster.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "services/files/files.h"
#include "services/visible_text/visible_text.h"

namespace capstan::client {
namespace {

constexpr size_t kKeptLines = 50;
constexpr absl::Duration kStopTimeout = absl::Seconds(5);  // of one service, after SIGTERM

// Whether the user set a variable of the services. They inherit it, and no flag of ours overrides
// it.
bool Given(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != 0;
}

}  // namespace

LocalCluster::LocalCluster(const ClusterOptions& options, std::string folder)
    : options_(options), folder_(std::move(folder)) {
  coordinator_.kind = services::Endpoint::Kind::kUnix;
  coordinator_.path = folder_ + "/c.sock";
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::Start(const ClusterOptions& options) {
  absl::StatusOr<std::string> folder = services::MakePrivateDir("capstan");
  if (!folder.ok()) return folder.status();
  std::unique_ptr<LocalCluster> cluster(new LocalCluster(options, *std::move(folder)));
  const std::string coordinator = cluster->coordinator_.ToString();
  const auto common = [&](const std::string& name) {
    std::vector<std::string> args = {"--listen",
                                     absl::StrCat("unix:", cluster->folder_, "/", name, ".sock")};
    const bool says_http = !options.http.empty() || (options.look.empty() && Given("CAPSTAN_HTTP"));
    if (!says_http) args.insert(args.end(), {"--http", "off"});
    return args;
  };

  std::vector<std::string> args = common("c");
  const std::string state =
      options.state_dir.empty() ? cluster->folder_ + "/state" : options.state_dir;
  args.insert(args.end(), {"--state-dir", state, "--data-root", "file:///", "--checkpoint-root",
                           "file:///", "--heartbeat", "200ms"});
  if (options.look.empty()) {
    args.insert(args.end(), {"--only-job", options.job_id, "--expect-nodes",
                             absl::StrCat(options.workers + options.shards)});
  } else {
    args.insert(args.end(), {"--look", options.look});
    // Everybody on this machine may look. The permissions of the runs' folder decide who can.
    if (!options.http.empty()) args.insert(args.end(), {"--http", options.http, "--insecure"});
  }
  if (absl::Status status = cluster->Spawn("coordinator", "capstan_coordinator", args);
      !status.ok())
    return status;
  for (int i = 0; i < options.shards; ++i) {
    const std::string name = absl::StrCat("s", i);
    args = common(name);
    // All services end together, so nobody could take over a shard.
    args.insert(args.end(), {"--coordinator", coordinator, "--node", name, "--hand-over", "0s"});
    if (!options.shared_memory) args.emplace_back("--no-shared-memory");
    if (absl::Status status = cluster->Spawn(name, "capstan_param_store", args); !status.ok())
      return status;
  }
  // The workers share this machine's cores. Results do not depend on the number of threads.
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const std::string threads = absl::StrCat(std::max(1, cores / std::max(1, options.workers)));
  for (int i = 0; i < options.workers; ++i) {
    const std::string name = absl::StrCat("w", i);
    args = common(name);
    args.insert(args.end(),
                {"--coordinator", coordinator, "--node", name, "--cpu-threads", threads});
    if (options.cpus_alone && !Given("CAPSTAN_DEVICES")) {
      args.insert(args.end(), {"--devices", "cpu"});
    }
    if (absl::Status status = cluster->Spawn(name, "capstan_gpu_worker", args); !status.ok())
      return status;
  }
  return cluster;
}

LocalCluster::~LocalCluster() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
  }
  // Workers first: they would report a vanished shard or coordinator as a failure.
  for (auto member = members_.rbegin(); member != members_.rend(); ++member)
    member->process->Kill(SIGTERM);
  for (auto member = members_.rbegin(); member != members_.rend(); ++member) {
    if (!member->process->WaitFor(kStopTimeout).has_value()) member->process->Kill(SIGKILL);
  }
  members_.clear();
  (void)services::RemoveTree("/tmp", folder_);  // a leftover cannot be helped here
}

absl::Status LocalCluster::Spawn(const std::string& name, absl::string_view binary,
                                 std::vector<std::string> args) {
  absl::StatusOr<std::string> path = services::SiblingBinary(binary);
  if (!path.ok()) return path.status();
  services::ProcessOptions options;
  options.binary = *std::move(path);
  options.args = std::move(args);
  options.on_line = [this, name](services::OutputStream, absl::string_view line) {
    OnLine(name, line);
  };
  options.on_exit = [this, name](const services::ExitStatus& status) {
    OnExit(name, status.ToString());
  };
  absl::StatusOr<std::unique_ptr<services::Process>> process = spawner_.Spawn(std::move(options));
  if (!process.ok()) return process.status();
  members_.push_back({name, *std::move(process)});
  return absl::OkStatus();
}

void LocalCluster::OnLine(const std::string& name, absl::string_view line) {
  std::string text = absl::StrCat("[", name, "] ", line, "\n");
  if (options_.echo) {
    // A service's own log lines are clean. Output of a library or of a crashing process may not be.
    const std::string shown = services::VisibleLines(text);
    std::fwrite(shown.data(), 1, shown.size(), stderr);
  }
  MutexLock lock(mu_);
  if (name == "coordinator" && absl::ConsumePrefix(&line, "event=listening ")) {
    http_ = std::string(line.substr(std::min(line.find("http="), line.size())));
    http_.erase(0, std::min(http_.size(), sizeof("http=") - 1));
    if (http_ == "off") http_.clear();
  }
  last_lines_.push_back(std::move(text));
  if (last_lines_.size() > kKeptLines) last_lines_.pop_front();
}

void LocalCluster::OnExit(const std::string& name, const std::string& how) {
  MutexLock lock(mu_);
  if (!stopping_ && ended_.empty())
    ended_ = absl::StrCat("the service ", name, " ended with ", how);
}

std::string LocalCluster::http() const {
  MutexLock lock(mu_);
  return http_;
}

absl::Status LocalCluster::Health() const {
  MutexLock lock(mu_);
  if (ended_.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(ended_, "; its last output:\n", absl::StrJoin(last_lines_, "")));
}

}  // namespace capstan::client
