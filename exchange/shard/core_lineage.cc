// Lineages, views, orders, and the checkpoints of a lineage.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "exchange/shard/shard_core.h"
#include "services/check/check.h"
#include "services/check/mutant.h"
#include "training/lead/loss_scale.h"
#include "training/spec/lead_messages.h"

namespace capstan::exchange::shard {

// ---- Lineages and views ----

void ShardCore::On(const StartLineage& event) {
  if (event.lineage <= lineage_) return;
  CAPSTAN_CHECK(event.run.chunk_count >= 1 && event.run.first_chunk >= 0 &&
                event.run.end() <= plan_.layout.chunk_count() && plan_.shard < event.num_shards);
  CloseAll(absl::FailedPreconditionError(
      absl::StrCat("lineage ", lineage_, " is over, current ", event.lineage)));
  if (lineage_ > 0 && plan_.shard > 0) Emit(DropLead{});
  lineage_ = event.lineage;
  generation_ = event.generation;
  if (num_shards_ == 0 || !CAPSTAN_MUTANT("shards_of_the_first_lineage"))
    num_shards_ = event.num_shards;
  run_ = event.run;
  workers_ = event.workers;
  lane_owners_ = event.lane_owners;
  ready_ = false;
  reason_.clear();
  message_.clear();
  version_ = -1;
  stop_ = evaluate_ = false;
  said_ = held_said_ = {};
  held_version_ = {};
  missed_.clear();
  lead_.reset();
  lead_open_ = false;
  connect_at_ = repeat_part_at_ = repeat_decision_at_ = write_at_ = late_at_ =
      absl::InfiniteDuration();
  lane_times_.Clear();
  seal_marks_.clear();
  schedule_ = plan_.schedule;
  checkpoints_.clear();
  orders_ = event.orders;
  Emit(LoadBase{lineage_, run_, event.base_manifest});
  Emit(StateChanged{});
}

void ShardCore::On(const ViewChange& event) {
  if (event.lineage != lineage_ || event.generation <= generation_) return;
  generation_ = event.generation;
  workers_ = event.workers;
  lane_owners_ = event.lane_owners;
  if (lead_.has_value()) {
    lane_times_.SetOwners(lane_owners_, now_);
    WatchLanes();
  }
  std::vector<StreamId> gone;
  for (const auto& [id, stream] : streams_) {
    if (stream.kind != v1::STREAM_KIND_SHARD &&
        std::find(workers_.begin(), workers_.end(), stream.index) == workers_.end()) {
      gone.push_back(id);
    }
  }
  for (const StreamId id : gone) {
    Close(id, absl::UnavailableError("the worker is no longer in the view"));
  }
  // All wait for who owns lanes now: what it takes is the version at hand.
  for (auto& [id, stream] : streams_) {
    const std::vector<int32_t>& slow = held_version_.slow_ranks;
    if (stream.kind == v1::STREAM_KIND_DATA && stream.open && OwnsLanes(stream.index) &&
        std::find(slow.begin(), slow.end(), stream.index) != slow.end()) {
      EmitWeights(id, stream);
    }
  }
  ForgetSlowOwners();
}

void ShardCore::ForgetSlowOwners() {
  std::vector<int32_t>& slow = held_version_.slow_ranks;
  slow.erase(std::remove_if(slow.begin(), slow.end(), [this](int32_t r) { return OwnsLanes(r); }),
             slow.end());
}

void ShardCore::FailBase(absl::string_view reason, absl::string_view message) {
  reason_ = std::string(reason);
  message_ = std::string(message);
  CloseAll(absl::UnavailableError(absl::StrCat("the shard cannot load: ", message_)));
  Emit(StateChanged{});
}

void ShardCore::On(const BaseLoaded& event) {
  if (event.lineage != lineage_ || ready_) return;
  if (!event.reason.empty()) return FailBase(event.reason, event.message);
  if (event.snapshot.has_value()) {
    const absl::Status fits =
        training::CheckSnapshot(*event.snapshot, event.version, plan_.total_steps, plan_.samples);
    if (!fits.ok()) return FailBase("CheckpointCorrupt", fits.message());
  }
  if (asynchronous()) {
    if (!event.snapshot.has_value()) {
      marks_.Begin(run_.chunk_count);
    } else if (const absl::Status fits =
                   marks_.Restore(run_.chunk_count, event.version, event.marks);
               !fits.ok()) {
      return FailBase("CheckpointCorrupt", fits.message());
    }
    for (int32_t lane = 0; lane < plan_.samples.lanes(); ++lane) {
      seal_marks_.push_back(NextStepOf(plan_.samples, plan_.total_steps, lane, event.version));
    }
    if (event.snapshot.has_value() && event.snapshot->learning_rate > 0)
      schedule_ = plan_.schedule.WithBaseRate(event.snapshot->learning_rate);
    max_staleness_ = plan_.max_staleness;
    if (event.snapshot.has_value())
      max_staleness_ = event.snapshot->max_staleness.value_or(max_staleness_);
    loosest_staleness_ = max_staleness_;
  }
  ready_ = true;
  version_ = event.version;
  stop_ = version_ == plan_.total_steps;
  // An evaluation that was ordered with this version, and not finished, is owed.
  evaluate_ = event.snapshot.has_value() && event.snapshot->ending.has_value() &&
              plan_.evaluation.block_count() > 0;
  const training::LossScale first(plan_.dynamic_loss_scale);
  gradient_scale_ = 1 / first.value();
  applied_steps_ = version_;
  if (event.snapshot.has_value()) {
    const double scale = event.snapshot->loss_scale;
    if (plan_.dynamic_loss_scale && scale > 0) gradient_scale_ = 1 / scale;  // as Lead::Restore
    applied_steps_ = version_ - event.snapshot->skipped_steps;
  }
  retired_ = true;  // there is no version below the base
  published_at_ = now_;
  chunks_.assign(run_.chunk_count, training::ChunkFold(tree_));
  BeginStep();
  if (plan_.shard == 0) {
    MakeLead(event.snapshot);
  } else {
    lead_backoff_ = times_.min_backoff;
    Emit(ConnectLead{lineage_, version_});
  }
  std::vector<StreamId> ahead;
  for (auto& [id, stream] : streams_) {
    if (stream.have_version > version_) {
      ahead.push_back(id);
    } else {
      OpenStream(id, stream);
    }
  }
  for (const StreamId id : ahead) Close(id, absl::InvalidArgumentError("have_version: ahead"));
  if (stop_) Save();  // the files of a lineage that ends lie in its own folder
  Emit(StateChanged{});
}

void ShardCore::MakeLead(const std::optional<training::LeadSnapshot>& snapshot) {
  training::LeadOptions options;
  options.lineage = lineage_;
  options.total_steps = plan_.total_steps;
  options.num_parts = num_shards_;
  options.evaluate_every_steps = plan_.evaluate_every_steps;
  options.dynamic_loss_scale = plan_.dynamic_loss_scale;
  // The workers of an asynchronous job clip each lane's gradient by themselves.
  if (!asynchronous()) options.clip_norm = plan_.clip_norm;
  if (options.clip_norm > 0) options.norm_chunks = training::NormTree(plan_.layout).chunk_count();
  options.pieces = plan_.pieces;
  options.asynchronous = plan_.asynchronous;
  options.has_accuracy = plan_.has_accuracy;
  options.checkpoint_every_steps = plan_.checkpoint_every_steps;
  options.checkpoint_every = plan_.checkpoint_every;
  lead_.emplace(options, plan_.samples, plan_.evaluation, plan_.schedule, now_);
  if (snapshot.has_value()) lead_->Restore(*snapshot, now_);
  lead_->GiveOrders(std::exchange(orders_, {}));
  shown_.assign(num_shards_, -1);
  readers_.assign(num_shards_, {});
}

void ShardCore::On(const GiveOrders& event) {
  if (event.lineage == lineage_ && lead_.has_value()) lead_->GiveOrders(event.orders);
}

void ShardCore::On(const EndJob&) {
  CloseAll(absl::FailedPreconditionError(absl::StrCat("job ", plan_.job_id, " has ended")));
  if (plan_.shard > 0) Emit(DropLead{});
  connect_at_ = repeat_part_at_ = repeat_decision_at_ = write_at_ = late_at_ =
      absl::InfiniteDuration();
  ended_ = true;
}

// ---- Checkpoints ----

void ShardCore::EmitWriteFiles() {
  WriteFiles write{lineage_, version_, {}};
  if (asynchronous()) write.marks = marks_.Saved();
  Emit(std::move(write));
}

// Of the version at hand, which was just made or loaded.
void ShardCore::Save() {
  Checkpoint checkpoint;
  checkpoint.version = version_;
  checkpoint.last = stop_;
  if (lead_.has_value()) {
    checkpoint.lead_snapshot = training::spec::EncodeSnapshot(lead_->Snapshot());
  }
  checkpoints_.push_back(std::move(checkpoint));
  EmitWriteFiles();
}

void ShardCore::On(const FilesWritten& event) {
  if (!event.error.ok()) ++checkpoint_failures_;
  if (event.lineage != lineage_) return;
  const auto it = std::find_if(checkpoints_.begin(), checkpoints_.end(),
                               [&](const Checkpoint& c) { return c.version == event.version; });
  if (it == checkpoints_.end()) return;  // given up meanwhile, since another shard could not
  node::v1::WrittenFiles report;
  report.set_lineage(event.lineage);
  report.set_step(event.version);
  if (event.error.ok() ||
      (absl::IsResourceExhausted(event.error) && CAPSTAN_MUTANT("full_disk_ignored"))) {
    for (const common::v1::FileInfo& file : event.files) *report.add_files() = file;
    report.set_lead_snapshot(it->lead_snapshot);
    if (lead_.has_value()) lead_->FilesWritten(event.version);
  } else {
    report.set_error(std::string(event.error.message()));
    if (it->last && !CAPSTAN_MUTANT("last_files_tried_once")) write_at_ = now_ + times_.file_retry;
  }
  it->report = std::move(report);
  Emit(StateChanged{});
}

void ShardCore::On(const FilesTaken& event) {
  if (event.lineage != lineage_) return;
  if (lead_.has_value()) lead_->FilesTaken(event.version);
  const auto it = std::find_if(checkpoints_.begin(), checkpoints_.end(),
                               [&](const Checkpoint& c) { return c.version == event.version; });
  if (it == checkpoints_.end()) return;
  // The last version is owed until it is written.
  const bool written = it->report.has_value() && it->report->error().empty();
  if (it->last && !written) return;
  checkpoints_.erase(it);
  Emit(StateChanged{});
}

}  // namespace capstan::exchange::shard
