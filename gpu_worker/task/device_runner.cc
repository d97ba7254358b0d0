#include "gpu_worker/task/device_runner.h"

#include <algorithm>
#include <bit>
#include <new>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/data/failure.h"
#include "gpu_worker/engine/device/open.h"
#include "services/check/check.h"
#include "services/clock/clock.h"

namespace capstan::gpu_worker {
namespace {

// A training set of up to 1 GiB is kept on a GPU. It is copied in pieces.
constexpr int64_t kMostKeptFloats = int64_t{1} << 28;
constexpr int64_t kKeptAtATime = 1024;

}  // namespace

DeviceRunner::DeviceRunner(Options options, std::shared_ptr<const Job> job,
                           const data::Dataset& train, const data::Dataset* test,
                           Callbacks callbacks)
    : options_(std::move(options)),
      job_(std::move(job)),
      train_(train),
      test_(test),
      callbacks_(std::move(callbacks)),
      thread_([this] { Run(); }) {}

DeviceRunner::~DeviceRunner() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  thread_.join();
}

void DeviceRunner::Compute(LaneCommand command) { Give(std::move(command)); }
void DeviceRunner::Evaluate(BlockCommand command) { Give(std::move(command)); }

void DeviceRunner::Give(Command command) {
  MutexLock lock(mu_);
  CAPSTAN_CHECK(!command_.has_value());
  command_ = std::move(command);
  changed_.NotifyAll();
}

bool DeviceRunner::stopping() {
  MutexLock lock(mu_);
  return stopping_;
}

void DeviceRunner::Run() {
  absl::Status status;
  try {
    status = RunAll();
  } catch (const std::bad_alloc&) {
    status = data::HostOutOfMemory(absl::StrCat("device ", options_.device));
  }
  if (!status.ok()) callbacks_.on_failed(status);
}

absl::Status DeviceRunner::RunAll() {
  absl::StatusOr<std::unique_ptr<engine::Device>> device = engine::OpenDevice(options_.device);
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  engine::PlanOptions plan;
  plan.max_batch = job_->MaxBatch();
  plan.max_lane = job_->MaxLane();
  plan.max_lanes = options_.lanes_at_once;
  plan.threads = options_.threads;
  plan.deterministic = job_->spec.spec().training().deterministic();
  plan.precision = job_->precision();
  auto compiled = device_->Compile(job_->graph, job_->layout, plan);
  if (absl::IsUnimplemented(compiled.status())) {
    return data::InvalidSpec(
        absl::StrCat("device ", options_.device, ": ", compiled.status().message()));
  }
  if (!compiled.ok()) return compiled.status();
  plan_ = *std::move(compiled);
  if (job_->has_local_steps())
    local_steps_ = std::make_unique<LocalSteps>(job_, *plan_, [this] { return stopping(); });
  bytes_ = InBytes(train_, *plan_);
  reader_ = std::make_unique<LaneReader>(
      LaneReader::Options{options_.index, /*device_count=*/1, options_.read_ahead, bytes_}, job_,
      train_, [this] { return stopping(); });
  if (absl::Status status = KeepImages(); !status.ok()) return status;
  callbacks_.on_ready(absl::StrCat(device_->name(), ": ", device_->description()),
                      plan_->info().planned_bytes());
  for (;;) {
    Command command;
    {
      MutexLock lock(mu_);
      while (!command_.has_value() && !stopping_) changed_.Wait(mu_);
      if (stopping_) return absl::OkStatus();
      command = *std::move(command_);
      command_.reset();
    }
    absl::Status status = std::visit([this](auto& o) { return Do(o); }, command);
    if (!status.ok()) return stopping() ? absl::OkStatus() : status;
  }
}

absl::Status DeviceRunner::LoadWeights(int64_t lineage, int64_t id, const FloatBuffer& weights) {
  if (lineage == loaded_lineage_ && id == loaded_id_) return absl::OkStatus();
  absl::Status status = plan_->LoadWeights(weights.data());
  loaded_lineage_ = status.ok() ? lineage : -1;
  loaded_id_ = id;
  return status;
}

