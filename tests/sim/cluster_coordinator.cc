// The coordinator of a cluster: the real core, a journal whose commits take time, and the writer of
// manifests. Also the client, which submits the job until it hears that it was accepted.
#include <algorithm>
#include <cstdio>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/check/check.h"
#include "tests/sim/cluster.h"
#include "training/codec/manifest.h"
#include "training/codec/sha256.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::sim {
namespace {

namespace core = coordinator::core;

constexpr absl::Duration kLease = absl::Seconds(1);

std::string KvStoreOf(const Plan& plan) {
  if (!plan.asynchronous) return plan.local ? "local" : "dist_sync";
  return plan.max_staleness < 0 ? "dist_async"
                                : absl::StrCat("dist_async, max_staleness: ", plan.max_staleness);
}

job::v1::JobSpec SpecOf(const Plan& plan) {
  // Each lane has 8 samples, except in the last step of an epoch, where the last lanes have none.
  const int64_t batch = 8 * plan.lanes;
  const int64_t train = 4 * batch + std::max(1, plan.lanes / 2);
  std::string resources = absl::StrCat("lanes: ", plan.lanes);
  if (!plan.local)
    absl::StrAppend(&resources, ", num_workers: ", plan.workers, ", num_shards: ", plan.shards);
  if (plan.min_workers > 0) absl::StrAppend(&resources, ", min_workers: ", plan.min_workers);
  std::string text = absl::StrCat(
      "version: 1\nname: sim\nresources: {", resources,
      "}\nmodel: {name: mlp}\ndata: {format: synthetic_digits, train_samples: ", train,
      ", test_samples: 40}\nkvstore: {type: ", KvStoreOf(plan),
      plan.toy.feedback
          ? absl::StrCat(", gradient_compression: {type: 2bit, threshold: ", Toy::kThreshold, "}")
          : std::string(plan.compressed ? ", gradient_compression: bf16" : ""),
      plan.replicas ? ", update_on_kvstore: false" : "", "}\ntraining: {max_steps: ", plan.steps,
      ", epochs: 1000, global_batch_size: ", batch, plan.toy.scaled() ? ", precision: fp16" : "",
      plan.toy.clip_norm > 0 ? absl::StrCat(", gradient_clip_norm: ", plan.toy.clip_norm) : "",
      ", seed: 5, optimizer: {name: ", plan.toy.optimizer_name(),
      ", learning_rate: ", plan.asynchronous ? Counts::kLearningRate : 0.0001,
      plan.toy.optimizer == Toy::Optimizer::kLars ? absl::StrCat(", eta: ", Toy::kEta) : "", "}}\n",
      "recovery: {max_restarts: 100}\n");
  if (!plan.evaluates) text += "evaluation: {every: 1000 epochs}\n";
  if (plan.checkpoint_every > 0)
    absl::StrAppend(&text, "checkpoint: {every: ", plan.checkpoint_every, " steps}\n");
  training::spec::JobFile file = training::spec::ParseJobFile(text);
  std::fputs(training::spec::FormatErrors("sim", file.errors).c_str(), stderr);
  CAPSTAN_CHECK(file.errors.empty());
  file.spec.mutable_recovery()->set_backoff_initial_seconds(0.1);
  file.spec.mutable_recovery()->set_backoff_max_seconds(1);
  return file.spec;
}

std::string HexOfSha256(const std::string& bytes) {
  training::Sha256 sha256;
  sha256.Update(bytes);
  const auto digest = sha256.Finish();
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), digest.size()});
}

}  // namespace

core::CoreOptions Cluster::CoordinatorOptions() {
  core::CoreOptions out;
  out.lease = kLease;
  out.heartbeat = kHeartbeat;
  out.storage_root = "/sim";
  out.seed = random_.Next();  // each process has its own seed
  if (plan_.forgetting.has_value()) {
    out.max_ended_jobs = 2;
    out.lost_node_kept = absl::Seconds(5);  // longer than every cut and crash
  }
  out.validate = training::spec::ValidateSpec;
  out.resolve = [](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                   const std::string& job_id, const std::string& root) {
    // Large chunks, so that a step has few events.
    return training::spec::Resolve(
        spec, dataset,
        {.job_id = job_id, .storage_path = root, .chunk_floats = training::kMediumChunkFloats});
  };
  return out;
}

void Cluster::StartCoordinator() {
  coordinator_process_.Start();
  coordinator_ = std::make_unique<core::CoordinatorCore>(CoordinatorOptions());
  tick_at_ = absl::InfiniteDuration();
  const absl::Status restored =
      coordinator_->Restore(durable_, queue_.now(), absl::UnixEpoch() + queue_.now());
  if (!restored.ok()) return Violation(absl::StrCat("no restart: ", restored.message()));
  Tell(core::Restored{});
}

