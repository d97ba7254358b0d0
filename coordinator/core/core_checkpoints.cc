// Checkpoints: files of one version from everybody, the manifest that makes them one, what is kept.
//
// Only versions of the current lineage are collected, in their order, and one link is in flight at
// most. FilesTaken goes out for a version once its manifest is durable or it was abandoned.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "services/check/mutant.h"
#include "services/timestamp/timestamp.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator::core {
namespace {

constexpr char kWeightsFile[] = "weights.safetensors";
constexpr int kDefaultKeepLatest = 3;
constexpr int64_t kMaxFileBytes = int64_t{1} << 48;

bool IsFileName(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name[0] != '.' &&
         std::all_of(name.begin(), name.end(), [](unsigned char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  c == '.' || c == '-' || c == '_';
         });
}

// Adds the files by name. False: a file that cannot be, or two of one name.
bool Gather(const node::v1::WrittenFiles& written,
            std::map<std::string, common::v1::FileInfo>& files) {
  for (const common::v1::FileInfo& file : written.files()) {
    if (!IsFileName(file.name()) || file.size_bytes() < 0 || file.size_bytes() > kMaxFileBytes ||
        file.sha256().size() != 32) {
      return false;
    }
    if (!files.emplace(file.name(), file).second) return false;
  }
  return true;
}

}  // namespace

void CoordinatorCore::TakeFiles(JobRecord& job, int32_t shard,
                                const node::v1::WrittenFiles& files) {
  const bool ours =
      files.lineage() == job.view.lineage() || CAPSTAN_MUTANT("manifest_ignores_lineage");
  if (!ours || files.step() <= job.settled_step || files.step() > job.resolved->total_steps()) {
    return;
  }
  Collected& collected = job.collecting[files.step()];
  if (!files.error().empty()) {
    if (collected.errors.emplace(shard, Sentence(files.error())).second) Changed(job);
    return;
  }
  if (files.files_size() == 0) return;
  collected.errors.erase(shard);
  if (collected.files.emplace(shard, files).second) Changed(job);
}

void CoordinatorCore::AdvanceCheckpoints(JobRecord& job) {
  if (job.manifest == ManifestPhase::kRetry && now_ >= job.manifest_retry_at) {
    job.manifest = ManifestPhase::kNone;
  }
  if (job.manifest != ManifestPhase::kNone) return;
  const int64_t total = job.resolved->total_steps();
  for (const auto& entry : job.collecting) {
    const int64_t step = entry.first;
    const Collected& collected = entry.second;
    if (!collected.errors.empty()) {
      // Only the lead knows whether this version is owed, as that of a suspend is.
      if (!job.shards.empty() && job.lead.step() < step) return;
      const auto& error = *collected.errors.begin();
      const std::string who =
          job.shards.empty() ? "the task" : NameOf(job.shards[static_cast<size_t>(error.first)]);
      CheckpointFailed(job, step, absl::StrCat(who, ": ", error.second));
      return;
    }
    const bool all = job.shards.empty() ? collected.files.size() == 1
                                        : collected.files.size() == job.shards.size();
    if (step < total && all) {
      OrderManifest(job, step);
      return;
    }
    // Given up before a restart, which forgets that: whoever let it go reports a newer one, and the
    // others report this one until it is taken.
    for (const Shard& shard : job.shards) {
      const node::v1::WrittenFiles& now = shard.state.files();
      if (collected.files.count(shard.index) == 0 && now.lineage() == job.view.lineage() &&
          now.step() > step) {
        CheckpointFailed(job, step, absl::StrCat(NameOf(shard), ": has let it go"));
        return;
      }
    }
  }
  if (job.lead.step() != total || !job.EndIsReported()) return;
  OrderManifest(job, total);
  if (CAPSTAN_MUTANT("done_before_manifest")) {
    End(job, common::v1::JOB_STATE_SUCCEEDED, "", "");
  }
}

