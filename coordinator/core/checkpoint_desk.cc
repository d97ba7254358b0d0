#include "coordinator/core/checkpoint_desk.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "coordinator/core/job_folders.h"
#include "coordinator/core/reasons.h"
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

// The tasks that write residuals of each version that is saved: the owners of lanes, which stay in a
// lineage. A task that is its own shard reports them with its other files.
std::set<int32_t> ResidualWriters(const Job& job) {
  if (!job.KeepsResiduals() || job.shards().empty() ||
      CAPSTAN_MUTANT("checkpoint_without_residuals")) {
    return {};
  }
  const std::vector<int32_t> owners = job.lineages().Owners();
  return {owners.begin(), owners.end()};
}

// The record of a checkpoint that is to be written, or that was found in the job's folder.
template <typename Manifest>
SavedManifest RecordOf(const Job& job, const Manifest& manifest) {
  SavedManifest record;
  record.orders = manifest.orders;
  record.saved.set_id(absl::StrCat(manifest.lineage, "-", manifest.step));
  record.saved.set_uri(absl::StrCat("file://", CheckpointFolder(job.resolved()->storage_path(),
                                                                manifest.lineage, manifest.step)));
  record.saved.set_lineage(manifest.lineage);
  record.saved.set_step(manifest.step);
  record.saved.set_weights_sha256(manifest.weights_sha256);
  record.saved.set_samples_used(manifest.samples_used);
  int64_t bytes = 0;
  for (const common::v1::FileInfo& file : manifest.files) {
    bytes += file.size_bytes();
    *record.saved.add_files() = file;
  }
  record.saved.set_size_bytes(bytes);
  return record;
}

}  // namespace

Job* CheckpointDesk::Handle(const ManifestWritten& written) {
  Job* job = ctx_.jobs().Find(written.job_id);
  if (job == nullptr || !job->link().writing() || written.lineage != job->view().lineage() ||
      written.step != job->link().step()) {
    return nullptr;
  }
  const bool last = written.step == job->resolved()->total_steps();
  if (written.status.ok()) {
    Commit(*job);
    // What is on disk is true, also where a person asked for an end meanwhile.
    if (last && !job->ended()) states_.End(*job, common::v1::JOB_STATE_SUCCEEDED, "", "");
  } else if (last || (job->lead().suspended() && job->lead().step() == written.step)) {
    // Nothing else can end this job well.
    job->link().Retry(Sentence(std::string(written.status.message())),
                      ctx_.now() + ctx_.options().manifest_retry);
    if (job->link().attempts() >= ctx_.options().manifest_attempts) {
      states_.Fail(
          *job, absl::IsDataLoss(written.status) ? "CheckpointCorrupt" : kInternalError,
          absl::StrCat("the manifest of step ", written.step, ": ", written.status.message()));
    } else {
      job->AddEvent(ctx_.wall(), "CheckpointFailed",
                    absl::StrCat("step ", written.step, ": ", written.status.message()));
      ctx_.Changed(*job);
    }
  } else {
    job->link().GiveUp();
    CheckpointFailed(*job, written.step, std::string(written.status.message()));
  }
  return job;
}

bool CheckpointDesk::Wants(const Job& job, const node::v1::WrittenFiles& files) const {
  const bool ours =
      files.lineage() == job.view().lineage() || CAPSTAN_MUTANT("manifest_ignores_lineage");
  return ours && files.step() > job.written().settled_step() &&
         files.step() <= job.resolved()->total_steps();
}

void CheckpointDesk::TakeFiles(Job& job, int32_t shard, const node::v1::WrittenFiles& files) {
  if (!Wants(job, files)) return;
  if (job.written().Take(shard, files, Sentence(files.error()))) ctx_.Changed(job);
}

void CheckpointDesk::TakeResiduals(Job& job, int32_t task, const node::v1::WrittenFiles& files) {
  if (!Wants(job, files)) return;
  if (job.written().TakeResiduals(task, files, Sentence(files.error()))) ctx_.Changed(job);
}

void CheckpointDesk::AdvanceCheckpoints(Job& job) {
  if (!job.link().Ready(ctx_.now())) return;
  const int64_t total = job.resolved()->total_steps();
  for (const auto& entry : job.written().versions()) {
    if (AdvanceVersion(job, entry.first, entry.second)) return;
  }
  if (job.lead().step() != total || !job.EndIsReported()) return;
  OrderManifest(job, total);
  if (CAPSTAN_MUTANT("done_before_manifest")) {
    states_.End(job, common::v1::JOB_STATE_SUCCEEDED, "", "");
  }
}