void Cluster::StopCoordinator() {
  coordinator_process_.Kill();
  coordinator_.reset();
  for (const auto& entry : sessions_) entry.second->Close(1);
  sessions_.clear();
  inbox_.clear();
  // The commit in progress survives as a whole or not at all.
  if (committing_ && random_.Chance(0.5)) {
    for (const core::Record& record : uncommitted_) NoteDurable(record);
  }
  uncommitted_.clear();
  committing_ = false;
  if (plan_.power_cuts) disk_.PowerCut(0);
}

void Cluster::Tell(decltype(core::Event::what) what) {
  if (coordinator_ == nullptr) return;
  if (committing_) {
    inbox_.push_back(std::move(what));
    return;
  }
  StepCoordinator(what);
}

void Cluster::StepCoordinator(const decltype(core::Event::what)& what) {
  core::Effects effects =
      coordinator_->Step({absl::UnixEpoch() + queue_.now(), what}, queue_.now());
  for (const auto& node : nodes_) {
    if (node->silenced) continue;
    const core::Node* const known = coordinator_->nodes().Find(node->name);
    if (known != nullptr && known->lost())
      Violation(absl::StrCat(node->name, " was never silent, and is taken for lost"));
  }
  const auto behind = std::find_if(effects.begin(), effects.end(), [](const core::Effect& effect) {
    return !std::holds_alternative<core::Persist>(effect);
  });
  for (auto effect = effects.begin(); effect != behind; ++effect)
    uncommitted_.push_back(std::get<core::Persist>(*effect).record);
  effects.erase(effects.begin(), behind);
  if (uncommitted_.empty()) return CarryOut(effects);
  committing_ = true;
  coordinator_process_.After(random_.Between(absl::Microseconds(500), absl::Milliseconds(8)),
                             [this, effects = std::move(effects)] {
                               for (const core::Record& record : uncommitted_) NoteDurable(record);
                               uncommitted_.clear();
                               committing_ = false;
                               CarryOut(effects);
                               while (!inbox_.empty() && !committing_) {
                                 const auto next = std::move(inbox_.front());
                                 inbox_.pop_front();
                                 StepCoordinator(next);
                               }
                             });
}

void Cluster::CarryOut(const core::Effects& effects) {
  for (const core::Effect& effect : effects) CarryOut(effect);
  const absl::Duration due = coordinator_->NextDeadline();
  if (due >= tick_at_) return;
  tick_at_ = due;
  coordinator_process_.At(due, [this, due] {
    if (tick_at_ == due) CoordinatorTick();
  });
}

void Cluster::CoordinatorTick() {
  tick_at_ = absl::InfiniteDuration();
  Tell(core::Tick{});
}

void Cluster::CarryOut(const core::Effect& effect) {
  if (const auto* e = std::get_if<core::Send>(&effect)) {
    const auto found = sessions_.find(e->session);
    if (found != sessions_.end()) found->second->Send(1, e->message.SerializeAsString(), true);
  } else if (const auto* e = std::get_if<core::CloseSession>(&effect)) {
    const auto found = sessions_.find(e->session);
    if (found == sessions_.end()) return;
    const auto connection = std::move(found->second);
    sessions_.erase(found);
    connection->Close(1);
  } else if (const auto* e = std::get_if<core::Reply>(&effect)) {
    CAPSTAN_CHECK(e->status.ok() || e->call != kSubmit);
    if (e->call >= kPassSubmit) return NotePassing(*e);
    if (e->call >= kFirstMove) return NoteMove(*e);
    if (e->call >= kFirstOrder) answered_[static_cast<size_t>(e->call - kFirstOrder)] = true;
    if (const auto* submitted = std::get_if<job::v1::SubmitJobResponse>(&e->response)) {
      if (!job_id_.empty() && job_id_ != submitted->job_id()) Violation("two jobs of one request");
      job_id_ = submitted->job_id();
    }
  } else if (const auto* e = std::get_if<core::JobChanged>(&effect)) {
    const core::Job* job = coordinator_->Peek(e->job_id);
    if (job == nullptr || job->spec().name() == kPassing) return;
    if (job->has_view()) NoteView(*job);
    NoteOrders(*job);
    if (job->ended() && !ended_) {
      ended_ = true;
      if (job->state() == common::v1::JOB_STATE_SUCCEEDED) CheckFiles();
    }
  } else if (const auto* e = std::get_if<core::WriteManifest>(&effect)) {
    WriteManifest(*e);
  } else if (const auto* e = std::get_if<core::SweepCheckpoints>(&effect)) {
    Sweep(*e);
  }
}