void CoordinatorCore::OrderManifest(JobRecord& job, int64_t step) {
  const bool last = step == job.resolved->total_steps();
  std::map<std::string, common::v1::FileInfo> files;
  std::string snapshot;
  for (const Shard& shard : job.shards) {
    const node::v1::WrittenFiles& written = *job.FilesOf(shard.index, step);
    if (shard.index == 0) snapshot = written.lead_snapshot();
    if (!Gather(written, files)) {
      Fail(job, kInternalError, absl::StrCat(NameOf(shard), ": reports a file that cannot be"));
      return;
    }
  }
  if (job.shards.empty()) {
    const node::v1::WrittenFiles& written = last ? job.weights_files : *job.FilesOf(0, step);
    snapshot = written.lead_snapshot();
    if (!last && !Gather(written, files)) {
      Fail(job, kInternalError, "the task reports a file that cannot be");
      return;
    }
  }
  if (last && (!Gather(job.weights_files, files) || files.count(kWeightsFile) == 0 ||
               !training::IsSha256Hex(job.weights_sha256))) {
    Fail(job, kInternalError,
         absl::StrCat("the worker of lane 0 reports no proper ", kWeightsFile));
    return;
  }
  node::v1::LeadSnapshot lead;
  if (!lead.ParseFromString(snapshot)) {
    Fail(job, kInternalError, "the lead's snapshot is none");
    return;
  }
  job.manifest = ManifestPhase::kWriting;
  job.manifest_step = step;
  job.manifest_since = now_;
  ++job.manifest_attempts;
  WriteManifest write;
  write.job_id = job.id;
  write.lineage = job.view.lineage();
  write.step = step;
  write.folder = CheckpointFolder(job.resolved->storage_path(), write.lineage, step);
  write.spec_digest_hex = absl::BytesToHexString(job.digest);
  write.training_digest_hex = absl::BytesToHexString(job.resolved->training_digest());
  for (auto& entry : files) write.files.push_back(std::move(entry.second));
  if (last) write.weights_sha256 = job.weights_sha256;
  write.optimizer = job.resolved->spec().training().optimizer().name();
  write.samples_used = snapshot.empty() ? job.samples_used : lead.samples_used();
  for (const node::v1::Order& order : lead.applied_orders()) write.orders.push_back(order.id());
  write.lead_snapshot = snapshot;

  SavedManifest& saved = job.linking;
  saved = SavedManifest();
  saved.orders = write.orders;
  saved.saved.set_id(absl::StrCat(write.lineage, "-", step));
  saved.saved.set_uri(absl::StrCat("file://", write.folder));
  saved.saved.set_lineage(write.lineage);
  saved.saved.set_step(step);
  saved.saved.set_weights_sha256(write.weights_sha256);
  saved.saved.set_samples_used(write.samples_used);
  int64_t bytes = 0;
  for (const common::v1::FileInfo& file : write.files) {
    bytes += file.size_bytes();
    *saved.saved.add_files() = file;
  }
  saved.saved.set_size_bytes(bytes);
  Emit(std::move(write));
}

void CoordinatorCore::Handle(const ManifestWritten& written) {
  JobRecord* job = FindJob(written.job_id);
  if (job == nullptr || job->manifest != ManifestPhase::kWriting ||
      written.lineage != job->view.lineage() || written.step != job->manifest_step) {
    return;
  }
  if (log_marks_.count(job->id) == 0) log_marks_[job->id] = job->logs.next();
  const bool last = written.step == job->resolved->total_steps();
  if (written.status.ok()) {
    Commit(*job);
    // What is on disk is true, also where a person asked for an end meanwhile.
    if (last && !job->ended()) End(*job, common::v1::JOB_STATE_SUCCEEDED, "", "");
  } else if (last || (job->lead.suspended() && job->lead.step() == written.step)) {
    // Nothing else can end this job well.
    job->manifest = ManifestPhase::kRetry;
    job->manifest_retry_at = now_ + options_.manifest_retry;
    job->manifest_error = Sentence(std::string(written.status.message()));
    if (job->manifest_attempts >= options_.manifest_attempts) {
      Fail(*job, absl::IsDataLoss(written.status) ? "CheckpointCorrupt" : kInternalError,
           absl::StrCat("the manifest of step ", written.step, ": ", written.status.message()));
    } else {
      job->AddEvent(wall_, "CheckpointFailed", std::string(written.status.message()));
      Changed(*job);
    }
  } else {
    job->manifest = ManifestPhase::kNone;
    CheckpointFailed(*job, written.step, std::string(written.status.message()));
  }
  Advance(*job);
}

void CoordinatorCore::Commit(JobRecord& job) {
  const int64_t step = job.manifest_step;
  const std::string folder =
      CheckpointFolder(job.resolved->storage_path(), job.view.lineage(), step);
  job.manifest =
      step == job.resolved->total_steps() ? ManifestPhase::kCommitted : ManifestPhase::kNone;
  job.manifest_attempts = 0;
  job.manifest_error.clear();
  SetTime(wall_, job.linking.saved.mutable_committed_at());
  job.manifests.push_back(std::move(job.linking));
  job.settled_step = step;
  job.collecting.erase(job.collecting.begin(), job.collecting.upper_bound(step));
  job.checkpoint_uri = absl::StrCat("file://", folder);
  job.AddEvent(wall_, "CheckpointSaved", absl::StrCat("step ", step, " in ", folder));
  job.conditions.erase(kCheckpointDegraded);
  Changed(job);

  Prune(job);
  SweepCheckpoints sweep;
  sweep.job_id = job.id;
  sweep.storage_path = job.resolved->storage_path();
  sweep.lineage = job.view.lineage();
  sweep.step = step;
  for (const SavedManifest& manifest : job.manifests) sweep.keep.push_back(manifest.saved.id());
  Emit(std::move(sweep));
}

