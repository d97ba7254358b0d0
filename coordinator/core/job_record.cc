#include "coordinator/core/job_record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {
namespace {

constexpr int32_t kDefaultMaxRestarts = 3;
constexpr double kDefaultStallSeconds = 300;

const char* StateText(const JobRecord& job, const Rank& rank) {
  if (rank.lost) return "FAILED";
  switch (rank.state.phase()) {
    case node::v1::TASK_PHASE_FAILED:
      // A task that was stopped because the job ended did not fail by itself.
      if (rank.failure_told || !job.ended()) return "FAILED";
      return job.state == common::v1::JOB_STATE_SUCCEEDED ? "FINISHED" : "CANCELLED";
    case node::v1::TASK_PHASE_FINISHED:
      return "FINISHED";
    case node::v1::TASK_PHASE_RUNNING:
      if (!job.ended()) return "RUNNING";
      return job.state == common::v1::JOB_STATE_SUCCEEDED ? "FINISHED" : "CANCELLED";
    default:
      return job.ended() ? "CANCELLED" : "STARTING";
  }
}

const char* StateText(const JobRecord& job, const Shard& shard) {
  if (shard.lost || !shard.state.reason().empty()) return "FAILED";
  if (job.state == common::v1::JOB_STATE_SUCCEEDED) return "FINISHED";
  if (job.resolved.has_value() &&
      job.FilesOf(shard.index, job.resolved->total_steps()) != nullptr) {
    return "FINISHED";
  }
  if (job.ended()) return "CANCELLED";
  return shard.present && shard.state.ready() ? "RUNNING" : "STARTING";
}

}  // namespace

bool JobRecord::AllShardsReady() const {
  return std::all_of(shards.begin(), shards.end(), [&](const Shard& shard) {
    return shard.present && shard.state.ready() && shard.state.lineage() == view.lineage();
  });
}

int JobRecord::living() const {
  return static_cast<int>(
      std::count_if(ranks.begin(), ranks.end(), [](const Rank& rank) { return !rank.lost; }));
}

std::vector<int32_t> JobRecord::Shares() const {
  std::vector<int32_t> shares;
  const int each = resolved.has_value() ? resolved->devices_per_worker() : 1;
  for (const Rank& rank : ranks) shares.push_back(WorkersFor(rank.devices.size(), each));
  return shares;
}

int JobRecord::living_workers() const {
  const std::vector<int32_t> shares = Shares();
  int workers = 0;
  for (size_t i = 0; i < ranks.size(); ++i) workers += ranks[i].lost ? 0 : shares[i];
  return workers;
}

void JobRecord::ForgetLostRanks() {
  int kept = 0;
  for (auto rank = ranks.rbegin(); rank != ranks.rend(); ++rank) {
    if (!rank->lost || !rank->gone || rank->forgotten || ++kept <= kLostKept) continue;
    Rank place;
    place.index = rank->index;
    place.lost = place.gone = place.forgotten = true;
    *rank = std::move(place);
  }
}

const node::v1::WrittenFiles* JobRecord::FilesOf(int32_t shard, int64_t step) const {
  const auto at = collecting.find(step);
  if (at == collecting.end()) return nullptr;
  const auto it = at->second.files.find(shard);
  return it == at->second.files.end() ? nullptr : &it->second;
}

bool JobRecord::EndIsReported() const {
  if (!in_history() || !lead.complete() || weights_files.files_size() == 0) return false;
  return std::all_of(shards.begin(), shards.end(), [&](const Shard& shard) {
    return FilesOf(shard.index, resolved->total_steps()) != nullptr;
  });
}

const SavedManifest* JobRecord::LastManifest() const {
  for (auto it = manifests.rbegin(); it != manifests.rend(); ++it) {
    if (!it->refused) return &*it;
  }
  return nullptr;
}

const SavedManifest* JobRecord::FindManifest(const std::string& checkpoint) const {
  for (const SavedManifest& manifest : manifests) {
    if (manifest.saved.id() == checkpoint) return &manifest;
  }
  return nullptr;
}

std::optional<double> JobRecord::MetricOf(int64_t step) const {
  if (!resolved.has_value() || resolved->steps_per_epoch() <= 0) return std::nullopt;
  // The last epoch may be cut short: its evaluation is that of version T all the same.
  const int64_t epoch =
      step == resolved->total_steps()           ? (step - 1) / resolved->steps_per_epoch() + 1
      : step % resolved->steps_per_epoch() == 0 ? step / resolved->steps_per_epoch()
                                                : 0;
  const auto it = epochs.find(static_cast<int32_t>(epoch));
  if (it == epochs.end() || !it->second.has_validation_accuracy()) return std::nullopt;
  return it->second.validation_accuracy();
}

