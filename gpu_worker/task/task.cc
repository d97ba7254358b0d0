#include "gpu_worker/task/task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "exchange/transport/exchange_client.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/job_data/job_data.h"
#include "gpu_worker/task/lane_clip.h"
#include "grpcpp/channel.h"
#include "services/channel/channel.h"
#include "services/check/check.h"
#include "services/files/beneath.h"
#include "services/logging/log.h"
#include "services/metrics/registry.h"
#include "services/process/own_usage.h"
#include "training/codec/local_uri.h"
#include "training/fold/add.h"
#include "training/spec/lead_messages.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::gpu_worker {

namespace core = exchange::task;

using exchange::CompleteWeights;
using exchange::ExchangeCallbacks;
using services::Log;

constexpr absl::Duration kReportInterval = absl::Seconds(1);

Task::Task(TaskOptions options, services::Strand& strand, Callbacks callbacks)
    : options_(std::move(options)),
      strand_(strand),
      callbacks_(std::move(callbacks)),
      files_thread_([this] { files_.Run(); }) {}

Task::~Task() {
  *alive_ = false;
  if (job_files_ != nullptr) job_files_->Cancel();
  group_.reset();
  runners_.clear();
  // After the lines that are still to be written.
  files_.Post([this] {
    if (step_log_ != nullptr) step_log_->Close();
    files_.Stop();
  });
  files_thread_.join();
}

void Task::Post(std::function<void()> function) {
  strand_.Post([alive = alive_, function = std::move(function)] {
    if (*alive) function();
  });
}

void Task::Start(const node::v1::StartTask& start) {
  rank_ = start.rank();
  view_ = start.view();
  base_manifest_ = start.base_manifest();
  reached_at_ = strand_.Now();
  state_.set_job_id(start.job_id());
  state_.set_rank(rank_);
  state_.set_lineage(view_.lineage());
  state_.set_generation(view_.generation());
  state_.set_phase(node::v1::TASK_PHASE_STARTING);
  SendState();
  absl::Status status = SetUp(start);
  if (status.ok()) return;
  // The core may not exist yet, so this does the work of its Failed event.
  Log(services::kError, "task_failed").Kv("job", start.job_id()).Kv("status", status);
  ended_ = true;
  state_.set_phase(node::v1::TASK_PHASE_FAILED);
  state_.set_reason(FailureReasonOf(status));
  state_.set_message(std::string(status.message()));
  SendState();
  callbacks_.on_exit(true);
}

// With a key of the coordinator's, a folder under no root is not touched: the files come from there.
absl::Status Task::CheckBase(const std::string& manifest) const {
  const std::vector<std::string>& roots = options_.checkpoint_roots;
  if (roots.empty() || manifest.empty() || services::LiesBeneath(manifest, roots) ||
      (!options_.coordinator.empty() && has_files_key_)) {
    return absl::OkStatus();
  }
  return data::InvalidSpec(absl::StrCat("base_manifest ", manifest,
                                        ": is not under any --checkpoint-root of this worker"));
}

// The coordinator has its own roots. These are set by the operator of this host.
absl::Status Task::CheckRoots(const node::v1::StartTask& start) const {
  const auto check = [](absl::string_view what, const std::string& path,
                        const std::vector<std::string>& roots, absl::string_view flag) {
    if (roots.empty() || path.empty() || services::LiesBeneath(path, roots)) {
      return absl::OkStatus();
    }
    return data::InvalidSpec(
        absl::StrCat(what, " ", path, ": is not under any ", flag, " of this worker"));
  };
  const std::vector<std::string>& checkpoints = options_.checkpoint_roots;
  absl::Status status;
  // With a key, a folder under no root is not touched, because the coordinator stores the files.
  if (options_.coordinator.empty() || start.files_key().empty()) {
    status = check("storage_path", job_->spec.storage_path(), checkpoints, "--checkpoint-root");
    const bool reads_base = !job_->uses_shards() || job_->keeps_residuals();
    if (status.ok() && reads_base) status = CheckBase(start.base_manifest());
  }
  if (!status.ok() || job_->uses_shards() || MayReadWeights()) return status;
  const std::string& weights = job_->spec.spec().model().initial_weights();
  const bool checkpoint = !training::CheckpointFolderIn(weights).empty();
  // The coordinator stores a checkpoint, and has allowed the job to begin from it.
  if (checkpoint && !options_.coordinator.empty() && !start.files_key().empty()) return status;
  return data::InvalidSpec(
      absl::StrCat("model.initial_weights ", weights, ": is not under any --data-root",
                   checkpoint ? " or --checkpoint-root" : "", " of this worker"));
}

