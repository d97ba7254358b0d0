#include "gpu_worker/task/job.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "gpu_worker/data/failure.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace capstan::gpu_worker {

bool Job::asynchronous() const { return training::spec::IsAsynchronous(spec.spec()); }

bool Job::keeps_residuals() const { return training::spec::KeepsResiduals(spec.spec()); }

int64_t Job::MaxPart(int32_t lane) const {
  const int64_t steps = training::spec::LocalSteps(spec.spec());
  return (samples.MaxLaneSampleCount(lane) + steps - 1) / steps;
}

int64_t Job::OwnSteps(int32_t lane, int64_t count) const {
  if (count == samples.MaxLaneSampleCount(lane)) {
    return std::min<int64_t>(training::spec::LocalSteps(spec.spec()), count);
  }
  const int64_t most = MaxPart(lane);
  return (count + most - 1) / most;
}

int64_t Job::MaxLane() const {
  int64_t batch = 1;
  for (int32_t lane = 0; lane < samples.lanes(); ++lane) batch = std::max(batch, MaxPart(lane));
  return batch;
}

int64_t Job::LanesAtOnce(int64_t lanes) const {
  constexpr int64_t kSamples = 256;
  if (has_local_steps()) return 1;
  for (int node = 0; node < graph.node_count(); ++node) {
    if (graph.def(node).couples_samples) return 1;
  }
  const int64_t most = std::clamp<int64_t>(kSamples / MaxLane(), 1, engine::kMostLanesAtOnce);
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(lanes, 1, most))));
}

int64_t Job::GradientSamples(int64_t step, int32_t lane) const {
  return asynchronous() ? samples.LaneSampleCount(step, lane) : samples.StepSampleCount(step);
}

int64_t Job::MaxBatch() const {
  int64_t batch = MaxLane();
  // Blocks differ by at most one sample, and the larger ones come first.
  if (evaluation.block_count() > 0) batch = std::max(batch, evaluation.Block(0).sample_count);
  return batch;
}

engine::SampleBatch Job::BatchOf(int64_t step) const {
  engine::SampleBatch batch;
  batch.seed = spec.spec().training().seed();
  batch.epoch =
      static_cast<uint32_t>(samples.EpochOf(step));  // as SamplePlan::MakeEpochPermutation
  return batch;
}

engine::Precision Job::precision() const {
  for (const engine::Precision precision :
       {engine::Precision::kTf32, engine::Precision::kBf16, engine::Precision::kFp16}) {
    if (spec.spec().training().precision() == engine::PrecisionName(precision)) return precision;
  }
  return engine::Precision::kFp32;
}

absl::StatusOr<std::shared_ptr<const Job>> MakeJob(absl::string_view resolved_spec,
                                                   absl::string_view digest) {
  namespace spec = training::spec;
  absl::StatusOr<job::v1::ResolvedSpec> resolved = spec::ParseResolved(resolved_spec, digest);
  if (!resolved.ok()) return resolved.status();
  auto graph = spec::MakeGraph(*resolved);
  if (!graph.ok()) return graph.status();
  auto layout = spec::MakeLayout(*resolved);
  if (!layout.ok()) return layout.status();
  auto samples = spec::MakeSamplePlan(*resolved);
  if (!samples.ok()) return samples.status();
  auto evaluation = spec::MakeEvalPlan(*resolved);
  if (!evaluation.ok()) return evaluation.status();
  auto schedule = spec::MakeSchedule(*resolved);
  if (!schedule.ok()) return schedule.status();
  auto optimizer = spec::MakeOptimizer(*resolved);
  if (!optimizer.ok()) return optimizer.status();
  auto lane_optimizer = spec::MakeLaneOptimizer(*resolved);
  if (!lane_optimizer.ok()) return lane_optimizer.status();
  const bool devices_update = spec::WhyTheHostUpdates(*resolved, **optimizer).empty();
  const double lane_clip_norm = spec::LaneClipNorm(*resolved);
  const training::GradientFormat format = spec::GradientFormatOf(*resolved);
  return std::make_shared<const Job>(
      Job{*std::move(resolved), std::string(digest), *std::move(graph), *std::move(layout),
          *std::move(samples), *std::move(evaluation), *std::move(schedule), *std::move(optimizer),
          devices_update, format, *std::move(lane_optimizer), lane_clip_norm});
}

std::string FailureReasonOf(const absl::Status& status, bool on_gpu) {
  std::string reason = data::FailureReason(status);
  if (!reason.empty()) return reason;
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    return on_gpu ? "GpuOutOfMemory" : "HostOutOfMemory";
  }
  if (on_gpu && absl::IsAborted(status)) return "HostOutOfMemory";  // device.h
  if (on_gpu && absl::IsDeadlineExceeded(status)) return "NcclTimeout";
  if (status.code() == absl::StatusCode::kDataLoss) return "CheckpointCorrupt";
  return "InternalError";
}

}  // namespace capstan::gpu_worker