bool CheckpointDesk::AdvanceVersion(Job& job, int64_t step, const WrittenVersion& collected) {
  const bool residual_failed = collected.errors.empty() && !collected.residual_errors.empty();
  if (!collected.errors.empty() || residual_failed) {
    // Only the lead knows whether this version is owed, as that of a suspend is.
    if (!job.shards().empty() && job.lead().step() < step) return true;
    const auto& error =
        residual_failed ? *collected.residual_errors.begin() : *collected.errors.begin();
    const auto member = static_cast<size_t>(error.first);
    const std::string who = residual_failed        ? NameOf(job.tasks()[member])
                            : job.shards().empty() ? "the task"
                                                   : NameOf(job.shards()[member]);
    CheckpointFailed(job, step, absl::StrCat(who, ": ", error.second));
    return true;
  }
  const std::set<int32_t> owners = ResidualWriters(job);
  const bool all = (job.shards().empty() ? collected.files.size() == 1
                                         : collected.files.size() == job.shards().size()) &&
                   std::all_of(owners.begin(), owners.end(), [&collected](int32_t owner) {
                     return collected.residuals.count(owner) > 0;
                   });
  if (step < job.resolved()->total_steps() && all) {
    OrderManifest(job, step);
    return true;
  }
  // The version was given up before a restart, which forgets that. A member that let it go reports a
  // newer one; the others report this one until it is taken.
  const auto let_go = [&](const node::v1::WrittenFiles& now, const std::string& who) {
    if (now.lineage() != job.view().lineage() || now.step() <= step) return false;
    CheckpointFailed(job, step, absl::StrCat(who, ": has let it go"));
    return true;
  };
  for (const Shard& shard : job.shards()) {
    const bool here = collected.files.count(shard.index) > 0;
    if (!here && let_go(shard.state.files(), NameOf(shard))) return true;
  }
  for (const int32_t owner : owners) {
    const Task& task = job.tasks()[static_cast<size_t>(owner)];
    const bool here = collected.residuals.count(owner) > 0;
    if (!here && let_go(task.state.files(), NameOf(task))) return true;
  }
  return false;
}

void CheckpointDesk::OrderManifest(Job& job, int64_t step) {
  const bool last = step == job.resolved()->total_steps();
  std::map<std::string, common::v1::FileInfo> files;
  std::string snapshot;
  for (const Shard& shard : job.shards()) {
    const node::v1::WrittenFiles& written = *job.written().Of(shard.index, step);
    if (shard.index == 0) snapshot = written.lead_snapshot();
    if (!Gather(written, files)) {
      states_.Fail(job, kInternalError,
                   absl::StrCat(NameOf(shard), ": reports a file that cannot be"));
      return;
    }
  }
  for (const int32_t owner : last ? std::set<int32_t>() : ResidualWriters(job)) {
    const auto& residuals = job.written().versions().at(step).residuals;
    if (!Gather(residuals.at(owner), files)) {
      states_.Fail(job, kInternalError,
                   absl::StrCat(NameOf(job.tasks()[static_cast<size_t>(owner)]),
                                ": reports a file that cannot be"));
      return;
    }
  }
  if (job.shards().empty()) {
    const node::v1::WrittenFiles& written =
        last ? job.written().weights() : *job.written().Of(0, step);
    snapshot = written.lead_snapshot();
    if (!last && !Gather(written, files)) {
      states_.Fail(job, kInternalError, "the task reports a file that cannot be");
      return;
    }
  }
  if (last && (!Gather(job.written().weights(), files) || files.count(kWeightsFile) == 0 ||
               !training::IsSha256Hex(job.written().weights_sha256()))) {
    states_.Fail(job, kInternalError,
                 absl::StrCat("the worker of lane 0 reports no proper ", kWeightsFile));
    return;
  }
  node::v1::LeadSnapshot lead;
  if (!lead.ParseFromString(snapshot)) {
    states_.Fail(job, kInternalError, "the lead's snapshot is none");
    return;
  }
  WriteManifest write;
  write.job_id = job.id();
  write.lineage = job.view().lineage();
  write.step = step;
  write.folder = CheckpointFolder(job.resolved()->storage_path(), write.lineage, step);
  write.spec_digest_hex = absl::BytesToHexString(job.resolution().digest());
  write.training_digest_hex = absl::BytesToHexString(job.resolved()->training_digest());
  for (auto& entry : files) write.files.push_back(std::move(entry.second));
  if (last) write.weights_sha256 = job.written().weights_sha256();
  write.optimizer = job.resolved()->spec().training().optimizer().name();
  write.samples_used = snapshot.empty() ? job.history().samples_used() : lead.samples_used();
  for (const node::v1::Order& order : lead.applied_orders()) write.orders.push_back(order.id());
  write.lead_snapshot = snapshot;

  job.link().Order(RecordOf(job, write), step, ctx_.now());
  ctx_.Emit(std::move(write));
}