// Whether the roots of this host allow reading the initial weights. Checkpoint roots count only for
// checkpoints.
bool Task::MayReadWeights() const {
  const std::string& weights = job_->spec.spec().model().initial_weights();
  if (options_.data_roots.empty() || weights.empty()) return true;
  const absl::StatusOr<std::string> path = training::LocalPath(weights);
  if (!path.ok()) return false;
  return services::LiesBeneath(*path, options_.data_roots) ||
         (!training::CheckpointFolderIn(*path).empty() &&
          services::LiesBeneath(*path, options_.checkpoint_roots));
}

absl::Status Task::MakeFiles(const node::v1::StartTask& start) {
  param_store::JobFilesOptions files;
  files.job_id = job_->id();
  files.storage_path = job_->spec.storage_path();
  files.key = start.files_key();
  files.may_touch_folder = options_.checkpoint_roots.empty() ||
                           services::LiesBeneath(files.storage_path, options_.checkpoint_roots);
  files.may_touch_weights = MayReadWeights();
  if (!options_.coordinator.empty() && !files.key.empty()) {
    services::ChannelOptions dial;
    const auto peer = services::ParseEndpoint(options_.coordinator);
    if (!peer.ok()) return peer.status();
    dial.peer = *peer;
    dial.security = options_.security;
    dial.retry = false;  // JobFiles itself tries again
    auto channel = services::MakeChannel(dial);
    if (!channel.ok()) return channel.status();
    files.channel = *std::move(channel);
  }
  job_files_ = std::make_shared<param_store::JobFiles>(std::move(files));
  files_.Post([this, files = job_files_] {  // before the first line and the first file
    const absl::Status status = files->Look();
    if (!status.ok()) Log(services::kWarning, "files_way_unknown").Kv("status", status);
    Post([this] { SendState(); });
  });
  return absl::OkStatus();
}

