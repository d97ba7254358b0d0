#include "param_store/param_store.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/files/beneath.h"
#include "services/logging/log.h"
#include "training/codec/local_uri.h"
#include "training/spec/lead_messages.h"

namespace capstan::param_store {
namespace {

namespace core = exchange::shard;

using services::Log;

std::vector<int32_t> Ranks(const common::v1::View& view) {
  std::vector<int32_t> ranks;
  for (const common::v1::WorkerRef& worker : view.workers()) ranks.push_back(worker.rank());
  return ranks;
}

// Whether the roots of this host let it look there. Those of checkpoints count for checkpoints alone.
bool MayReadWeights(const std::string& weights, const ParamStoreOptions& store) {
  if (store.data_roots.empty() || weights.empty()) return true;
  const absl::StatusOr<std::string> path = training::LocalPath(weights);
  if (!path.ok()) return false;
  return services::LiesBeneath(*path, store.data_roots) ||
         (!training::CheckpointFolderIn(*path).empty() &&
          services::LiesBeneath(*path, store.checkpoint_roots));
}

// The coordinator has its own roots; these are of the operator of this host.
absl::Status CheckRoots(const ShardJobOptions& job, const ParamStoreOptions& store) {
  if (!job.may_touch_folder && (job.files_channel == nullptr || job.files_key.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "storage_path ", job.storage_path, ": is not under any --checkpoint-root of this shard"));
  }
  const std::string& weights = job.base.initial_weights;
  if (MayReadWeights(weights, store)) return absl::OkStatus();
  const absl::StatusOr<std::string> path = training::LocalPath(weights);
  const bool checkpoint = path.ok() && !training::CheckpointFolderIn(*path).empty();
  // A checkpoint is the coordinator's, which has let the job begin from it.
  if (checkpoint && job.files_channel != nullptr && !job.files_key.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.initial_weights ", weights, ": is not under any --data-root",
                   checkpoint ? " or --checkpoint-root" : "", " of this shard"));
}

// The route of `shard`, where the view has one that fits the job.
absl::StatusOr<core::StartLineage> ReadView(const node::v1::StartLineage& order,
                                            int32_t chunk_count) {
  const common::v1::View& view = order.view();
  if (view.lineage() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("view.lineage: got ", view.lineage(), ", want >= 1"));
  }
  const common::v1::ShardRoute* route = nullptr;
  for (const common::v1::ShardRoute& r : view.shards()) {
    if (r.index() == order.shard() && r.index() < view.shards_size()) route = &r;
  }
  if (route == nullptr || route->first_chunk() < 0 || route->chunk_count() < 1 ||
      int64_t{route->first_chunk()} + route->chunk_count() > chunk_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("view.shards: no chunks of the job for shard ", order.shard()));
  }
  core::StartLineage start;
  start.lineage = view.lineage();
  start.generation = view.generation();
  start.num_shards = view.shards_size();
  start.run = {route->first_chunk(), route->chunk_count()};
  start.workers = Ranks(view);
  start.lane_owners.assign(view.lane_owners().begin(), view.lane_owners().end());
  start.base_manifest = order.base_manifest();
  auto orders = training::spec::ReadOrders(order.orders());
  if (!orders.ok()) return orders.status();
  start.orders = *std::move(orders);
  return start;
}

// Without one, all streams stay on gRPC.
std::unique_ptr<exchange::shared::Door> OpenDoor() {
  auto door = exchange::shared::Door::Open();
  if (door.ok()) return *std::move(door);
  Log(services::kWarning, "no_shared_memory").Kv("status", door.status());
  return nullptr;
}

}  // namespace

ParamStore::ParamStore(ParamStoreOptions options)
    : options_(std::move(options)), door_(options_.shared_memory ? OpenDoor() : nullptr) {}

ParamStore::~ParamStore() { Shutdown(); }