void CheckpointDesk::Commit(Job& job) {
  const int64_t step = job.link().step();
  const std::string folder =
      CheckpointFolder(job.resolved()->storage_path(), job.view().lineage(), step);
  SavedManifest manifest = job.link().Commit(step == job.resolved()->total_steps());
  SetTime(ctx_.wall(), manifest.saved.mutable_committed_at());
  job.checkpoints().Add(std::move(manifest));
  job.written().Settle(step);
  job.AddEvent(ctx_.wall(), "CheckpointSaved", absl::StrCat("step ", step, " in ", folder));
  job.standing().EraseCondition(kCheckpointDegraded);
  ctx_.Changed(job);

  Prune(job);
  SweepCheckpoints sweep;
  sweep.job_id = job.id();
  sweep.storage_path = job.resolved()->storage_path();
  sweep.lineage = job.view().lineage();
  sweep.step = step;
  for (const SavedManifest& manifest : job.checkpoints().all())
    sweep.keep.push_back(manifest.saved.id());
  ctx_.Emit(std::move(sweep));
}

void CheckpointDesk::Prune(Job& job) {
  const job::v1::Checkpoint& spec = job.resolved()->spec().checkpoint();
  const size_t latest = spec.has_keep_latest() ? spec.keep_latest() : kDefaultKeepLatest;
  job.checkpoints().Prune(
      latest, static_cast<size_t>(spec.keep_best()),
      [&job](int64_t step) {
        std::optional<double> metric = job.MetricOf(step);
        if (metric.has_value() && job.SmallerIsBetter()) metric = -*metric;
        return metric;
      },
      [this, &job](const std::string& id) {
        return id == job.lineages().base() || !folders_.WhoBeginsFrom(job, id).empty();
      });
}

void CheckpointDesk::CheckpointFailed(Job& job, int64_t step, const std::string& why) {
  const bool needed = step == job.resolved()->total_steps() ||
                      (job.lead().suspended() && job.lead().step() == step);
  const std::string text = absl::StrCat("step ", step, ": ", why);
  if (job.resolved()->spec().checkpoint().strict()) {
    states_.Fail(job, kInternalError, absl::StrCat("checkpoint.strict: ", text));
    return;
  }
  bool news = job.standing().AddCondition(kCheckpointDegraded);
  if (needed) {
    // Also where checkpoints before it could not be written either: this one holds the job up.
    if (job.link().NoteOwed(step)) {
      news = true;
      job.AddEvent(ctx_.wall(), "CheckpointFailed", text);
    }
  } else {
    job.AddEvent(ctx_.wall(), "CheckpointFailed", text);
    job.written().Settle(std::max(job.written().settled_step(), step));
    job.link().ForgetAttempts();
  }
  if (news || !needed) ctx_.Changed(job);
}

bool CheckpointDesk::TakeManifest(Job& job, const FoundManifest& found) {
  if (job.ended() || found.lineage < std::max<int64_t>(job.view().lineage(), 1) ||
      found.lineage > std::max<int64_t>(job.view().generation(), 1) + kMostLineagesAhead ||
      found.spec_digest != job.resolution().digest() ||
      found.step > job.resolved()->total_steps()) {
    return false;
  }
  if (job.checkpoints().deleted().count(absl::StrCat(found.lineage, "-", found.step)) > 0)
    return false;
  for (const SavedManifest& manifest : job.checkpoints().all()) {
    if (manifest.saved.lineage() == found.lineage && manifest.saved.step() >= found.step)
      return false;
  }
  SavedManifest saved = RecordOf(job, found);
  if (found.step == job.resolved()->total_steps()) {
    job.written().SetWeightsSha256(found.weights_sha256);
    job.history().FindEnd(found.step, found.samples_used);
  }
  if (found.lineage == job.view().lineage()) {
    job.link().Adopt(std::move(saved), found.step);
    (void)Handle(ManifestWritten{job.id(), found.lineage, found.step, absl::OkStatus()});
    return true;
  }
  // Of a history that the record does not know: the job goes on from it, and no order gets a number
  // that was given there.
  SetTime(ctx_.wall(), saved.saved.mutable_committed_at());
  for (const int64_t id : found.orders) {
    while (id <= ctx_.options().max_changes && static_cast<int64_t>(job.changes().size()) < id) {
      node::v1::Order order;
      order.set_id(static_cast<int64_t>(job.changes().size()) + 1);
      order.set_checkpoint(true);
      order.set_step(std::max<int64_t>(found.step - 1, 0));
      job.changes().Load({std::move(order), found.lineage, false});
    }
  }
  job.checkpoints().Add(std::move(saved));
  job.AddEvent(ctx_.wall(), "CheckpointFound", job.checkpoints().uri());
  ctx_.Changed(job);
  if (found.step == job.resolved()->total_steps()) {
    states_.End(job, common::v1::JOB_STATE_SUCCEEDED, "", "");
  }
  return false;
}

}  // namespace capstan::coordinator::core
