#include "gpu_worker/engine/cpu/cpu_plan.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cpu/vendor_threads.h"
#include "services/check/check.h"
#include "training/fold/add.h"

namespace capstan::engine {
namespace {

constexpr int kSizeCount = static_cast<int>(kBlockSizes.size());
static_assert(kBlockSizes[0] == kBlockSamples);

}  // namespace

absl::StatusOr<std::unique_ptr<CpuPlan>> CpuPlan::Create(const training::Graph& graph,
                                                         const std::vector<int64_t>& offsets,
                                                         int64_t total_floats,
                                                         const PlanOptions& options,
                                                         bool use_onednn) {
  auto plan = std::unique_ptr<CpuPlan>(new CpuPlan(total_floats, options.max_batch));
  const absl::Status status = plan->Build(graph, offsets, options, use_onednn);
  if (!status.ok()) return status;
  return plan;
}

int CpuPlan::SizeIndex(int64_t count) {
  int index = 0;
  while (index + 1 < kSizeCount && kBlockSizes[index + 1] >= count) ++index;
  return index;
}

absl::Status CpuPlan::Build(const training::Graph& graph, const std::vector<int64_t>& offsets,
                            const PlanOptions& options, bool use_onednn) {
  const OneVendorThread one_thread;
  absl::StatusOr<Lowered> lowered = Lower(graph);
  if (!lowered.ok()) return lowered.status();
  lowered_ = *std::move(lowered);
  for (const Stage& stage : lowered_.stages) {
    StageParameters at;
    if (stage.kind == StageKind::kLinear) {
      at.weight = offsets[graph.parameter_of(stage.node, "weight")];
      if (stage.linear.bias) at.bias = offsets[graph.parameter_of(stage.node, "bias")];
    }
    parameters_.push_back(at);
  }

  int64_t arena_bytes = 0;
  for (int i = 0; i < kSizeCount; ++i) {
    // Lanes of 1 to max_batch samples use the sizes that some of them need.
    const bool needed = i == kSizeCount - 1 || kBlockSizes[i + 1] < max_batch_;
    if (!needed) continue;
    absl::StatusOr<std::unique_ptr<BlockProgram>> program =
        BlockProgram::Create(lowered_, parameters_, kBlockSizes[i], use_onednn);
    if (!program.ok()) return program.status();
    programs_[i] = *std::move(program);
    arena_bytes = std::max(arena_bytes, programs_[i]->arena_bytes());
    info_.weight_bytes += programs_[i]->weight_bytes();
    if (info_.kernels.empty()) info_.kernels = programs_[i]->Describe();
  }

  const int64_t flat_bytes = total_floats_ * static_cast<int64_t>(sizeof(float));
  absl::StatusOr<AlignedBytes> weights = AllocateAligned(flat_bytes, "weights");
  if (!weights.ok()) return weights.status();
  weights_ = *std::move(weights);
  info_.weight_bytes += flat_bytes;

  const int64_t max_blocks = (max_batch_ + kBlockSamples - 1) / kBlockSamples;
  const int worker_count = static_cast<int>(std::min<int64_t>(options.threads, max_blocks));
  for (int w = 0; w < worker_count; ++w) {
    Worker worker;
    absl::StatusOr<AlignedBytes> arena = AllocateAligned(arena_bytes, "arena");
    if (!arena.ok()) return arena.status();
    worker.arena = *std::move(arena);
    const int64_t slot_bytes = RoundUp(flat_bytes, kTensorAlignBytes);
    absl::StatusOr<AlignedBytes> memory = AllocateAligned(2 * slot_bytes, "gradients of blocks");
    if (!memory.ok()) return memory.status();
    worker.gradient_memory = *std::move(memory);
    for (int k = 0; k < 2; ++k) {
      worker.gradients[k].data =
          reinterpret_cast<float*>(worker.gradient_memory.get() + k * slot_bytes);
    }
    for (int i = 0; i < kSizeCount; ++i) {
      std::unique_ptr<BlockRunner> runner;
      if (programs_[i] != nullptr) {
        absl::StatusOr<std::unique_ptr<BlockRunner>> bound = programs_[i]->Bind(worker.arena.get());
        if (!bound.ok()) return bound.status();
        runner = *std::move(bound);
      }
      worker.runners.push_back(std::move(runner));
    }
    workers_.push_back(std::move(worker));
    info_.arena_bytes += arena_bytes;
    info_.gradient_bytes += 2 * slot_bytes;
  }
  pool_ = std::make_unique<ThreadPool>(worker_count);
  {
    MutexLock lock(mu_);
    finished_.resize(max_blocks);
    sums_.resize(max_blocks);
  }
  info_.block_samples = kBlockSamples;
  FindReadyPrefixes(offsets, graph);
  return absl::OkStatus();
}

void CpuPlan::FindReadyPrefixes(const std::vector<int64_t>& offsets, const training::Graph& graph) {
  std::vector<bool> done(offsets.size(), false);
  for (int s = static_cast<int>(lowered_.stages.size()) - 1; s >= 0; --s) {
    const Stage& stage = lowered_.stages[s];
    if (stage.kind == StageKind::kLinear) {
      done[graph.parameter_of(stage.node, "weight")] = true;
      if (stage.linear.bias) done[graph.parameter_of(stage.node, "bias")] = true;
    }
    int64_t ready = total_floats_;
    for (size_t p = 0; p < offsets.size(); ++p) {
      if (!done[p]) ready = std::min(ready, offsets[p]);
    }
    info_.backward.push_back({stage.name, ready});
  }
}

absl::Status CpuPlan::CheckBatch(const SampleBatch& batch, bool labels) const {
  if (!weights_loaded_) {
    return absl::FailedPreconditionError("plan: no weights, want LoadWeights first");
  }
  if (batch.count < 1 || batch.count > max_batch_) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.count: ", batch.count, ", want 1 to ", max_batch_));
  }
  if (!labels) return absl::OkStatus();
  for (int64_t i = 0; i < batch.count; ++i) {
    if (batch.labels[i] < 0 || batch.labels[i] >= lowered_.classes) {
      return absl::InvalidArgumentError(absl::StrCat("label of sample ", i, ": ", batch.labels[i],
                                                     ", want 0 to ", lowered_.classes - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CpuPlan::LoadWeights(const float* weights) {
  std::memcpy(weights_.get(), weights, static_cast<size_t>(total_floats_) * sizeof(float));
  weights_current_.fill(false);
  weights_loaded_ = true;
  return absl::OkStatus();
}

// A lane uses at most two sizes of block; the others keep their old weights.
absl::Status CpuPlan::PrepareWeights(int64_t count) {
  const int64_t rest = count % kBlockSamples;
  for (int i = 0; i < kSizeCount; ++i) {
    const bool used = (i == 0 && count >= kBlockSamples) || (rest > 0 && i == SizeIndex(rest));
    if (!used || weights_current_[i]) continue;
    const absl::Status status =
        programs_[i]->LoadWeights(reinterpret_cast<const float*>(weights_.get()));
    if (!status.ok()) return status;
    weights_current_[i] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<LaneResult> CpuPlan::ComputeLane(const SampleBatch& batch, double loss_scale,
                                                float* gradient) {
  const absl::Status status = CheckBatch(batch, /*labels=*/true);
  if (!status.ok()) return status;
  Job job;
  job.mode = PassMode::kTrain;
  job.batch = batch;
  job.loss_scale = loss_scale;
  job.gradient = gradient;
  return RunLane(job);
}

absl::StatusOr<LaneResult> CpuPlan::Evaluate(const SampleBatch& batch) {
  const absl::Status status = CheckBatch(batch, /*labels=*/true);
  if (!status.ok()) return status;
  Job job;
  job.mode = PassMode::kEvaluate;
  job.batch = batch;
  return RunLane(job);
}

absl::Status CpuPlan::Predict(const SampleBatch& batch, float* logits) {
  const absl::Status status = CheckBatch(batch, /*labels=*/false);
  if (!status.ok()) return status;
  Job job;
  job.mode = PassMode::kPredict;
  job.batch = batch;
  job.logits = logits;
  return RunLane(job).status();
}

absl::StatusOr<LaneResult> CpuPlan::RunLane(const Job& job) {
  const OneVendorThread one_thread;
  const absl::Status status = PrepareWeights(job.batch.count);
  if (!status.ok()) return status;
  job_ = job;
  job_.blocks = (job.batch.count + kBlockSamples - 1) / kBlockSamples;
  {
    MutexLock lock(mu_);
    next_block_ = 0;
    next_add_ = 0;
    error_ = absl::OkStatus();
    std::fill(finished_.begin(), finished_.end(), nullptr);
  }
  for (Worker& worker : workers_) {
    for (GradientBuffer& gradient : worker.gradients) gradient.block = -1;
  }
  const int workers = static_cast<int>(std::min<int64_t>(pool_->threads(), job_.blocks));
  pool_->Run(
      workers, [](void* plan, int worker) { static_cast<CpuPlan*>(plan)->WorkOn(worker); }, this);

  MutexLock lock(mu_);
  if (!error_.ok()) return error_;
  LaneResult result;
  result.samples = job_.batch.count;
  if (job_.mode == PassMode::kPredict) return result;
  CAPSTAN_CHECK(job_.mode != PassMode::kTrain || next_add_ == job_.blocks);
  double forward = 0;
  double backward = 0;
  for (int64_t b = 0; b < job_.blocks; ++b) {
    result.loss_sum += sums_[b].loss;
    result.correct += sums_[b].correct;
    forward += sums_[b].forward_seconds;
    backward += sums_[b].backward_seconds;
  }
  if (forward + backward > 0) result.forward_share = forward / (forward + backward);
  return result;
}

void CpuPlan::WorkOn(int index) {
  Worker& worker = workers_[index];
  const InputGeometry& in = lowered_.input;
  const int64_t image_floats = in.channels * in.full_height * in.full_width;
  const bool train = job_.mode == PassMode::kTrain;
  for (;;) {
    GradientBuffer& buffer = worker.gradients[worker.next_gradient];
    int64_t block = 0;
    {
      MutexLock lock(mu_);
      while (error_.ok() && next_block_ < job_.blocks && buffer.block >= next_add_) {
        progress_.Wait(mu_);
      }
      if (!error_.ok() || next_block_ == job_.blocks) return;
      block = next_block_++;
    }
    const int64_t first = block * kBlockSamples;
    BlockInput input;
    input.images = job_.batch.images + first * image_floats;
    input.labels = job_.batch.labels == nullptr ? nullptr : job_.batch.labels + first;
    input.count = std::min(kBlockSamples, job_.batch.count - first);
    input.loss_scale = job_.loss_scale;
    input.gradient = buffer.data;
    input.logits = job_.logits == nullptr ? nullptr : job_.logits + first * lowered_.classes;
    LossSums sums;
    const absl::Status status = worker.runners[SizeIndex(input.count)]->Run(job_.mode, input, sums);

    MutexLock lock(mu_);
    if (!status.ok()) {
      if (error_.ok()) error_ = status;
      progress_.NotifyAll();
      return;
    }
    sums_[block] = sums;
    if (!train) continue;
    buffer.block = block;
    worker.next_gradient = 1 - worker.next_gradient;
    finished_[block] = buffer.data;
    AddFinished();
  }
}

void CpuPlan::AddFinished() {
  if (adding_) return;
  adding_ = true;
  while (next_add_ < job_.blocks && finished_[next_add_] != nullptr) {
    const float* const gradient = finished_[next_add_];
    const bool first = next_add_ == 0;
    mu_.Unlock();
    if (first) {
      std::memcpy(job_.gradient, gradient, static_cast<size_t>(total_floats_) * sizeof(float));
    } else {
      training::AddInto(job_.gradient, gradient, static_cast<size_t>(total_floats_));
    }
    mu_.Lock();
    ++next_add_;
    progress_.NotifyAll();
  }
  adding_ = false;
}

}  // namespace capstan::engine