void ParamStore::OnMessage(const node::v1::ConnectResponse& message) {
  using node::v1::ConnectResponse;
  switch (message.message_case()) {
    case ConnectResponse::kStartLineage:
      Start(message.start_lineage());
      break;
    case ConnectResponse::kViewChange: {
      const common::v1::View& view = message.view_change().view();
      if (const auto job = Find(view.job_id()); job != nullptr) {
        job->Learn(view, message.view_change().certificates());
        job->SetFilesKey(message.view_change().files_key());
        job->Post(core::ViewChange{
            .lineage = view.lineage(),
            .generation = view.generation(),
            .workers = Ranks(view),
            .lane_owners = {view.lane_owners().begin(), view.lane_owners().end()}});
      }
      break;
    }
    case ConnectResponse::kGiveOrders: {
      const node::v1::GiveOrders& give = message.give_orders();
      auto orders = training::spec::ReadOrders(give.orders());
      const auto job = Find(give.job_id());
      if (!orders.ok()) {
        Log(services::kError, "order_refused")
            .Kv("job", give.job_id())
            .Kv("status", orders.status());
      } else if (job != nullptr) {
        job->Post(core::GiveOrders{give.lineage(), *std::move(orders)});
      }
      break;
    }
    case ConnectResponse::kFilesTaken: {
      const node::v1::FilesTaken& taken = message.files_taken();
      if (const auto job = Find(taken.job_id()); job != nullptr) {
        job->Post(core::FilesTaken{taken.lineage(), taken.step()});
      }
      break;
    }
    case ConnectResponse::kEndJob:
      End(message.end_job().job_id());
      break;
    default:
      break;
  }
}

void ParamStore::Start(const node::v1::StartLineage& order) {
  if (const auto job = Find(order.job_id()); job != nullptr) {
    const bool same_spec = job->spec_digest() == order.spec_digest();
    if (same_spec && job->shard() == order.shard()) return Tell(*job, order);
    if (!same_spec || order.view().lineage() <= job->state().lineage()) {
      Log(services::kError, "order_refused")
          .Kv("job", order.job_id())
          .Kv("status", absl::InvalidArgumentError(
                            "the shard holds this job with another resolved spec or shard number"));
      return;
    }
    // Shards were moved: this process has another number from this lineage on, and begins anew.
    End(order.job_id());
  }
  if (Postpone(order)) {
    Log(services::kInfo, "order_waits")
        .Kv("job", order.job_id())
        .Kv("for", "the files of the job that ended")
        .Limit(absl::StrCat("order_waits/", order.job_id()));
    return;
  }
  auto options = OptionsFor(order);
  if (!options.ok()) return Refuse(order, options.status());
  MutexLock lock(mu_);
  Begin(order, *std::move(options));
}

void ParamStore::Tell(ShardJob& job, const node::v1::StartLineage& order) const {
  auto start = ReadView(order, job.chunk_count());
  if (!start.ok()) {
    // A job that runs is not harmed by an order that makes no sense.
    Log(services::kError, "order_refused").Kv("job", order.job_id()).Kv("status", start.status());
    return;
  }
  // With a key of the coordinator's, the folder is looked at only where it lies under a root, and
  // else its files come from there.
  const bool asks = options_.files_channel != nullptr && !order.files_key().empty();
  if (!asks && !start->base_manifest.empty() && !options_.checkpoint_roots.empty() &&
      !services::LiesBeneath(start->base_manifest, options_.checkpoint_roots)) {
    Log(services::kError, "order_refused")
        .Kv("job", order.job_id())
        .Kv("status", absl::InvalidArgumentError(
                          absl::StrCat("base_manifest ", start->base_manifest,
                                       ": is not under any --checkpoint-root of this shard")));
    return;
  }
  std::string lead;
  for (const common::v1::ShardRoute& route : order.view().shards()) {
    if (route.index() == 0) lead = route.address();
  }
  job.Learn(order.view(), order.certificates());
  job.StartLineage(*std::move(start), std::move(lead));
}

absl::StatusOr<ShardJobOptions> ParamStore::OptionsFor(const node::v1::StartLineage& order) const {
  auto options = ReadJob(order.resolved_spec(), order.spec_digest(), order.shard());
  if (!options.ok()) return options.status();
  if (options->plan.job_id != order.job_id()) {
    return absl::InvalidArgumentError(
        absl::StrCat("job_id: the resolved spec is of job ", options->plan.job_id));
  }
  options->files_key = order.files_key();
  options->files_channel = options_.files_channel;
  options->may_touch_folder =
      options_.checkpoint_roots.empty() ||
      services::LiesBeneath(options->storage_path, options_.checkpoint_roots);
  options->may_touch_weights = MayReadWeights(options->base.initial_weights, options_);
  if (absl::Status status = CheckRoots(*options, options_); !status.ok()) return status;
  options->security = options_.security;
  options->metrics = options_.metrics;
  options->stuck_after = options_.stuck_after;
  options->on_state = options_.on_state;
  return options;
}

void ParamStore::Begin(const node::v1::StartLineage& order, ShardJobOptions options) {
  if (stopping_ || jobs_.contains(order.job_id())) return;
  auto job = std::make_shared<ShardJob>(std::move(options));
  job->Start();
  Tell(*job, order);
  refused_.erase(order.job_id());
  jobs_[order.job_id()] = std::move(job);
}

