// Going on from what a coordinator before this one made durable.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/durable_job.h"
#include "services/check/check.h"
#include "services/timestamp/timestamp.h"

namespace capstan::coordinator::core {

absl::Status CoordinatorCore::Restore(const DurableState& state, absl::Duration now,
                                      absl::Time wall) {
  CAPSTAN_CHECK(!stepped_ && jobs_.empty());
  stepped_ = true;
  now_ = now;
  wall_ = wall;
  last_incarnation_ = state.last_incarnation;
  spare_until_ = now + options_.unknown_jobs_spared;
  for (const std::string& name : state.drained) nodes_.SetDrained(name, true);
  // They may still live, and come back with the number that they have.
  for (const auto& entry : state.nodes) {
    if (!options_.only_job.empty()) break;  // these ended with the coordinator before this one
    nodes_.AddAbsent(entry.second.reg, entry.second.incarnation, now, wall);
  }
  std::vector<JobRecord*> ended;
  for (const auto& entry : state.jobs) {
    v1::DurableJob durable;
    if (!durable.ParseFromString(entry.second) || durable.job_id() != entry.first) {
      return absl::DataLossError(absl::StrCat("the record of job ", entry.first, " is damaged"));
    }
    static const std::map<int64_t, job::v1::Event> kNone;
    const auto events = state.events.find(entry.first);
    absl::StatusOr<std::unique_ptr<JobRecord>> loaded = FromDurable(
        durable, events == state.events.end() ? kNone : events->second, options_, now, wall);
    if (!loaded.ok()) return loaded.status();
    JobRecord& job = **loaded;
    if (by_sequence_.count(job.sequence) > 0 || requests_.count(job.request_id) > 0) {
      return absl::DataLossError(
          absl::StrCat("job ", job.id, " and another one have one number or request id"));
    }
    if (const auto pages = state.history.find(entry.first); pages != state.history.end()) {
      for (const auto& [number, page] : pages->second) {
        if (!job.history.LoadPage(number, page)) {
          return absl::DataLossError(
              absl::StrCat("the history of job ", entry.first, " is damaged: page ", number));
        }
      }
    }
    job.saved = FactsOf(durable);
    job.told_state = job.state;
    job.told_generation = job.view.generation();
    job.unread = !job.ended();
    job.logs.CountIn(&log_bytes_);
    last_sequence_ = std::max(last_sequence_, job.sequence);
    last_probe_ = std::max(last_probe_, job.probe_id);
    requests_[job.request_id] = job.id;
    by_sequence_[job.sequence] = &job;
    if (job.ended()) {
      job.ended_at = now;
      ended.push_back(&job);
      if (!job.wound_down) active_[job.sequence] = &job;
    } else if (job.state == common::v1::JOB_STATE_PENDING) {
      pending_[job.sequence] = &job;
      if (!job.wound_down) active_[job.sequence] = &job;
    } else if (!job.resting()) {
      active_[job.sequence] = &job;
      job.AddLog(wall, "warning", "the coordinator has started anew: lines from before are gone");
    }
    if (job.state == common::v1::JOB_STATE_SUSPENDED && !job.wound_down) {
      active_[job.sequence] = &job;
    }
    jobs_[job.id] = *std::move(loaded);
  }
  std::sort(ended.begin(), ended.end(), [](const JobRecord* a, const JobRecord* b) {
    return std::pair(a->finished_at, a->sequence) < std::pair(b->finished_at, b->sequence);
  });
  for (const JobRecord* job : ended) ended_.push_back(job->id);

  // First those that hold their slots for sure: what a lost or ended task held may have been given
  // to another job since.
  for (const bool surely : {true, false}) {
    for (const auto& entry : active_) PlaceMembers(*entry.second, surely);
  }
  schedule_ = true;
  first_lease_end_ = -absl::InfiniteDuration();
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> CoordinatorCore::StoragePaths() const {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& entry : by_sequence_) {
    const JobRecord& job = *entry.second;
    if (!job.ended()) out.emplace_back(job.id, StoragePath(job));
  }
  return out;
}

std::string CoordinatorCore::StoragePath(const JobRecord& job) const {
  return job.resolved.has_value() ? job.resolved->storage_path()
                                  : absl::StrCat(StorageRoot(job.spec), "/", job.id);
}

void CoordinatorCore::PlaceMembers(JobRecord& job, bool surely) {
  for (const Rank& rank : job.ranks) {
    if ((!job.resting() && !rank.lost) != surely) continue;
    Node* node = nodes_.FindIncarnation(rank.node, rank.incarnation);
    if (node == nullptr) continue;
    node->jobs.insert(job.id);
    for (const int device : rank.devices) {
      if (device < 0 || device >= static_cast<int>(node->slots.size())) continue;
      if (node->slots[device].empty()) node->slots[device] = job.id;
    }
  }
  for (const Shard& shard : job.shards) {
    Node* node = nodes_.FindIncarnation(shard.node, shard.incarnation);
    if (node != nullptr) node->jobs.insert(job.id);
  }
}

// The file is the truth: a manifest whose commit nobody could record any more counts.
void CoordinatorCore::TakeManifest(JobRecord& job, const FoundManifest& found) {
  if (job.ended() || found.lineage < std::max<int64_t>(job.view.lineage(), 1) ||
      found.lineage > std::max<int64_t>(job.view.generation(), 1) + kMostLineagesAhead ||
      found.spec_digest != job.digest || found.step > job.resolved->total_steps()) {
    return;
  }
  if (job.deleted.count(absl::StrCat(found.lineage, "-", found.step)) > 0) return;
  for (const SavedManifest& manifest : job.manifests) {
    if (manifest.saved.lineage() == found.lineage && manifest.saved.step() >= found.step) return;
  }
  SavedManifest& saved = job.linking;
  saved = SavedManifest();
  saved.orders = found.orders;
  saved.saved.set_id(absl::StrCat(found.lineage, "-", found.step));
  saved.saved.set_uri(absl::StrCat(
      "file://", CheckpointFolder(job.resolved->storage_path(), found.lineage, found.step)));
  saved.saved.set_lineage(found.lineage);
  saved.saved.set_step(found.step);
  saved.saved.set_weights_sha256(found.weights_sha256);
  saved.saved.set_samples_used(found.samples_used);
  int64_t bytes = 0;
  for (const common::v1::FileInfo& file : found.files) {
    bytes += file.size_bytes();
    *saved.saved.add_files() = file;
  }
  saved.saved.set_size_bytes(bytes);
  if (found.step == job.resolved->total_steps()) {
    job.weights_sha256 = found.weights_sha256;
    job.samples_used = found.samples_used;
    job.progress.set_step(found.step);
  }
  if (found.lineage == job.view.lineage()) {
    job.manifest = ManifestPhase::kWriting;
    job.manifest_step = found.step;
    Handle(ManifestWritten{job.id, found.lineage, found.step, absl::OkStatus()});
    return;
  }
  // Of a history that the record does not know: the job goes on from it, and no order gets a number
  // that was given there.
  SetTime(wall_, saved.saved.mutable_committed_at());
  job.checkpoint_uri = saved.saved.uri();
  for (const int64_t id : found.orders) {
    while (id <= options_.max_orders && static_cast<int64_t>(job.orders.size()) < id) {
      node::v1::Order order;
      order.set_id(static_cast<int64_t>(job.orders.size()) + 1);
      order.set_checkpoint(true);
      order.set_step(std::max<int64_t>(found.step - 1, 0));
      job.orders.push_back({order, found.lineage, false});
    }
  }
  job.manifests.push_back(std::move(job.linking));
  job.AddEvent(wall_, "CheckpointFound", job.checkpoint_uri);
  Changed(job);
  if (found.step == job.resolved->total_steps()) {
    End(job, common::v1::JOB_STATE_SUCCEEDED, "", "");
  }
}

// A member that was lost once all had reported the end needed no recovery: the files were there. The
// reports went with the coordinator that had them, and the member cannot repeat its own.
void CoordinatorCore::RecoverTheLost(JobRecord& job) {
  if (job.resting() || job.cancel_asked || job.recover || !job.in_history()) return;
  for (const Shard& shard : job.shards) {
    if (!shard.lost) continue;
    BeginRecovery(job, "ShardLost", absl::StrCat(NameOf(shard), ": ", shard.why));
    return;
  }
  if (job.living() > 0) return;
  const std::string none = "no worker is left";
  if (job.shards.empty()) {
    BeginRecovery(job, "WorkerLost", none);
  } else if (job.state != common::v1::JOB_STATE_RECOVERING) {
    SetState(job, common::v1::JOB_STATE_RECOVERING, "WorkerLost", none);
  }
}

void CoordinatorCore::Handle(const Restored& restored) {
  std::vector<JobRecord*> read;
  for (const auto& entry : by_sequence_) {
    JobRecord* const job = entry.second;
    const bool meant = !restored.jobs.has_value() || restored.jobs->count(job->id) > 0;
    if (!meant || (!job->unread && !job->ended())) continue;
    read.push_back(job);
    job->unread = false;  // of an ended one too: it may be retried
    RemoveDeleted(*job);
    if (job->ended()) continue;
    job->waiting.clear();
    job->progress_at = now_;
    schedule_ = true;
    if (const auto found = restored.manifests.find(job->id); found != restored.manifests.end()) {
      if (job->resolved.has_value()) {
        for (const FoundManifest& manifest : found->second) TakeManifest(*job, manifest);
      } else {
        job->found = found->second;  // whether they fit, its digest will tell
      }
    }
    const auto lineage = restored.lineages.find(job->id);
    if (lineage != restored.lineages.end() && !job->ended()) {
      BeginAbove(*job, lineage->second, "a checkpoint folder");
    }
  }
  for (JobRecord* job : read) {
    if (active_.count(job->sequence) > 0) GoOn(*job);
  }
}

// What is known of its gang, and then what follows from that. The gang of an only job has ended with the
// coordinator: that is no loss of its own, so it costs no restart.
void CoordinatorCore::GoOn(JobRecord& job) {
  if (!options_.only_job.empty() && !job.resting() && !job.cancel_asked) {
    const SavedManifest* last = job.LastManifest();
    Rest(job, common::v1::JOB_STATE_SUSPENDED, kInterrupted,
         absl::StrCat("its services ended before it did; it goes on from ",
                      last == nullptr ? std::string("the initial weights")
                                      : absl::StrCat("checkpoint ", last->saved.id())));
    Advance(job);
    return;
  }
  for (Rank& rank : job.ranks) {
    if (nodes_.FindIncarnation(rank.node, rank.incarnation) == nullptr) {
      LoseRank(job, rank, {.why = "its service is not known any more"});
    }
  }
  for (Shard& shard : job.shards) {
    if (nodes_.FindIncarnation(shard.node, shard.incarnation) == nullptr) {
      LoseShard(job, shard, {.why = "its service is not known any more"});
    }
  }
  // A loss whose lanes had not got new owners yet.
  const auto& owners = job.view.lane_owners();
  const bool ownerless = !job.resting() && job.in_history() &&
                         std::any_of(owners.begin(), owners.end(),
                                     [&job](int32_t owner) { return job.ranks[owner].lost; });
  if (ownerless) job.takeover_at = now_;
  RecoverTheLost(job);
  Advance(job);
}

// Its folder is on a disk that hangs.
void CoordinatorCore::SayUnread(JobRecord& job) {
  if (now_ - job.progress_at < options_.say_waiting_after) return;
  std::string text = absl::StrCat("its checkpoint folder ", StoragePath(job),
                                  ", which has not answered since the coordinator started");
  if (job.waiting == text) return;
  job.waiting = std::move(text);
  Changed(job);
}

}  // namespace capstan::coordinator::core