absl::Status Task::SetUp(const node::v1::StartTask& start) {
  absl::StatusOr<std::shared_ptr<const Job>> job =
      MakeJob(start.resolved_spec(), start.spec_digest());
  if (!job.ok()) return data::InvalidSpec(job.status().message());
  job_ = *std::move(job);
  has_files_key_ = !start.files_key().empty();
  if (absl::Status status = CheckRoots(start); !status.ok()) return status;
  if (absl::Status status = MakeFiles(start); !status.ok()) return status;
  const data::DatasetOptions dataset = MakeDatasetOptions(job_->spec.spec(), options_.data_roots);
  auto train = data::OpenDataset(dataset, data::Split::kTrain);
  if (!train.ok()) return train.status();
  train_ = *std::move(train);
  // A file may have changed since the job was admitted.
  const auto check = [this](const char* name, const data::DatasetInfo& info, int64_t count) {
    const training::Shape shape = {info.channels, info.height, info.width};
    const training::Shape& want = job_->graph.input_shape();
    if (info.count == count && shape == want) return absl::OkStatus();
    return data::InvalidSpec(absl::StrCat(
        "the ", name, " set has ", info.count, " samples of ", training::ShapeToString(shape),
        ", the resolved spec says ", count, " of ", training::ShapeToString(want)));
  };
  if (absl::Status status = check("training", train_->info(), job_->spec.dataset().train_samples());
      !status.ok()) {
    return status;
  }
  if (job_->evaluation.block_count() > 0) {
    auto test = data::OpenDataset(dataset, data::Split::kTest);
    if (!test.ok()) return test.status();
    test_ = *std::move(test);
    if (absl::Status status = check("test", test_->info(), job_->spec.dataset().test_samples());
        !status.ok()) {
      return status;
    }
  }
  core::TaskCoreOptions worker;
  worker.rank = rank_;
  worker.total_steps = job_->spec.total_steps();
  worker.device_count = static_cast<int>(options_.devices.size());
  worker.lanes_together = Together();
  lanes_at_once_ = LanesAtOnce();
  worker.lanes_at_once = lanes_at_once_ > 1;
  worker.lanes_apart = job_->lanes_apart();
  worker.asynchronous = job_->asynchronous();
  worker.keeps_residuals = job_->keeps_residuals();
  core_ = std::make_unique<core::TaskCore>(job_->samples, job_->evaluation, worker);
  gradients_ = std::make_unique<BufferPool>(job_->layout.total_floats());
  if (job_->compresses()) {
    encoder_.emplace(job_->layout, job_->gradient_format,
                     job_->keeps_residuals() ? Residuals::kKept : Residuals::kDropped);
  }
  permutations_ = std::make_shared<EpochPermutations>(job_);
  step_times_.resize(options_.devices.size());
  counters_.planned_bytes.resize(options_.devices.size());
  if (absl::Status status = MakeExchange(start); !status.ok()) return status;

  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int threads = options_.cpu_threads > 0 ? options_.cpu_threads : cores;
  devices_starting_ = static_cast<int>(options_.devices.size());
  for (size_t i = 0; i < options_.devices.size(); ++i) {
    const int device = static_cast<int>(i);
    DeviceRunner::Options runner;
    runner.index = device;
    runner.device = options_.devices[i];
    runner.threads = std::max(1, threads / static_cast<int>(options_.devices.size()));
    runner.read_ahead = job_->spec.spec().data().prefetch_batches();
    runner.lanes_at_once = lanes_at_once_;
    const bool on_gpu = absl::StartsWith(runner.device, "cuda");
    DeviceRunner::Callbacks callbacks;
    callbacks.on_ready = [this, device](const std::string& description, int64_t planned_bytes) {
      Log(services::kInfo, "device_ready")
          .Kv("device", description)
          .Kv("precision", engine::PrecisionName(job_->precision()))
          .Kv("planned_bytes", planned_bytes);
      Post([this, device, planned_bytes] {
        counters_.planned_bytes[device] = planned_bytes;
        if (--devices_starting_ > 0 || ended_) return;
        if (!Together()) return Ready();
        ++devices_starting_;  // the group
        StartGroup();
      });
    };
    callbacks.on_lane = [this, device](int64_t work, int32_t lane, const training::SealSums& sums,
                                       const ComputeTimes& times) {
      Post([this, device, work, lane, sums, times] {
        --lanes_running_;
        CountLane(device, times, sums.samples);
        counters_.reduce_bytes += job_->layout.total_floats() * static_cast<int64_t>(sizeof(float));
        Give(core::LaneComputed{device, work, lane, sums});
      });
    };
    callbacks.on_block = [this, device](const BlockCommand& command,
                                        const training::SealSums& sums) {
      Post([this, device, lineage = command.lineage, version = command.version,
            block = command.block, sums] {
        --blocks_running_;
        Give(core::EvaluationComputed{device, lineage, version, block, sums});
      });
    };
    callbacks.on_failed = [this, on_gpu](const absl::Status& status) {
      Post([this, on_gpu, status] {
        Give(core::Failed{FailureReasonOf(status, on_gpu), std::string(status.message())});
      });
    };
    runners_.push_back(std::make_unique<DeviceRunner>(std::move(runner), job_, *train_, test_.get(),
                                                      std::move(callbacks)));
  }
  return absl::OkStatus();
}

// For the lanes that a device has now. Lanes that it takes over are computed in further passes.
int64_t Task::LanesAtOnce() const {
  if (job_->lanes_apart()) return 1;
  for (const std::string& device : options_.devices) {
    if (!absl::StartsWith(device, "cpu")) return 1;
  }
  const int64_t lanes = std::count(view_.lane_owners().begin(), view_.lane_owners().end(), rank_);
  const auto devices = static_cast<int64_t>(options_.devices.size());
  return job_->LanesAtOnce((lanes + devices - 1) / devices);
}

