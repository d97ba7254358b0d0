#include "gpu_worker/task/lane_reader.h"

#include <algorithm>
#include <utility>

#include "exchange/task/task_core.h"

namespace capstan::gpu_worker {

std::shared_ptr<const training::EpochPermutation> EpochPermutations::Get(int64_t epoch) {
  // Under the lock, because a second device would only make the same permutation again.
  MutexLock lock(mu_);
  std::shared_ptr<const training::EpochPermutation>& kept = kept_[epoch % 2];
  if (kept == nullptr || kept->epoch != epoch) {
    kept = std::make_shared<const training::EpochPermutation>(
        job_->samples.MakeEpochPermutation(epoch));
  }
  return kept;
}

std::vector<int32_t> LaneSchedule::LanesOf(int device, int64_t step) const {
  return exchange::task::PlanLanes(job->samples, lane_owners, rank, device_count, step,
                                   lanes_at_once)[device];
}

std::vector<int64_t> LaneSchedule::SamplesOf(int64_t step, int32_t lane) const {
  const auto permutation = permutations->Get(job->samples.EpochOf(step));
  return job->samples.LaneSamples(*permutation, job->samples.StepInEpoch(step), lane);
}

int64_t ImageBytes(const data::Dataset& set) {
  constexpr int64_t kFloatBytes = sizeof(float);
  return set.info().image_size() * (set.byte_values().empty() ? kFloatBytes : 1);
}

bool InBytes(const data::Dataset& set, const engine::Plan& plan) {
  return plan.takes_bytes() && !set.byte_values().empty();
}

engine::SampleBatch WithSamples(engine::SampleBatch batch, const data::Dataset& set,
                                const data::LaneBatch& lane, bool bytes) {
  if (bytes) {
    const absl::Span<const float> values = set.byte_values();
    batch.bytes = lane.bytes.data();
    batch.byte_values = values.data();
    batch.byte_tables = static_cast<int64_t>(values.size()) / engine::kByteValues;
  } else {
    batch.images = lane.images.data();
  }
  batch.labels = lane.labels.data();
  if (!lane.targets.empty()) batch.targets = lane.targets.data();
  batch.ids = lane.indices.data();
  batch.count = static_cast<int64_t>(lane.indices.size());
  return batch;
}

LaneReader::LaneReader(Options options, std::shared_ptr<const Job> job, const data::Dataset& train,
                       std::function<bool()> stopping)
    : options_(options), job_(std::move(job)), train_(train), stopping_(std::move(stopping)) {}

std::vector<int32_t> LaneReader::LanesOf(const LaneSchedule& schedule, int64_t step) const {
  std::vector<int32_t> lanes;
  for (int i = 0; i < options_.device_count; ++i) {
    const std::vector<int32_t> own = schedule.LanesOf(options_.first_device + i, step);
    lanes.insert(lanes.end(), own.begin(), own.end());
  }
  return lanes;
}

absl::Status LaneReader::FetchStep(const std::shared_ptr<const LaneSchedule>& schedule,
                                   int64_t step) {
  auto lists = [this, schedule](int64_t at) {
    std::vector<std::vector<int64_t>> samples;
    for (const int32_t lane : LanesOf(*schedule, at)) {
      samples.push_back(schedule->SamplesOf(at, lane));
    }
    return samples;
  };
  if (loader_ == nullptr) {
    data::BatchLoaderOptions options;
    options.first_step = step;
    options.end_step = job_->spec.total_steps();
    options.steps_per_epoch = job_->spec.steps_per_epoch();
    options.read_ahead = options_.read_ahead;
    options.bytes = options_.bytes;
    options.threads = std::max(1, job_->spec.spec().data().reader_threads());
    loader_ = std::make_unique<data::BatchLoader>(train_, options, lists);
    loader_next_ = step;
  } else if (schedule != loader_schedule_ || step < loader_next_ ||
             step > loader_next_ + options_.read_ahead) {
    loader_->Restart(step, lists);
    loader_next_ = step;
  }
  loader_schedule_ = schedule;
  while (!batch_.has_value() || batch_->step != step) {
    if (batch_.has_value()) {
      loader_->Recycle(*std::move(batch_));
      batch_.reset();
    }
    absl::StatusOr<data::StepBatch> next = loader_->Next(absl::Milliseconds(200));
    if (absl::IsDeadlineExceeded(next.status())) {
      if (stopping_()) return absl::CancelledError("the task ends");
      continue;
    }
    if (!next.ok()) return next.status();
    loader_next_ = next->step + 1;
    batch_ = *std::move(next);
  }
  batch_lanes_ = LanesOf(*schedule, step);
  return absl::OkStatus();
}

absl::StatusOr<const data::LaneBatch*> LaneReader::Read(
    const std::shared_ptr<const LaneSchedule>& schedule, int64_t step, int32_t lane) {
  // A lane gained inside a step belongs to no batch. Reading ahead then begins with the next step.
  const bool at_hand = batch_.has_value() && batch_->step == step;
  const std::vector<int32_t> planned = LanesOf(*schedule, step);
  if (!at_hand && std::find(planned.begin(), planned.end(), lane) != planned.end()) {
    if (absl::Status status = FetchStep(schedule, step); !status.ok()) return status;
  }
  if (batch_.has_value() && batch_->step == step) {
    const auto it = std::find(batch_lanes_.begin(), batch_lanes_.end(), lane);
    if (it != batch_lanes_.end()) return &batch_->lanes[it - batch_lanes_.begin()];
  }
  if (direct_step_ != step) {
    direct_.clear();
    direct_step_ = step;
  }
  data::LaneBatch& direct = direct_[lane];
  direct.indices = schedule->SamplesOf(step, lane);
  absl::Status status = data::ReadLane(train_, job_->samples.EpochOf(step), options_.bytes, direct);
  if (!status.ok()) return status;
  return &direct;
}

}  // namespace capstan::gpu_worker