int32_t JobRecord::RestartLimit() const {
  if (max_restarts.has_value()) return *max_restarts;
  return recovery().has_max_restarts() ? recovery().max_restarts() : kDefaultMaxRestarts;
}

absl::Duration JobRecord::StallTimeout() const {
  const job::v1::Limits& limits = spec.limits();
  const double seconds =
      limits.has_stall_timeout_seconds() ? limits.stall_timeout_seconds() : kDefaultStallSeconds;
  return seconds > 0 ? absl::Seconds(seconds) : absl::InfiniteDuration();
}

bool JobRecord::SuspendOrdered() const {
  const SavedManifest* last = LastManifest();
  return std::any_of(orders.begin(), orders.end(), [&](const JobOrder& order) {
    if (!order.order.suspend() || order.hand_over) return false;
    return last == nullptr || std::find(last->orders.begin(), last->orders.end(),
                                        order.order.id()) == last->orders.end();
  });
}

bool JobRecord::HandOverOrdered() const {
  return std::any_of(orders.begin(), orders.end(), [](const JobOrder& order) {
    return order.hand_over && order.order.suspend();
  });
}

Rank* JobRecord::FindRank(int32_t index, const std::string& node, int64_t incarnation) {
  if (index < 0 || index >= static_cast<int32_t>(ranks.size())) return nullptr;
  Rank& rank = ranks[index];
  return rank.node == node && rank.incarnation == incarnation ? &rank : nullptr;
}

Shard* JobRecord::FindShard(int32_t index, const std::string& node, int64_t incarnation) {
  if (index < 0 || index >= static_cast<int32_t>(shards.size())) return nullptr;
  Shard& shard = shards[index];
  return shard.node == node && shard.incarnation == incarnation ? &shard : nullptr;
}

void JobRecord::RunClock(absl::Duration now) {
  if (clock_runs) return;
  started = now - ran;
  clock_runs = true;
}

void JobRecord::PauseClock(absl::Duration now) {
  ran = Ran(now);
  clock_runs = false;
}

bool JobRecord::InView(const Rank& rank) const {
  return std::any_of(view.workers().begin(), view.workers().end(),
                     [&rank](const auto& worker) { return worker.rank() == rank.index; });
}

Rank* JobRecord::LaneZeroOwner() {
  if (view.lane_owners().empty()) return nullptr;
  const int32_t owner = view.lane_owners(0);
  return owner >= 0 && owner < static_cast<int32_t>(ranks.size()) ? &ranks[owner] : nullptr;
}

void JobRecord::AddEvent(absl::Time wall, const std::string& type, const std::string& message) {
  // The first events say how it began, the last how it ended: what goes is in between.
  if (static_cast<int>(events.size()) >= max_events) {
    const int middle = max_events / 2;
    dropped_events.push_back(event_numbers[middle]);
    events.erase(events.begin() + middle);
    event_numbers.erase(event_numbers.begin() + middle);
  }
  job::v1::Event event;
  SetTime(wall, event.mutable_time());
  event.set_type(type);
  event.set_message(message);
  event.set_step(progress.step());
  events.push_back(std::move(event));
  event_numbers.push_back(++last_event);
  AddLog(wall, type == "Failed" || type == "Consequence" ? "error" : "info",
         message.empty() ? type : absl::StrCat(type, ": ", message));
}

void JobRecord::AddLog(absl::Time wall, const std::string& level, const std::string& text) {
  job::v1::LogLine line;
  SetTime(wall, line.mutable_time());
  line.set_role(common::v1::ROLE_COORDINATOR);
  line.set_level(level);
  line.set_text(text);
  logs.Append(std::move(line));
}