void Task::Ready() {
  clock_.emplace(strand_.Now());
  const common::v1::View view = view_;
  ChangeView(view);
}

absl::Status Task::MakeExchange(const node::v1::StartTask& start) {
  ExchangeCallbacks callbacks;
  callbacks.on_weights = [this](const CompleteWeights& weights) { OnWeights(weights); };
  callbacks.on_failed = [this](const absl::Status& status) {
    Post([this, status] {
      Give(core::Failed{FailureReasonOf(status), std::string(status.message())});
    });
  };
  if (job_->uses_shards()) {
    exchange::ExchangeClientOptions options;
    options.core.job_id = job_->id();
    options.core.spec_digest = job_->digest;
    options.core.rank = rank_;
    options.core.asynchronous = job_->asynchronous();
    options.core.lanes = job_->spec.lanes();
    options.core.gradient_format = job_->gradient_format;
    if (training::spec::WorkersUpdate(job_->spec.spec())) options.core.optimizer = job_->optimizer;
    options.security = options_.security;
    exchange_ =
        std::make_unique<exchange::ExchangeClient>(job_->layout, options, strand_, callbacks);
    return absl::OkStatus();
  }
  LocalExchange::Base base;
  base.manifest = start.base_manifest();
  auto orders = training::spec::ReadOrders(start.orders());
  if (!orders.ok()) return orders.status();
  base.orders = *std::move(orders);
  base.files = job_files_.get();
  LocalExchange::LocalCallbacks local;
  local.on_lead = [this] { SendState(); };
  step_log_ = std::make_unique<param_store::StepLog>(files_, job_->id(), job_->spec.storage_path(),
                                                     job_files_.get());
  local.on_line = [this](std::string line) { step_log_->Append(std::move(line)); };
  local.on_checkpoint = [this](LocalExchange::Snapshot snapshot) {
    SaveShardFile(std::move(snapshot));
  };
  if (Together() && job_->devices_update) {
    local.on_update = [this](LocalExchange::DeviceUpdate update) { GiveUpdate(std::move(update)); };
  }
  auto exchange =
      std::make_unique<LocalExchange>(job_, strand_, callbacks, std::move(local), std::move(base));
  local_ = exchange.get();
  exchange_ = std::move(exchange);
  return absl::OkStatus();
}

void Task::ChangeView(const common::v1::View& view, const std::string& base_manifest) {
  if (ended_) return;
  if (view.lineage() > view_.lineage()) base_manifest_ = base_manifest;
  if (view.lineage() > view_.lineage() ||
      (view.lineage() == view_.lineage() && view.generation() > view_.generation())) {
    view_ = view;
  }
  if (devices_starting_ > 0 || core_ == nullptr) return;  // used when all devices are ready
  Give(core::ViewGiven{view_.lineage(),
                       view_.generation(),
                       {view_.lane_owners().begin(), view_.lane_owners().end()}});
}

// Ends a task that nobody can order to end any more.
void Task::CheckOrphaned() {
  const absl::Duration now = strand_.Now();
  if (coordinator_up_ || exchange_->connected()) {
    reached_at_ = now;
    return;
  }
  const absl::Duration limit = absl::Seconds(job_->spec.spec().limits().orphan_timeout_seconds());
  if (now - reached_at_ < limit) return;
  Give(core::Failed{"WorkerLost",
                    absl::StrCat("the task reached neither the coordinator nor a shard for ",
                                 absl::FormatDuration(limit), " (limits.orphan_timeout)")});
}

void Task::Stop() {
  if (job_files_ != nullptr) job_files_->Cancel();
  if (ended_) return;
  if (core_ != nullptr) return Give(core::StopOrder{});
  ended_ = true;
  callbacks_.on_exit(false);
}

// ---- events and effects ----

