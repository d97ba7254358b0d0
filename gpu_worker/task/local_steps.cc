#include "gpu_worker/task/local_steps.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "gpu_worker/task/lane_clip.h"
#include "services/check/check.h"
#include "training/optim/apply.h"

namespace capstan::gpu_worker {
namespace {

// Samples [first, first + count) of a lane.
engine::SampleBatch PartOf(const engine::SampleBatch& lane, int64_t first, int64_t count,
                           const training::Graph& graph) {
  const int64_t size = training::Elements(graph.input_shape());  // numbers of an image
  engine::SampleBatch part = lane;
  part.count = count;
  if (lane.images != nullptr) part.images += first * size;
  if (lane.bytes != nullptr) part.bytes += first * size;
  if (lane.kept != nullptr) part.kept += first;
  if (lane.ids != nullptr) part.ids += first;
  part.labels += first;
  if (lane.targets != nullptr) part.targets += first * graph.target_size();
  return part;
}

}  // namespace

LocalSteps::LocalSteps(std::shared_ptr<const Job> job, engine::Plan& plan,
                       std::function<bool()> stopping)
    : job_(std::move(job)),
      plan_(plan),
      stopping_(std::move(stopping)),
      weights_(job_->layout.total_floats()),
      gradient_(job_->layout.total_floats()),
      state_(std::max<int64_t>(
          1, job_->layout.total_floats() * job_->lane_optimizer->state_floats_per_weight())) {}

absl::StatusOr<engine::LaneResult> LocalSteps::Train(int64_t step, int32_t lane,
                                                     const engine::SampleBatch& samples,
                                                     absl::Span<const float> weights,
                                                     absl::Span<float> out) {
  const training::FlatLayout& layout = job_->layout;
  CAPSTAN_CHECK(static_cast<int64_t>(weights.size()) == weights_.size());
  const bool has_state = job_->lane_optimizer->state_floats_per_weight() > 0;
  std::copy(weights.begin(), weights.end(), weights_.data());
  if (has_state) std::fill_n(state_.data(), state_.size(), 0.0f);
  training::VersionUpdate update;
  update.learning_rate = job_->schedule.LearningRate(step);
  const training::VersionVectors vectors = {weights_.data(), weights_.data(), gradient_.data(),
                                            has_state ? state_.data() : nullptr};
  const int64_t steps = job_->OwnSteps(lane, samples.count);
  engine::LaneResult all;
  double forward = 0;
  bool finite = true;
  for (int64_t i = 0; i < steps; ++i) {
    if (stopping_()) return absl::CancelledError("the task ends");
    const int64_t first = samples.count * i / steps;
    const int64_t count = samples.count * (i + 1) / steps - first;
    if (absl::Status status = plan_.LoadWeights(weights_.data()); !status.ok()) return status;
    const absl::StatusOr<engine::LaneResult> result =
        plan_.ComputeLane(PartOf(samples, first, count, job_->graph),
                          1.0 / static_cast<double>(count), gradient_.data());
    if (!result.ok()) return result.status();
    finite = finite && ClipLane(layout, job_->lane_clip_norm, gradient_.span());
    if (finite) {
      training::ApplyVersion(layout, {0, layout.total_floats()}, *job_->lane_optimizer, update,
                             vectors);
      ++update.applied_steps;
    }
    all.samples += result->samples;
    all.loss_sum += result->loss_sum;
    all.correct += result->correct;
    forward = result->forward_share < 0 || forward < 0
                  ? -1
                  : forward + result->forward_share * static_cast<double>(count);
  }
  all.forward_share = forward < 0 ? -1 : forward / static_cast<double>(all.samples);
  if (!finite) {  // the shards skip the round
    std::fill(out.begin(), out.end(), std::numeric_limits<float>::quiet_NaN());
    return all;
  }
  const auto share = static_cast<float>(static_cast<double>(samples.count) /
                                        static_cast<double>(job_->samples.StepSampleCount(step)));
  const float* const own = weights_.data();
  for (size_t i = 0; i < out.size(); ++i) out[i] = (weights[i] - own[i]) * share;
  return all;
}

}  // namespace capstan::gpu_worker