job::v1::Job JobRecord::ToProto(bool with_history) const {
  job::v1::Job out;
  out.set_job_id(id);
  out.set_owner(owner);
  out.set_name(spec.name());
  out.set_state(state);
  out.set_reason(reason);
  out.set_message(waiting.empty() ? message : waiting);
  if (started_at != absl::InfinitePast()) out.set_device(on_gpus ? "gpu" : "cpu");
  *out.mutable_progress() = progress;
  out.set_weights_sha256(weights_sha256);
  out.set_checkpoint_uri(checkpoint_uri);
  out.set_samples_used(samples_used);
  auto lost = std::count_if(ranks.begin(), ranks.end(), [](const Rank& r) { return r.lost; });
  for (const Rank& rank : ranks) {
    if (rank.lost && lost-- > kLostKept) {
      out.set_workers_left_out(out.workers_left_out() + 1);
      continue;
    }
    job::v1::Member* member = out.add_workers();
    member->set_index(rank.index);
    member->set_node(rank.node);
    member->set_state(StateText(*this, rank));
    member->set_step(rank.state.step());
    member->set_message(rank.why);
    if (rank.state.has_exit_code()) member->set_exit_code(rank.state.exit_code());
    member->set_host(rank.host);
    for (const int device : rank.devices) member->add_devices(device);
    member->set_files_way(rank.state.files_way());
  }
  for (const Shard& shard : shards) {
    job::v1::Member* member = out.add_shards();
    member->set_index(shard.index);
    member->set_node(shard.node);
    member->set_state(StateText(*this, shard));
    member->set_step(shard.state.version());
    member->set_message(shard.why);
    member->set_host(shard.host);
    member->set_files_way(shard.state.files_way());
    if (shard.state.has_load()) *member->mutable_load() = shard.state.load();
    if (shard.index < view.shards_size()) *member->mutable_route() = view.shards(shard.index);
  }
  if (with_history) {
    for (const auto& entry : epochs) *out.add_epochs() = entry.second;
    for (const job::v1::Event& event : events) *out.add_events() = event;
  }
  *out.mutable_spec() = spec;
  if (resolved.has_value()) *out.mutable_resolved() = *resolved;
  SetTime(submitted_at, out.mutable_submitted_at());
  if (started_at != absl::InfinitePast()) SetTime(started_at, out.mutable_started_at());
  if (finished_at != absl::InfinitePast()) SetTime(finished_at, out.mutable_finished_at());
  out.set_lineage(view.lineage());
  out.set_generation(view.generation());
  out.set_restarts(restarts);
  out.set_max_restarts(RestartLimit());
  for (auto it = manifests.rbegin(); it != manifests.rend(); ++it) {
    job::v1::SavedCheckpoint* saved = out.add_checkpoints();
    *saved = Described(*it);
    saved->clear_files();
  }
  for (const std::string& condition : conditions) out.add_conditions(condition);
  if (state == common::v1::JOB_STATE_PENDING && reason == "BackOff") {
    SetTime(retry_wall, out.mutable_retry_at());
  }
  return out;
}

job::v1::SavedCheckpoint JobRecord::Described(const SavedManifest& manifest) const {
  job::v1::SavedCheckpoint out = manifest.saved;
  const std::optional<double> metric = MetricOf(out.step());
  if (metric.has_value()) out.set_metric(*metric);
  return out;
}

bool SameData(const common::v1::DatasetInfo& a, const common::v1::DatasetInfo& b) {
  return a.train_samples() == b.train_samples() && a.test_samples() == b.test_samples() &&
         a.channels() == b.channels() && a.height() == b.height() && a.width() == b.width() &&
         a.num_classes() == b.num_classes() && a.train_batches() == b.train_batches();
}

absl::Status CheckOwner(const JobRecord& job, const Caller& caller) {
  if (caller.any_job || (!caller.name.empty() && caller.name == job.owner)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("job ", job.id, " is ",
                                                  job.owner.empty() ? "nobody's" : job.owner + "'s",
                                                  ", not ", caller.name, "'s; an admin may, too"));
}

std::optional<std::string> VersionOf(const JobRecord& job, const NodeTable& nodes) {
  for (const Shard& shard : job.shards) {
    const Node* node = nodes.FindIncarnation(shard.node, shard.incarnation);
    if (!shard.lost && node != nullptr) return node->reg.version();
  }
  for (const Rank& rank : job.ranks) {
    const Node* node = nodes.FindIncarnation(rank.node, rank.incarnation);
    if (!rank.lost && node != nullptr) return node->reg.version();
  }
  return std::nullopt;
}

std::string WorkersText(int workers, size_t nodes) {
  std::string text = absl::StrCat(workers, workers == 1 ? " worker" : " workers");
  if (static_cast<size_t>(workers) > nodes) {
    absl::StrAppend(&text, " on ", nodes, nodes == 1 ? " node" : " nodes");
  }
  return text;
}

std::string NameOf(const Rank& rank) {
  return absl::StrCat("worker w", rank.index, " on host ", rank.host);
}

std::string NameOf(const Shard& shard) {
  return absl::StrCat("shard ", shard.index, " on host ", shard.host);
}

}  // namespace capstan::coordinator::core