void Task::Give(const core::Event& event) {
  if (ended_) return;
  pending_.push_back(event);
  if (in_effects_) return;  // caused by an effect: handled after the earlier events
  in_effects_ = true;
  while (!pending_.empty() && !ended_) {
    const core::Event next = std::move(pending_.front());
    pending_.erase(pending_.begin());
    DoAll(core_->Step(next, strand_.Now()));
  }
  pending_.clear();
  in_effects_ = false;
  EnterPhase();
  SetTimer();
}

void Task::DoAll(const core::Effects& effects) {
  for (const core::Effect& effect : effects) {
    std::visit([this](const auto& e) { Do(e); }, effect);
  }
  if (together_.empty()) return;
  if (group_ != nullptr) {
    GiveGroupOrder();
  } else {
    GiveLaneCommands();
  }
}

void Task::UseSchedule() {
  auto schedule = std::make_shared<LaneSchedule>();
  schedule->job = job_;
  schedule->permutations = permutations_;
  schedule->lane_owners.assign(view_.lane_owners().begin(), view_.lane_owners().end());
  schedule->rank = rank_;
  schedule->device_count = static_cast<int>(options_.devices.size());
  schedule->lanes_at_once = lanes_at_once_ > 1;
  schedule_ = std::move(schedule);
}

void Task::Do(const core::OpenLineage& e) {
  CAPSTAN_CHECK(e.lineage == view_.lineage());
  UseSchedule();
  weights_ = CompleteWeights();
  if (encoder_.has_value()) {
    const double lost = job_->keeps_residuals() ? 0 : encoder_->Norm();
    if (lost > 0) Log(services::kInfo, "residuals_lost").Kv("norm", lost);
    encoder_->Forget();
    state_.clear_residual_norm();
  }
  reports_.Reset(e.lineage);
  files_.Post([this, lineage = e.lineage] {
    if (step_log_ != nullptr) step_log_->SetLineage(lineage);
  });
  exchange::Route route;
  route.lineage = e.lineage;
  for (const common::v1::ShardRoute& shard : view_.shards()) {
    route.shards.push_back(
        {shard.node(), shard.address(), shard.first_chunk(), shard.chunk_count()});
  }
  absl::Status status = exchange_->Open(route);
  if (!status.ok()) Give(core::Failed{FailureReasonOf(status), std::string(status.message())});
}

void Task::Do(const core::UseView& e) {
  UseSchedule();
  if (encoder_.has_value()) KeepOwnResiduals();
}

void Task::Do(const core::ComputeLane& e) {
  CAPSTAN_CHECK(e.lineage == weights_.lineage && !weights_.stop);
  CAPSTAN_CHECK(job_->asynchronous() || e.step == weights_.version);
  std::shared_ptr<LaneFold>& fold = folds_[e.work];
  if (fold == nullptr) {
    fold = std::make_shared<LaneFold>(job_->samples.StepTree(e.step),
                                      job_->lanes_apart() ? LaneSums::kApart : LaneSums::kTree);
  }
  together_.push_back(e);
}

// The commands that the core gave together. Lanes of a device belong to one work and are adjacent.
void Task::GiveLaneCommands() {
  for (size_t i = 0; i < together_.size();) {
    const core::ComputeLane& first = together_[i];
    LaneCommand command;
    command.work = first.work;
    command.lineage = first.lineage;
    command.step = first.step;
    command.loss_scale = weights_.loss_scale;
    command.weights = weights_.weights;
    command.weights_id = WeightsId();
    command.gradients = gradients_.get();
    command.fold = folds_.at(first.work);
    command.schedule = schedule_;
    for (; i < together_.size() && together_[i].device == first.device; ++i) {
      CAPSTAN_CHECK(together_[i].work == first.work);
      command.lanes.push_back(together_[i].lane);
    }
    lanes_running_ += static_cast<int>(command.lanes.size());
    runners_[first.device]->Compute(std::move(command));
  }
  together_.clear();
}