std::vector<training::LaneBlock> DeviceRunner::PassesOf(const LaneCommand& command) const {
  const training::LaneTree tree = job_->samples.StepTree(command.step);
  const auto most = static_cast<int32_t>(
      std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(plan_->info().max_lanes, 1))));
  std::vector<training::LaneBlock> passes;
  for (const training::LaneBlock& block : tree.LargestBlocks(command.lanes)) {
    const int32_t lanes = std::min(block.lane_count, most);
    for (int32_t i = 0; i < block.lane_count; i += lanes) {
      const training::LaneBlock pass = {block.first_lane + i, lanes};
      if (tree.HasLanes(pass)) passes.push_back(pass);
    }
  }
  return passes;
}

absl::Status DeviceRunner::Do(LaneCommand& command) {
  const std::vector<training::LaneBlock> passes = PassesOf(command);
  for (size_t i = 0; i < passes.size(); ++i) {
    if (stopping()) return absl::CancelledError("the task ends");
    absl::Status status = ComputePass(command, passes[i], /*last=*/i + 1 == passes.size());
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status DeviceRunner::ComputePass(LaneCommand& command, const training::LaneBlock& block,
                                       bool last) {
  const absl::Duration begin = MonotonicNow();
  const training::LaneTree tree = job_->samples.StepTree(command.step);
  const int32_t end = std::min(block.first_lane + block.lane_count, tree.lane_count());
  batches_.clear();
  for (int32_t lane = block.first_lane; lane < end; ++lane) {
    batches_.push_back(job_->BatchOf(command.step));
    if (!tree.HasLane(lane)) continue;
    absl::StatusOr<engine::SampleBatch> batch = Samples(command, lane, batches_.size() - 1);
    if (!batch.ok()) return batch.status();
    batches_.back() = *batch;
  }
  results_.resize(batches_.size());
  const absl::Duration read = MonotonicNow();
  const std::string work = absl::StrCat("step ", command.step, ", lane ", block.first_lane);
  std::shared_ptr<FloatBuffer> gradient = command.gradients->Lend();
  absl::Status status = ComputeBatches(command, block.first_lane, *gradient);
  if (!status.ok()) return data::InFront(work, status);
  const absl::Duration computed = MonotonicNow();
  status = command.fold->Add(block, std::move(gradient));
  if (!status.ok()) return status;
  ComputeTimes times{read - begin, computed - read, MonotonicNow() - computed};
  times.read_bytes = std::exchange(read_bytes_, 0);
  // Releases the command's references first, because the step may be over once the last callback
  // has run.
  const int64_t id = command.work;
  if (last) command = LaneCommand();
  for (size_t i = 0; i < results_.size(); ++i) {
    const engine::LaneResult& result = results_[i];
    if (result.samples == 0) continue;
    times.forward_share = result.forward_share;
    times.queued_batches = kept_ ? options_.read_ahead : reader_->queued();
    callbacks_.on_lane(id, block.first_lane + static_cast<int32_t>(i),
                       {result.samples, result.loss_sum, result.correct},
                       std::exchange(times, ComputeTimes()));
  }
  return absl::OkStatus();
}

absl::Status DeviceRunner::ComputeBatches(const LaneCommand& command, int32_t first_lane,
                                          FloatBuffer& out) {
  if (local_steps_ != nullptr) {
    loaded_lineage_ = -1;
    const auto result = local_steps_->Train(command.step, first_lane, batches_.front(),
                                            command.weights->span(), out.span());
    if (!result.ok()) return result.status();
    results_.front() = *result;
    return absl::OkStatus();
  }
  absl::Status status = LoadWeights(command.lineage, command.weights_id, *command.weights);
  if (!status.ok()) return status;
  const double loss_scale =
      command.loss_scale / static_cast<double>(job_->GradientSamples(command.step, first_lane));
  return plan_->ComputeLanes(batches_, loss_scale, out.data(), absl::MakeSpan(results_));
}

absl::Status DeviceRunner::Do(BlockCommand& command) {
  CAPSTAN_CHECK(test_ != nullptr);
  const training::EvalBlock block = job_->evaluation.Block(command.block);
  block_.indices.resize(block.sample_count);
  for (int64_t i = 0; i < block.sample_count; ++i) block_.indices[i] = block.first_sample + i;
  const bool bytes = InBytes(*test_, *plan_);
  absl::Status status = data::ReadLane(*test_, /*epoch=*/0, bytes, block_);
  if (!status.ok()) return status;
  const std::string work = absl::StrCat("evaluation of version ", command.version);
  status = LoadWeights(command.lineage, command.weights_id, *command.weights);
  if (!status.ok()) return data::InFront(work, status);
  engine::SampleBatch batch = WithSamples(engine::SampleBatch(), *test_, block_, bytes);
  batch.ids = nullptr;  // nothing is drawn
  absl::StatusOr<engine::LaneResult> result = plan_->Evaluate(batch);
  if (!result.ok()) return data::InFront(work, result.status());
  command.weights.reset();
  callbacks_.on_block(command, {result->samples, result->loss_sum, result->correct});
  return absl::OkStatus();
}

absl::StatusOr<engine::SampleBatch> DeviceRunner::Samples(const LaneCommand& command,
                                                          int32_t number, size_t place) {
  engine::SampleBatch lane = job_->BatchOf(command.step);
  if (kept_) {
    if (kept_lanes_.size() <= place) kept_lanes_.resize(place + 1);
    KeptLane& kept = kept_lanes_[place];
    kept.places.clear();
    kept.labels.clear();
    kept.ids = command.schedule->SamplesOf(command.step, number);
    for (const int64_t sample : kept.ids) {
      kept.places.push_back(static_cast<int32_t>(sample));
      kept.labels.push_back(labels_[sample]);
    }
    lane.labels = kept.labels.data();
    lane.count = static_cast<int64_t>(kept.labels.size());
    lane.kept = kept.places.data();
    lane.ids = kept.ids.data();
    return lane;
  }
  const absl::StatusOr<const data::LaneBatch*> batch =
      reader_->Read(command.schedule, command.step, number);
  if (!batch.ok()) return batch.status();
  read_bytes_ += static_cast<int64_t>((*batch)->indices.size()) * (ImageBytes(train_) + 1);
  return WithSamples(lane, train_, **batch, bytes_);
}

absl::Status DeviceRunner::KeepImages() {
  const int64_t size = train_.info().image_size(), whole = train_.info().count;
  if (whole * size > kMostKeptFloats || train_.varies()) return absl::OkStatus();
  if (train_.info().target_size > 0) return absl::OkStatus();  // only labels are kept with them
  std::vector<int64_t> indices;
  std::vector<float> images;
  std::vector<int32_t> labels;
  for (int64_t first = 0; first < whole; first += kKeptAtATime) {
    if (stopping()) return absl::OkStatus();
    const int64_t count = std::min(kKeptAtATime, whole - first);
    indices.resize(count);
    std::iota(indices.begin(), indices.end(), first);
    images.resize(count * size);
    labels.resize(count);
    absl::Status status = train_.Read(indices, /*epoch=*/0, images.data(), labels.data());
    if (!status.ok()) return status;
    status = plan_->KeepImages(images.data(), first, count, whole);
    // The CPU has no memory of its own to keep them in, and a full card works without them.
    if (absl::IsUnimplemented(status) || absl::IsResourceExhausted(status)) return absl::OkStatus();
    if (!status.ok()) return status;
    read_bytes_ += count * (size + 1);
    labels_.insert(labels_.end(), labels.begin(), labels.end());
  }
  kept_ = true;
  return absl::OkStatus();
}

}  // namespace capstan::gpu_worker