// Keeps the newest, the best, what the lineage began from while nothing newer is there, and what
// another job begins from.
void CoordinatorCore::Prune(JobRecord& job) {
  const job::v1::Checkpoint& spec = job.resolved->spec().checkpoint();
  const size_t latest = spec.has_keep_latest() ? spec.keep_latest() : kDefaultKeepLatest;
  std::vector<std::pair<double, size_t>> rated;
  for (size_t i = 0; i < job.manifests.size(); ++i) {
    SavedManifest& manifest = job.manifests[i];
    manifest.saved.set_best(false);
    const std::optional<double> metric = job.MetricOf(manifest.saved.step());
    if (metric.has_value() && !manifest.refused) rated.emplace_back(*metric, i);
  }
  std::sort(rated.rbegin(), rated.rend());  // of equals the newer
  for (size_t i = 0; i < rated.size() && i < static_cast<size_t>(spec.keep_best()); ++i) {
    job.manifests[rated[i].second].saved.set_best(true);
  }
  size_t newer = 0;
  for (size_t i = job.manifests.size(); i-- > 0;) {
    const SavedManifest& manifest = job.manifests[i];
    const std::string& id = manifest.saved.id();
    const bool keep = !manifest.refused && (newer < latest || manifest.saved.best() ||
                                            id == job.base || !WhoBeginsFrom(job, id).empty());
    newer += manifest.refused ? 0 : 1;
    if (!keep) job.manifests.erase(job.manifests.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

// A version that could not be saved. The last one, and that of a suspend, are tried again by their
// writers until they are there; any other is given up.
void CoordinatorCore::CheckpointFailed(JobRecord& job, int64_t step, const std::string& why) {
  const bool needed =
      step == job.resolved->total_steps() || (job.lead.suspended() && job.lead.step() == step);
  const std::string text = absl::StrCat("step ", step, ": ", why);
  if (job.resolved->spec().checkpoint().strict()) {
    Fail(job, kInternalError, absl::StrCat("checkpoint.strict: ", text));
    return;
  }
  bool news = job.conditions.insert(kCheckpointDegraded).second;
  if (needed) {
    // Also where checkpoints before it could not be written either: this one holds the job up.
    news = news || job.failed_step != step;
    if (job.failed_step != step) job.AddEvent(wall_, "CheckpointFailed", text);
    job.failed_step = step;
  } else {
    job.AddEvent(wall_, "CheckpointFailed", text);
    job.settled_step = std::max(job.settled_step, step);
    job.collecting.erase(job.collecting.begin(), job.collecting.upper_bound(step));
    job.manifest_attempts = 0;
    ++job.abandoned_checkpoints;
  }
  if (news || !needed) Changed(job);
}

void CoordinatorCore::SendFilesTaken(JobRecord& job) {
  const auto settled = [&job](const node::v1::WrittenFiles& files) {
    return files.lineage() > 0 &&
           (files.lineage() < job.view.lineage() ||
            (files.lineage() == job.view.lineage() && files.step() <= job.settled_step));
  };
  const auto send = [&](const std::string& name, int64_t incarnation,
                        const node::v1::WrittenFiles& files, absl::Duration& sent) {
    const Node* node = nodes_.FindIncarnation(name, incarnation);
    if (node == nullptr || !node->usable() || !settled(files) || !Due(sent, options_.resend))
      return;
    sent = now_;
    node::v1::ConnectResponse response;
    node::v1::FilesTaken* taken = response.mutable_files_taken();
    taken->set_job_id(job.id);
    taken->set_lineage(files.lineage());
    taken->set_step(files.step());
    Emit(Send{node->session, std::move(response)});
  };
  for (Shard& shard : job.shards) {
    if (shard.present) send(shard.node, shard.incarnation, shard.state.files(), shard.taken_sent);
  }
  for (Rank& rank : job.ranks) {
    if (rank.present) send(rank.node, rank.incarnation, rank.state.files(), rank.taken_sent);
  }
}

}  // namespace capstan::coordinator::core