void Cluster::NoteView(const core::Job& job) {
  if (!histories_.begun()) histories_.Begin(*job.resolved());
  if (plan_.asynchronous && !counts_.has_value()) counts_.emplace(*job.resolved(), plan_.toy);
  std::string owners;
  for (const int32_t owner : job.view().lane_owners()) absl::StrAppend(&owners, owner, ",");
  const auto [known, fresh] = assignments_.emplace(job.view().generation(), owners);
  if (!fresh && known->second != owners)
    Violation(absl::StrCat("generation ", job.view().generation(), " names two assignments"));
  if (!fresh) return;
  queue_.Note(absl::StrCat("view ", job.view().generation(), " ", owners));
  if (job.view().generation() == 1) CheckBeginning(job);
  NoteJoins(job.view());
  if (histories_.knows(job.view().lineage())) {
    ++result_.takeovers;
    return;
  }
  if (job.view().lineage() > 1) ++result_.rollbacks;
  const std::vector<std::string> base =
      absl::StrSplit(job.lineages().base(), '-');  // <lineage>-<version>
  int64_t base_lineage = 0, base_version = 0;
  if (!job.lineages().base().empty()) {
    CAPSTAN_CHECK(base.size() == 2 && absl::SimpleAtoi(base[0], &base_lineage) &&
                  absl::SimpleAtoi(base[1], &base_version));
  }
  const std::string broken =
      histories_.NoteLineage(job.view().lineage(), base_lineage, base_version);
  if (!broken.empty()) Violation(broken);
}

void Cluster::CheckBeginning(const core::Job& job) {
  const job::v1::Resources& resources = job.resolved()->spec().resources();
  const int least = resources.has_min_workers() ? resources.min_workers() : resources.num_workers();
  if (job.view().workers_size() < least) {
    Violation(absl::StrCat("it begins with ", job.view().workers_size(), " workers, want ", least));
  }
}

void Cluster::NoteJoins(const common::v1::View& view) {
  std::set<std::string> workers;
  for (const common::v1::WorkerRef& worker : view.workers()) workers.insert(worker.node());
  const bool begun = !in_view_.empty();
  for (const auto& node : nodes_) {
    if (!begun || workers.count(node->name) == 0 || in_view_.count(node->name) > 0) continue;
    if (histories_.knows(view.lineage())) ++result_.joins;
    if (node->later) result_.effects.Saw(FaultClass::kElastic);
    node->later = false;
  }
  in_view_ = std::move(workers);
}

// ---- Manifests ----

void Cluster::WriteManifest(const core::WriteManifest& write) {
  coordinator_process_.After(
      random_.Between(absl::Milliseconds(1), absl::Milliseconds(30)), [this, write] {
        const absl::Status status = WriteManifestFile(write);
        coordinator_process_.After(
            random_.Between(absl::Milliseconds(1), absl::Milliseconds(30)), [this, write, status] {
              Tell(core::ManifestWritten{write.job_id, write.lineage, write.step, status});
            });
      });
}

// Does the same as coordinator/manifest_writer.cc, and also compares the bytes.
absl::Status Cluster::WriteManifestFile(const core::WriteManifest& write) {
  training::Manifest manifest;
  manifest.job_id = write.job_id;
  manifest.lineage = write.lineage;
  manifest.step = write.step;
  manifest.spec_digest = write.spec_digest_hex;
  manifest.training_digest = write.training_digest_hex;
  manifest.orders = write.orders;
  manifest.lead_snapshot = write.lead_snapshot;
  manifest.weights_sha256 = write.weights_sha256;
  manifest.optimizer = write.optimizer;
  manifest.samples_used = write.samples_used;
  manifest.created_by = "sim";
  int shard_files = 0;
  for (const common::v1::FileInfo& file : write.files) {
    const std::string hex = absl::BytesToHexString(file.sha256());
    manifest.files.push_back({file.name(), file.size_bytes(), hex});
    if (!absl::StartsWith(file.name(), "shard-")) continue;  // the tasks' files are not on the disk
    ++shard_files;
    const auto bytes = disk_.Read(absl::StrCat(write.folder, "/", file.name()));
    if (!bytes.ok() || static_cast<int64_t>(bytes->size()) != file.size_bytes())
      return absl::DataLossError(absl::StrCat(file.name(), ": not as its writer reported"));
    if (HexOfSha256(*bytes) != hex && !plan_.has(FaultClass::kDamage))
      Violation(absl::StrCat(write.folder, "/", file.name(), ": other bytes than reported"));
  }
  if (shard_files != std::max(1, coordinator_->Peek(write.job_id)->view().shards_size()))
    Violation("a manifest that does not name every shard's file");
  if (!absl::EndsWith(write.folder, absl::StrCat("/", write.lineage, "-", write.step)))
    Violation(
        absl::StrCat("the manifest of ", write.lineage, "-", write.step, " in ", write.folder));
  const auto text = training::EncodeManifest(manifest);
  if (!text.ok()) return text.status();
  const std::string path = write.folder + "/manifest.json";
  const std::string temporary = path + ".tmp";
  absl::Status status = disk_.Write(0, temporary, *text);
  if (status.ok()) status = disk_.Sync(temporary);
  if (status.ok()) {
    status = disk_.Link(0, temporary, path);
    if (absl::IsAlreadyExists(status))
      status = *disk_.Read(path) == *text ? absl::OkStatus() : absl::DataLossError(path);
  }
  disk_.Remove(temporary);
  if (!status.ok()) return status;
  disk_.SyncFolder(write.folder);
  committed_.insert(write.folder);
  ++result_.manifests;
  queue_.Note(absl::StrCat("manifest ", write.lineage, "-", write.step));
  return absl::OkStatus();
}

