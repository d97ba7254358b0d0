// A shard's files: what a lineage begins from, checkpoints, the step log. Work on disks is the file thread's.
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "param_store/checkpoint/load_checkpoint.h"
#include "param_store/checkpoint/shard_file.h"
#include "param_store/shard_job.h"
#include "services/logging/log.h"
#include "training/chunks/shard_memory.h"

namespace capstan::param_store {

namespace core = exchange::shard;

using services::Log;

void ShardJob::Run(const core::LoadBase& effect) {
  Log(services::kInfo, "lineage_started")
      .Kv("job", options_.plan.job_id)
      .Kv("shard", options_.plan.shard)
      .Kv("lineage", effect.lineage)
      .Kv("first_chunk", effect.run.first_chunk)
      .Kv("chunks", effect.run.chunk_count);
  files_.Post([self = shared_from_this(), effect] { self->Load(effect); });
}

void ShardJob::Load(const core::LoadBase& effect) {
  core::BaseLoaded loaded;
  loaded.lineage = effect.lineage;
  const training::FlatLayout& layout = options_.plan.layout;
  const absl::Duration start = strand_.Now();
  const bool restores = !effect.base_manifest.empty();
  log_.SetLineage(effect.lineage);
  const absl::Status looked = job_files_.Look();
  ++loading_;
  auto buffer = ShardStorage::MakeBuffer(layout, effect.run);
  std::vector<float> state;
  BaseWeightsError error;
  if (!looked.ok()) {  // a full disk there, say: whoever needs a file looks again
    Log(services::kWarning, "files_way_unknown")
        .Kv("job", options_.plan.job_id)
        .Kv("shard", options_.plan.shard)
        .Kv("status", looked);
  }
  if (!restores) {
    error = FillBaseWeights(layout, options_.base, training::RangeOf(layout, effect.run),
                            buffer->span(), job_files_);
    if (error.initial_statistics) {
      Log(services::kWarning, "statistics_begin_anew")
          .Kv("job", options_.plan.job_id)
          .Kv("shard", options_.plan.shard)
          .Kv("initial_weights", options_.base.initial_weights);
    }
  } else {
    CheckpointRequest request;
    request.folder = effect.base_manifest;
    request.job_id = options_.plan.job_id;
    request.training_digest = options_.training_digest;
    request.layout = &layout;
    request.run = effect.run;
    request.state_floats_per_weight = options_.optimizer->state_floats_per_weight();
    if (options_.plan.asynchronous)
      request.marks_per_chunk = core::LaneMarks::SavedPerChunk(options_.plan.samples);
    request.files = &job_files_;
    state.resize(buffer->size() * request.state_floats_per_weight);
    LoadedCheckpoint checkpoint;
    error = LoadCheckpoint(request, buffer->span(), absl::MakeSpan(state), &checkpoint);
    loaded.version = checkpoint.version;
    loaded.snapshot = std::move(checkpoint.snapshot);
    loaded.marks = std::move(checkpoint.marks);
  }
  loaded.reason = error.reason;
  loaded.message = std::string(error.status.message());
  if (!error.reason.empty()) {
    Log(services::kError, "base_refused")
        .Kv("job", options_.plan.job_id)
        .Kv("shard", options_.plan.shard)
        .Kv("reason", error.reason)
        .Kv("status", error.status);
  }
  const absl::Duration took = strand_.Now() - start;
  strand_.Post([self = shared_from_this(), loaded = std::move(loaded), buffer,
                state = std::move(state), run = effect.run, restores, took]() mutable {
    --self->loading_;
    if (restores && loaded.reason.empty()) self->metrics_.Restored(took);
    if (restores && !loaded.reason.empty()) self->metrics_.RestoreFailed();
    if (loaded.lineage != self->core_.lineage()) return;
    if (loaded.reason.empty()) {
      self->storage_.Begin(run, loaded.version, buffer, std::move(state));
    }
    self->Do(std::move(loaded));
  });
}

void ShardJob::Run(const core::LogStep& effect) {
  log_.Append(training::FormatStepLogLine(effect.line));
}

void ShardJob::Run(const core::WriteFiles& effect) {
  if (snapshots_ >= training::kLoadingBuffers) {
    // Given up elsewhere, and this disk still has to do with those before.
    core::FilesWritten refused;
    refused.lineage = effect.lineage;
    refused.version = effect.version;
    refused.error = absl::UnavailableError(absl::StrCat(
        "files of ", snapshots_.load(), " earlier checkpoints are still being written"));
    metrics_.SaveFailed();
    events_.push_back(std::move(refused));
    return;
  }
  // The weights stay where they are, held by their reference; the optimizer's state is copied.
  auto snapshot = std::make_shared<ShardSnapshot>(storage_.Snapshot());
  ++snapshots_;
  files_.Post([self = shared_from_this(), effect, snapshot = std::move(snapshot)]() mutable {
    self->Write(effect, std::move(snapshot));
  });
}

void ShardJob::Write(const core::WriteFiles& effect, std::shared_ptr<ShardSnapshot> snapshot) {
  const core::ShardPlan& plan = options_.plan;
  ShardFileOptions options;
  options.folder = absl::StrCat(options_.storage_path, "/", effect.lineage, "-", effect.version);
  options.job_id = plan.job_id;
  options.spec_digest = plan.spec_digest;
  options.shard = plan.shard;
  options.lineage = effect.lineage;
  options.step = effect.version;
  log_.Flush();  // what a checkpoint stands on is in the log
  const absl::Duration start = strand_.Now();
  const auto info = WriteShardFile(options,
                                   {.layout = &plan.layout,
                                    .run = snapshot->run,
                                    .weights = snapshot->weights.floats->span(),
                                    .state = snapshot->state,
                                    .marks = effect.marks},
                                   job_files_);
  snapshot.reset();
  --snapshots_;
  const absl::Duration took = strand_.Now() - start;
  core::FilesWritten written;
  written.lineage = effect.lineage;
  written.version = effect.version;
  if (info.ok()) {
    written.files.push_back(*info);
  } else {
    written.error = info.status();
  }
  Log(info.ok() ? services::kInfo : services::kError, "checkpoint_file")
      .Kv("job", plan.job_id)
      .Kv("shard", plan.shard)
      .Kv("step", effect.version)
      .Kv("seconds", took)
      .Kv("status", written.error);
  strand_.Post([self = shared_from_this(), written, took] {
    if (written.error.ok()) {
      self->metrics_.Saved(took, written.files[0].size_bytes());
    } else {
      self->metrics_.SaveFailed();
    }
    self->Do(written);
  });
}

}  // namespace capstan::param_store
