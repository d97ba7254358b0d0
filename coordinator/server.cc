#include "coordinator/server.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <future>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/journal/run_journals.h"
#include "coordinator/journal/sqlite_journal.h"
#include "coordinator/registration.h"
#include "coordinator/service_discovery.h"
#include "grpcpp/support/server_interceptor.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "training/spec/resolve.h"

namespace capstan::coordinator {
namespace {

// The seed of ids. They need not be unguessable, only different from run to run.
uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

constexpr int64_t kReserveBytesOfOneJob = int64_t{1} << 20;
constexpr absl::Duration kSaveKeysEvery = absl::Seconds(5);
constexpr char kStateDiskHealth[] = "state-disk";  // NOT_SERVING while that disk is full

core::CoreOptions MakeCoreOptions(const Config& config, const std::string& state_dir,
                                  const FileKeys& keys, const PathPolicy& policy) {
  core::CoreOptions options;
  options.lease = config.lease;
  options.heartbeat = config.heartbeat;
  // By accepting an incomplete journal, the operator has agreed that unknown jobs may end.
  if (config.accept_journal >= 0) options.unknown_jobs_spared = absl::ZeroDuration();
  options.expected_nodes = static_cast<int>(config.expected_nodes);
  options.only_job = config.only_job;
  options.storage_root = absl::StrCat(state_dir, "/checkpoints");
  options.seed = RandomSeed();
  options.files_key = [keys](const std::string& job_id, const core::FileHolder& holder) {
    return keys.Make(job_id, holder);
  };
  options.is_data = [&policy](const std::string& path) { return policy.IsData(path); };
  options.validate = ValidateJobSpec;
  options.resolve = [](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                       const std::string& job_id, const std::string& storage_root) {
    return training::spec::Resolve(spec, dataset, {.job_id = job_id, .storage_path = storage_root});
  };
  return options;
}

// Why nothing can be changed. Empty: changes are possible.
std::string OnlyLooks(const Config& config) {
  if (config.look.empty()) return "";
  return absl::StrCat("this coordinator shows the runs of ", config.look,
                      " and changes nothing; capstan run --resume continues one");
}

// Makes the folder if it is missing. Returns its absolute path.
absl::StatusOr<std::string> OpenStateDir(const std::string& path) {
  const absl::Status status = services::EnsureDir(path, 0700);
  if (!status.ok()) return status;
  char real[PATH_MAX];
  if (::realpath(path.c_str(), real) == nullptr)
    return services::ErrnoStatus(errno, "realpath", path);
  const absl::Status checkpoints = services::EnsureDir(absl::StrCat(real, "/checkpoints"), 0755);
  if (!checkpoints.ok()) return checkpoints;
  return std::string(real);
}

// The folders that Diagnose checks. The policy's last root is the one below the state folder.
ClusterFolders FoldersOf(const PathPolicy& policy, const std::string& state_dir) {
  ClusterFolders folders;
  folders.state = state_dir;
  folders.checkpoints = policy.checkpoint_roots();
  folders.checkpoints.pop_back();
  folders.data = policy.data_roots();
  return folders;
}

// The folders that are measured, including the root below the state folder, which may be another
// disk.
services::FolderReports MeasuredFolders(const PathPolicy& policy, const std::string& state_dir) {
  services::FolderReports folders =
      services::RootFolders(policy.checkpoint_roots(), policy.data_roots());
  folders.push_back(services::FolderFor(state_dir, job::v1::FOLDER_USE_STATE));
  return folders;
}

// Roots for a job's initial weights. At submission it was checked which of them this job may use.
std::vector<std::string> RootsOfWeights(const PathPolicy& policy) {
  std::vector<std::string> roots = policy.data_roots();
  const std::vector<std::string>& checkpoints = policy.checkpoint_roots();
  roots.insert(roots.end(), checkpoints.begin(), checkpoints.end());
  return roots;
}

}  // namespace

CoordinatorServer::CoordinatorServer(const Config& config, const std::string& state_dir,
                                     PathPolicy policy, FileKeys keys,
                                     std::unique_ptr<SqliteJournal> journal,
                                     std::function<void()> on_fatal)
    : registry_("coordinator"),
      metrics_(registry_),
      rpc_metrics_(
          registry_,
          {file::v1::FileService::service_full_name(), job::v1::AdminService::service_full_name(),
           job::v1::BackupService::service_full_name(),
           job::v1::CheckpointService::service_full_name(),
           job::v1::JobService::service_full_name(), node::v1::NodeService::service_full_name()}),
      policy_(std::move(policy)),
      upkeep_(registry_, MeasuredFolders(policy_, state_dir), config.common.security),
      journal_(std::move(journal)),
      coordinator_(
          {.core = MakeCoreOptions(config, state_dir, keys, policy_),
           .journal = journal_.get(),
           .metrics = &metrics_,
           .restore_apart = policy_.checkpoint_roots(),
           .only_looks = OnlyLooks(config),
           .on_fatal = [on_fatal = std::move(on_fatal)](const absl::Status&) { on_fatal(); }}),
      job_service_(coordinator_, policy_, &metrics_),
      admin_service_(coordinator_, FoldersOf(policy_, state_dir)),
      node_service_(coordinator_),
      file_keys_(std::move(keys)),
      file_service_(coordinator_, file_keys_,
                    {.data = RootsOfWeights(policy_), .checkpoints = policy_.checkpoint_roots()}),
      checkpoint_service_(coordinator_, policy_.checkpoint_roots()),
      backup_service_(coordinator_, *journal_) {}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const Config& config, std::function<void()> on_fatal) {
  absl::Status status = CheckConfig(config);
  if (!status.ok()) return status;
  const absl::StatusOr<services::CommonFlags::Resolved> common = config.common.Apply();
  if (!common.ok()) return common.status();
  const absl::StatusOr<std::string> state_dir = OpenStateDir(config.state_dir);
  if (!state_dir.ok()) return state_dir.status();
  std::vector<std::string> checkpoint_roots = config.checkpoint_roots;
  checkpoint_roots.push_back(absl::StrCat(*state_dir, "/checkpoints"));
  absl::StatusOr<PathPolicy> policy = PathPolicy::Create(config.data_roots, checkpoint_roots);
  if (!policy.ok()) return policy.status();
  JournalOptions journal_options;
  // The state is one of many folders on a person's disk, and holds little.
  if (!config.only_job.empty()) journal_options.reserve_bytes = kReserveBytesOfOneJob;
  if (!config.look.empty()) journal_options.reserve_bytes = 0;  // nothing is ever added
  if (config.accept_journal >= 0) journal_options.accept_commits = config.accept_journal;
  absl::StatusOr<std::unique_ptr<SqliteJournal>> journal =
      SqliteJournal::Open(*state_dir, journal_options);
  if (!journal.ok()) return journal.status();
  absl::StatusOr<core::DurableState> state =
      config.look.empty() ? (*journal)->Load() : ReadRunJournals(config.look);
  if (!state.ok()) return state.status();
  for (auto& entry : state->nodes) KeepHashOfKey(entry.second.reg);

  absl::StatusOr<FileKeys> keys = FileKeys::Open(*state_dir);
  if (!keys.ok()) return keys.status();

  std::unique_ptr<CoordinatorServer> coordinator(
      new CoordinatorServer(config, *state_dir, *std::move(policy), *std::move(keys),
                            *std::move(journal), std::move(on_fatal)));
  status = coordinator->coordinator_.Restore(*state);
  if (!status.ok()) return status;
  if (!state->jobs.empty()) {
    services::Log(services::kInfo, "restored").Kv("jobs", static_cast<int64_t>(state->jobs.size()));
  }
  services::ServerOptions options;
  options.listen = common->listen;
  options.security = config.common.security;
  options.interceptors.push_back(
      [&metrics = coordinator->rpc_metrics_] { return metrics.MakeInterceptorFactory(); });
  const std::vector<services::Role> people = {services::Role::kClient, services::Role::kAdmin};
  const std::vector<services::Role> nodes = {services::Role::kWorker, services::Role::kParamStore};
  std::vector<services::ServedService> served = {
      {job::v1::JobService::service_full_name(), &coordinator->job_service_, people},
      {job::v1::AdminService::service_full_name(), &coordinator->admin_service_, people},
      {job::v1::CheckpointService::service_full_name(), &coordinator->checkpoint_service_, people}};
  // A coordinator that only looks has no journal of jobs and accepts no nodes.
  if (config.look.empty()) {
    served.push_back({job::v1::BackupService::service_full_name(),
                      &coordinator->backup_service_,
                      {services::Role::kAdmin}});
    served.push_back(
        {node::v1::NodeService::service_full_name(), &coordinator->node_service_, nodes});
    served.push_back(
        {file::v1::FileService::service_full_name(), &coordinator->file_service_, nodes});
  }
  absl::StatusOr<std::unique_ptr<services::Server>> server =
      services::Server::Start(std::move(options), served);
  if (!server.ok()) return server.status();
  coordinator->server_ = *std::move(server);
  coordinator->coordinator_.Post([c = coordinator.get()] {
    c->coordinator_.ListenForDisk(
        [c](bool full) { c->server_->SetServing(kStateDiskHealth, !full); });
  });
  if (!coordinator->file_keys_.durable()) {
    coordinator->coordinator_.Post([c = coordinator.get()] { c->SaveFileKeys(); });
  }
  coordinator->server_->AddDrainHook("streams",
                                     [c = coordinator.get()] { c->coordinator_.Drain(); });
  coordinator->server_->AddDrainHook("files",
                                     [c = coordinator.get()] { c->file_service_.Drain(); });
  coordinator->server_->AddDrainHook("checkpoints",
                                     [c = coordinator.get()] { c->checkpoint_service_.Drain(); });
  coordinator->server_->AddDrainHook("backups",
                                     [c = coordinator.get()] { c->backup_service_.Drain(); });
  coordinator->server_->AddDrainHook("verifications",
                                     [c = coordinator.get()] { c->job_service_.Drain(); });
  coordinator->server_->AddStopHook("verifications", [c = coordinator.get()] {
    c->files_done_ = c->job_service_.Stop(c->FilePatience());
  });
  coordinator->server_->AddStopHook("checkpoints", [c = coordinator.get()] {
    c->files_done_ = c->checkpoint_service_.Stop(c->FilePatience()) && c->files_done_;
  });
  coordinator->server_->AddStopHook("backups", [c = coordinator.get()] {
    c->files_done_ = c->backup_service_.Stop(c->FilePatience()) && c->files_done_;
  });
  coordinator->server_->AddStopHook("files", [c = coordinator.get()] {
    c->files_done_ = c->file_service_.Stop(c->FilePatience()) && c->files_done_;
  });
  coordinator->server_->AddStopHook("strand", [c = coordinator.get()] {
    c->files_done_ = c->coordinator_.Stop(c->FilePatience()) && c->files_done_;
  });
  if (common->http.has_value()) {
    absl::StatusOr<std::unique_ptr<PageServer>> page =
        PageServer::Create(coordinator->coordinator_, config.common.security);
    if (!page.ok()) return page.status();
    coordinator->page_ = *std::move(page);
    services::HttpOptions web{.listen = *common->http,
                              .security = config.common.security,
                              .ready = [c = coordinator.get()] { return c->server_->ready(); },
                              .names = config.common.http_hosts};
    coordinator->page_->AddRoutes(web);
    web.routes["/metrics"] = services::MetricsHandler(coordinator->upkeep_.Scraper());
    web.routes["/sd"] = [c = coordinator.get()](const services::HttpRequest&) {
      return c->ServiceDiscovery();
    };
    for (const char* path : {"/metrics", "/sd"}) {
      web.routes[path] = coordinator->page_->readers().ForMetrics(
          std::move(web.routes[path]), config.common.open_metrics, *common->http);
    }
    absl::StatusOr<std::unique_ptr<services::HttpServer>> http =
        services::HttpServer::Start(std::move(web));
    if (!http.ok()) return http.status();
    coordinator->http_ = *std::move(http);
  }
  coordinator->server_->SetReady(true);
  return coordinator;
}