void Task::Do(const core::FoldAndPush& e) {
  const StepPhase before = clock_->Enter(StepPhase::kPush, strand_.Now());
  bool finite = true;
  if (DevicesKeep()) {
    local_->PushKept(e.step, e.block, kept_finite_);
  } else {
    LaneFold& fold = *folds_.at(e.work);
    std::shared_ptr<FloatBuffer> sum =
        job_->lanes_apart() ? fold.Take(e.block.first_lane) : fold.Value(e.block);
    CAPSTAN_CHECK(sum != nullptr);
    if (job_->asynchronous()) {  // rule A6
      finite = e.finite_loss && ClipLane(job_->layout, job_->lane_clip_norm, sum->span());
    }
    if (finite && encoder_.has_value()) {
      sum = Encoded(e, std::move(sum));
      finite = sum != nullptr;
    }
    if (finite) {
      exchange_->Push(e.step, e.block, std::move(sum));
    } else {
      if (encoder_.has_value()) encoder_->Skipped(LaneStepOf(e));
      exchange_->Skip(e.step, e.block.first_lane);
    }
  }
  clock_->Enter(before, strand_.Now());
  Give(core::BlockPushed{e.work, e.block, finite});
}

std::shared_ptr<FloatBuffer> Task::Encoded(const core::FoldAndPush& e,
                                           std::shared_ptr<FloatBuffer> gradient) {
  std::shared_ptr<FloatBuffer> encoded = encoder_->Encode(LaneStepOf(e), gradient->span());
  KeepOwnResiduals();  // the lane may have left while it was computed
  if (local_ == nullptr && !job_->asynchronous()) return encoded;
  encoder_->Decode(*encoded, gradient->span());
  if (local_ != nullptr) return gradient;
  // Rule A6, for what shards apply: a large number may be infinite in the format.
  return training::AllFinite(gradient->span()) ? encoded : nullptr;
}

LaneStep Task::LaneStepOf(const core::FoldAndPush& e) const {
  LaneStep at;
  at.step = e.step;
  at.lane = e.block.first_lane;
  at.step_before = at.step - 1;
  while (at.step_before >= 0 && job_->samples.LaneSampleCount(at.step_before, at.lane) == 0) {
    --at.step_before;
  }
  at.loss_scale = weights_.loss_scale;
  at.samples = job_->GradientSamples(at.step, at.lane);
  return at;
}

void Task::KeepOwnResiduals() {
  if (job_->keeps_residuals()) return;  // the owners of a lineage stay
  encoder_->KeepLanes([this](int32_t lane) { return view_.lane_owners(lane) == rank_; });
}

void Task::Do(const core::DropWork& e) { folds_.erase(e.work); }

void Task::Do(const core::SendSeal& e) {
  if (job_->asynchronous()) {
    exchange_->SendLaneSeal(e.step, e.block.first_lane, e.sums, e.staleness);
  } else {
    exchange_->SendSeal(e.step, e.block, e.sums);
  }
}

void Task::Do(const core::AskForWeights& e) { exchange_->AskForWeights(e.step, e.lane); }

void Task::Do(const core::EvaluateBlock& e) {
  CAPSTAN_CHECK(e.lineage == weights_.lineage && e.version == weights_.version);
  ++blocks_running_;
  runners_[e.device]->Evaluate({e.lineage, e.version, e.block, weights_.weights, WeightsId()});
}

void Task::Do(const core::SendEvaluationPart& e) {
  exchange_->SendEvaluation(e.version, e.block, e.sums);
}

void Task::Do(const core::ReportState& e) {
  state_.set_lineage(e.lineage);
  state_.set_generation(e.generation);
  state_.set_step(e.step);
  switch (e.phase) {
    case core::TaskPhase::kStarting:
      state_.set_phase(node::v1::TASK_PHASE_STARTING);
      break;
    case core::TaskPhase::kRunning:
      state_.set_phase(node::v1::TASK_PHASE_RUNNING);
      break;
    case core::TaskPhase::kFinished:
      state_.set_phase(node::v1::TASK_PHASE_FINISHED);
      break;
    case core::TaskPhase::kFailed:
      state_.set_phase(node::v1::TASK_PHASE_FAILED);
      break;
  }
  state_.set_reason(e.reason);
  state_.set_message(e.message);
  if (e.phase == core::TaskPhase::kFailed) {
    Log(services::kError, "task_failed").Kv("reason", e.reason).Kv("message", e.message);
  }
  SendState();
}