// Follows the contract of SweepCheckpoints in coordinator/core/types.h.
void Cluster::Sweep(const core::SweepCheckpoints& sweep) {
  for (const std::string& path : disk_.List(sweep.storage_path + "/")) {
    const std::vector<std::string> parts =
        absl::StrSplit(path.substr(sweep.storage_path.size() + 1), absl::MaxSplits('/', 1));
    const std::vector<std::string> numbers = absl::StrSplit(parts[0], '-');
    int64_t lineage = 0, step = 0;
    if (numbers.size() != 2 || !absl::SimpleAtoi(numbers[0], &lineage) ||
        !absl::SimpleAtoi(numbers[1], &step)) {
      continue;
    }
    if (std::pair(lineage, step) >= std::pair(sweep.lineage, sweep.step)) continue;
    if (std::find(sweep.keep.begin(), sweep.keep.end(), parts[0]) == sweep.keep.end())
      disk_.Remove(path);
  }
}

// OK if the checkpoint in the folder has a manifest, and the shards' files have the digests in it.
absl::Status Cluster::IsWhole(const std::string& folder) const {
  const auto text = disk_.Read(folder + "/manifest.json");
  if (!text.ok()) return text.status();
  const auto manifest = training::ParseManifest(folder, *text);
  if (!manifest.ok()) return manifest.status();
  for (const training::ManifestFile& file : manifest->files) {
    if (file.name == "weights.safetensors") continue;  // only repeats the weights
    const auto bytes = disk_.Read(absl::StrCat(folder, "/", file.name));
    if (!bytes.ok() || HexOfSha256(*bytes) != file.sha256)
      return absl::DataLossError(absl::StrCat(file.name, " is not what the manifest names"));
  }
  return absl::OkStatus();
}

bool Cluster::NoCheckpointIsWhole() const {
  const core::Job& job = *coordinator_->Peek(job_id_);
  for (const core::SavedManifest& manifest : job.checkpoints().all()) {
    if (IsWhole(absl::StrCat(job.resolved()->storage_path(), "/", manifest.saved.id())).ok())
      return false;
  }
  return true;
}

// Once SUCCEEDED is reported, the last version must be readable.
void Cluster::CheckFiles() {
  const core::Job& job = *coordinator_->Peek(job_id_);
  const std::string folder =
      absl::StrCat(job.resolved()->storage_path(), "/", job.view().lineage(), "-", plan_.steps);
  if (!disk_.Read(folder + "/manifest.json").ok())
    return Violation("SUCCEEDED before the manifest of the last step");
  if (plan_.has(FaultClass::kDamage)) return;
  const absl::Status whole = IsWhole(folder);
  if (!whole.ok()) Violation(std::string(whole.message()));
}

// ---- The client ----

void Cluster::Submit() {
  if (!job_id_.empty()) return;
  if (coordinator_process_.alive()) {
    queue_.After(random_.Between(absl::Microseconds(50), absl::Milliseconds(2)),
                 coordinator_process_.Guard([this] {
                   Tell(core::Submit{kSubmit, "request", SpecOf(plan_), {}});
                 }));
  }
  queue_.After(absl::Milliseconds(500), [this] { Submit(); });
}

}  // namespace capstan::sim