void CoordinatorServer::SaveFileKeys() {
  if (file_keys_.Save().ok()) {
    services::Log(services::kInfo, "files_key_durable");
    return;
  }
  coordinator_.strand().CallAt(MonotonicNow() + kSaveKeysEvery, [this] { SaveFileKeys(); });
}

absl::Duration CoordinatorServer::FilePatience() {
  const absl::Duration now = MonotonicNow();
  files_deadline_ = std::min(files_deadline_, now + kFilePatience);
  return files_deadline_ - now;
}

services::HttpResponse CoordinatorServer::ServiceDiscovery() {
  if (!server_->ready()) return {.code = 503, .body = "not ready\n"};
  // Owned by the later of the strand and this thread, which does not wait for ever.
  auto nodes = std::make_shared<std::promise<std::string>>();
  std::future<std::string> answer = nodes->get_future();
  coordinator_.PostRead([this, nodes] {
    nodes->set_value(ServiceDiscoveryJson(http_->url(), coordinator_.core().nodes()));
  });
  if (answer.wait_for(std::chrono::seconds(5)) != std::future_status::ready) {
    return {.code = 503, .body = "the coordinator is busy or stopping\n"};
  }
  return {.body = answer.get(), .content_type = "application/json"};
}

CoordinatorServer::~CoordinatorServer() { (void)Shutdown(); }

bool CoordinatorServer::Shutdown() {
  if (server_ != nullptr) server_->Shutdown();
  if (http_ != nullptr) http_->Stop();
  return files_done_;
}

std::string CoordinatorServer::http_endpoint() const {
  return http_ == nullptr ? "off" : http_->endpoint().ToString();
}

}  // namespace capstan::coordinator