void Task::Do(const core::Exit& e) {
  ended_ = true;
  SendCounters();
  callbacks_.on_exit(e.failed);
}

void Task::OnWeights(const CompleteWeights& weights) {
  if (ended_) return;
  // Weights of an asynchronous job come more often than its steps.
  if (!job_->asynchronous() || weights.marks != weights_.marks) CountStep(weights);
  if (encoder_.has_value()) {
    for (const int64_t step : weights.SkippedSteps()) encoder_->Skipped(step);
  }
  weights_ = weights;
  Give(core::WeightsComplete{weights.lineage, weights.version, weights.stop, weights.evaluate,
                             weights.marks, weights.floor, weights.max_staleness, weights.saved});
}

int64_t Task::WeightsId() const {
  return job_->asynchronous() ? weights_.serial : weights_.version;
}

// ---- time ----

void Task::SetTimer() {
  if (ended_) return;
  const absl::Duration now = strand_.Now();
  const absl::Duration due = std::max(std::min({core_->NextDeadline(), report_at_, counters_at_}),
                                      now + absl::Milliseconds(1));
  // An earlier timer is already set. (It is never postponed, because events may come faster than
  // it.)
  if (timer_at_ <= due) return;
  timer_at_ = due;
  strand_.PostAfter(timer_at_ - now, [this, alive = alive_, at = timer_at_] {
    if (!*alive || ended_ || timer_at_ != at) return;
    timer_at_ = absl::InfiniteDuration();
    CheckOrphaned();
    if (ended_) return;
    if (strand_.Now() >= counters_at_) SendCounters();
    if (strand_.Now() >= report_at_) {
      SendState();
      const std::string waiting = exchange_->Waiting();
      if (!waiting.empty() && core_->waiting() && local_ == nullptr) {
        Log(services::kWarning, "waiting")
            .Kv("task", core_->Waiting())
            .Kv("for", waiting)
            .Limit("waiting");
      }
    }
    Give(core::Tick{});
  });
}

void Task::EnterPhase() {
  if (!clock_.has_value()) return;
  clock_->Enter(lanes_running_ > 0    ? StepPhase::kForwardBackward
                : blocks_running_ > 0 ? StepPhase::kEvaluate
                                      : StepPhase::kBarrierWait,
                strand_.Now());
}

void Task::CountLane(int device, const ComputeTimes& times, int64_t samples) {
  StepTimes& step = step_times_[device];
  step.data_wait += times.data_wait;
  step.reduce += times.reduce;
  step.compute += times.compute;
  if (times.forward_share >= 0) {
    step.forward += times.compute * times.forward_share;
  } else {
    step.split = false;
  }
  step.queued_batches = times.queued_batches;
  counters_.read_bytes += times.read_bytes;
  counters_.samples += samples;
}