void ParamStore::Refuse(const node::v1::StartLineage& order, const absl::Status& status) {
  Log(services::kError, "job_refused").Kv("job", order.job_id()).Kv("status", status);
  node::v1::ShardState state;
  state.set_job_id(order.job_id());
  state.set_shard(order.shard());
  state.set_lineage(order.view().lineage());
  state.set_reason("InvalidSpec");
  state.set_message(std::string(status.message()));
  {
    MutexLock lock(mu_);
    if (jobs_.contains(order.job_id())) return;
    refused_[order.job_id()] = std::move(state);
  }
  if (options_.on_state) options_.on_state();
}

std::shared_ptr<ShardJob> ParamStore::Find(const std::string& job_id) {
  MutexLock lock(mu_);
  const auto it = jobs_.find(job_id);
  return it == jobs_.end() || stopping_ ? nullptr : it->second;
}

std::shared_ptr<exchange::StreamOwner> ParamStore::FindJob(absl::string_view job_id) {
  return Find(std::string(job_id));
}

bool ParamStore::Postpone(const node::v1::StartLineage& order) {
  MutexLock lock(mu_);
  if (!ending_.contains(order.job_id())) return false;
  postponed_[order.job_id()] = order;
  return true;
}

void ParamStore::End(const std::string& job_id) {
  std::vector<std::thread> reaped;
  {
    MutexLock lock(mu_);
    refused_.erase(job_id);
    postponed_.erase(job_id);
    const auto it = jobs_.find(job_id);
    if (it == jobs_.end() || stopping_) return;
    const std::shared_ptr<ShardJob> job = std::move(it->second);
    jobs_.erase(it);
    job->Stop(absl::OkStatus());
    ending_[job_id] = std::thread([this, job_id, job] { Reap(job_id, *job); });
    reaped.swap(reaped_);
  }
  for (std::thread& thread : reaped) thread.join();
  Log(services::kInfo, "job_ended").Kv("job", job_id);
  if (options_.on_state) options_.on_state();
}

void ParamStore::Reap(const std::string& job_id, ShardJob& job) {
  job.Join();
  if (options_.metrics != nullptr) options_.metrics->Retire(job_id);
  while (const auto order = Postponed(job_id)) {
    auto options = OptionsFor(*order);
    {
      MutexLock lock(mu_);
      const auto itself = ending_.find(job_id);
      if (itself == ending_.end()) return;  // Shutdown joins this thread
      const auto newest = postponed_.find(job_id);
      if (newest == postponed_.end() || newest->second.shard() != order->shard() ||
          newest->second.view().lineage() != order->view().lineage()) {
        continue;  // EndJob or a newer order came meanwhile
      }
      postponed_.erase(newest);
      // With the job, at once: from now on orders are for that one.
      reaped_.push_back(std::move(itself->second));
      ending_.erase(itself);
      if (options.ok()) Begin(*order, *std::move(options));
    }
    if (!options.ok()) Refuse(*order, options.status());
    return;
  }
}

std::optional<node::v1::StartLineage> ParamStore::Postponed(const std::string& job_id) {
  MutexLock lock(mu_);
  const auto it = ending_.find(job_id);
  if (it == ending_.end()) return std::nullopt;  // Shutdown joins this thread
  if (const auto order = postponed_.find(job_id); order != postponed_.end() && !stopping_) {
    return order->second;
  }
  reaped_.push_back(std::move(it->second));
  ending_.erase(it);
  return std::nullopt;
}

bool ParamStore::HoldsJobs() const {
  MutexLock lock(mu_);
  return !jobs_.empty();
}

node::v1::Heartbeat ParamStore::MakeHeartbeat() const {
  node::v1::Heartbeat heartbeat;
  MutexLock lock(mu_);
  for (const auto& entry : jobs_) *heartbeat.add_shards() = entry.second->state();
  for (const auto& entry : refused_) *heartbeat.add_shards() = entry.second;
  return heartbeat;
}

void ParamStore::Shutdown() {
  std::map<std::string, std::shared_ptr<ShardJob>, std::less<>> jobs;
  std::vector<std::thread> reapers;
  {
    MutexLock lock(mu_);
    if (std::exchange(stopping_, true)) return;
    jobs = jobs_;  // which are reported until the goodbye: they did not get lost by themselves
    reapers.swap(reaped_);
    for (auto& entry : ending_) reapers.push_back(std::move(entry.second));
    ending_.clear();
  }
  for (const auto& entry : jobs) {
    entry.second->Stop(absl::UnavailableError("the shard is going away"));
  }
  for (const auto& entry : jobs) entry.second->Join();
  for (std::thread& thread : reapers) thread.join();
}

}  // namespace capstan::param_store