// The next version is complete, so the current step is over.
void Task::CountStep(const CompleteWeights& next) {
  if (!clock_.has_value()) return;
  const absl::Duration now = strand_.Now();
  clock_->Enter(clock_->phase(), now);
  clock_->Move(StepPhase::kBarrierWait, StepPhase::kPull, next.pull);
  // With `local` the update runs inside Push or SendSeal, whose time was counted under another
  // phase.
  for (const StepPhase phase : {StepPhase::kForwardBackward, StepPhase::kBarrierWait}) {
    if (clock_->spent(phase) < next.update) continue;
    clock_->Move(phase, StepPhase::kUpdate, next.update);
    break;
  }
  StepTimes most;
  StepTimes all;
  counters_.queued_batches = 0;
  for (StepTimes& times : step_times_) {
    most.data_wait = std::max(most.data_wait, times.data_wait);
    most.reduce = std::max(most.reduce, times.reduce);
    all.compute += times.compute;
    all.forward += times.forward;
    all.split = all.split && times.split;
    counters_.queued_batches += times.queued_batches;
    const int64_t queued = times.queued_batches;
    times = StepTimes();
    times.queued_batches = queued;  // a device may have no lane in a short step
  }
  clock_->Move(StepPhase::kForwardBackward, StepPhase::kDataWait, most.data_wait);
  clock_->Move(StepPhase::kForwardBackward, StepPhase::kLocalReduce, most.reduce);
  if (all.split && all.compute > absl::ZeroDuration()) {
    const absl::Duration computed = clock_->spent(StepPhase::kForwardBackward) - compute_at_step_;
    const absl::Duration forward = computed * absl::FDivDuration(all.forward, all.compute);
    clock_->Move(StepPhase::kForwardBackward, StepPhase::kForward, forward);
    clock_->Move(StepPhase::kForwardBackward, StepPhase::kBackward, computed - forward);
  }
  compute_at_step_ = clock_->spent(StepPhase::kForwardBackward);
  const absl::Duration barrier = clock_->spent(StepPhase::kBarrierWait);
  if (next.lineage == weights_.lineage) {
    ++steps_;
    ++counters_.steps;
    counters_.step_seconds.Observe(absl::ToDoubleSeconds(now - step_began_),
                                   services::LatencyBuckets());
    counters_.barrier_seconds.Observe(
        absl::ToDoubleSeconds(std::max(barrier - barrier_at_step_, absl::ZeroDuration())),
        services::LatencyBuckets());
  }
  if (local_ == nullptr) {
    const double pushed = exchange_->stats().push_seconds;
    if (pushed > pushed_at_step_) {
      counters_.push_seconds.Observe(pushed - pushed_at_step_, services::LatencyBuckets());
    }
    pushed_at_step_ = pushed;
    counters_.pull_seconds.Observe(absl::ToDoubleSeconds(next.pull), services::LatencyBuckets());
  }
  if (most.reduce > absl::ZeroDuration()) {
    counters_.reduce_seconds.Observe(absl::ToDoubleSeconds(most.reduce),
                                     services::LatencyBuckets());
  }
  step_began_ = now;
  barrier_at_step_ = barrier;
}

void Task::SendState() {
  report_at_ = strand_.Now() + kReportInterval;
  if (job_files_ != nullptr) state_.set_files_way(job_files_->way());
  if (local_ != nullptr && core_->lineage() > 0) *state_.mutable_lead() = local_->lead_state();
  if (clock_.has_value()) {
    clock_->Enter(clock_->phase(), strand_.Now());
    node::v1::StepPhases& phases = *state_.mutable_phases();
    const auto seconds = [this](StepPhase phase) {
      return absl::ToDoubleSeconds(clock_->spent(phase));
    };
    phases.set_steps(steps_);
    phases.set_total(absl::ToDoubleSeconds(clock_->total()));
    phases.set_data_wait(seconds(StepPhase::kDataWait));
    phases.set_forward_backward(seconds(StepPhase::kForwardBackward));
    phases.set_forward(seconds(StepPhase::kForward));
    phases.set_backward(seconds(StepPhase::kBackward));
    phases.set_local_reduce(seconds(StepPhase::kLocalReduce));
    phases.set_push(seconds(StepPhase::kPush));
    phases.set_barrier_wait(seconds(StepPhase::kBarrierWait));
    phases.set_pull(seconds(StepPhase::kPull));
    phases.set_update(seconds(StepPhase::kUpdate));
    phases.set_evaluate(seconds(StepPhase::kEvaluate));
  }
  reports_.Fill(state_);
  MeasureResiduals();
  callbacks_.on_state(state_);
}

void Task::MeasureResiduals() {
  if (!encoder_.has_value() || job_->keeps_residuals()) return;
  state_.set_residual_norm(encoder_->Norm());
}

void Task::SendCounters() {
  counters_at_ = strand_.Now() + kReportInterval;
  if (exchange_ != nullptr) counters_.exchange = exchange_->stats();
  counters_.cpu_seconds = services::OwnCpuSeconds();
  counters_.resident_bytes = services::OwnResidentBytes();
  callbacks_.on_counters(counters_);
}

}  // namespace capstan::gpu_worker
