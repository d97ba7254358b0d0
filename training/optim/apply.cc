#include "training/optim/apply.h"

#include <algorithm>
#include <vector>

#include "services/check/check.h"
#include "training/optim/statistic_rule.h"

// This file is built with -O3, like the rules.
namespace capstan::training {
namespace {

constexpr int64_t kScaledFloats = 4096;  // per block; 16 KiB of the stack

// std::min and std::max let a NaN pass. The lead has skipped such a step before.
void ClipBlock(float limit, int64_t count, float* gradient) {
  for (int64_t i = 0; i < count; ++i) {
    gradient[i] = std::min(std::max(gradient[i], -limit), limit);
  }
}

// Updates weights [first, last) of the range. `step` holds for all of them.
void ApplyWeights(int64_t first, int64_t last, const Optimizer& optimizer,
                  const VersionUpdate& update, const RuleStep& step,
                  const VersionVectors& vectors) {
  const int states = optimizer.state_floats_per_weight();
  const auto apply = [&](int64_t at, int64_t count, const float* gradient) {
    float* const state = vectors.state == nullptr ? nullptr : vectors.state + at * states;
    optimizer.Apply(vectors.out + at, vectors.in + at, gradient, state, static_cast<size_t>(count),
                    step);
  };
  const double clip = optimizer.update().clip_value;
  const auto scale = static_cast<float>(update.gradient_scale * update.clip_factor);
  if (scale == 1 && clip == 0) return apply(first, last - first, vectors.sum + first);
  alignas(64) float gradient[kScaledFloats];
  for (int64_t at = first; at < last; at += kScaledFloats) {
    const int64_t n = std::min(kScaledFloats, last - at);
    for (int64_t i = 0; i < n; ++i) gradient[i] = vectors.sum[at + i] * scale;
    if (clip > 0) ClipBlock(static_cast<float>(clip), n, gradient);
    apply(at, n, gradient);
  }
}

// Updates the first `weights` floats of a range that begins at `offset`. Cuts it where tensors meet
// that are decayed differently or have different trust ratios. Padding belongs to the tensor before
// it.
void ApplyByTensors(const FlatLayout& layout, int64_t offset, int64_t weights,
                    const Optimizer& optimizer, const VersionUpdate& update, const RuleStep& whole,
                    const VersionVectors& vectors) {
  int64_t done = 0;
  RuleStep step = whole;  // of the tensors up to here
  const std::vector<TensorSlot>& slots = layout.slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSlot& slot = slots[i];
    if (slot.spec.kind != TensorKind::kWeight) continue;
    const bool decay = Decays(slot.spec, optimizer.update());
    const double ratio = update.trust_ratios.empty() ? 1 : update.trust_ratios[i];
    if (decay == step.decay && ratio == step.trust_ratio) continue;
    const int64_t border = std::clamp(slot.offset - offset, int64_t{0}, weights);
    if (border > done) ApplyWeights(done, border, optimizer, update, step, vectors);
    done = border;
    step.decay = decay;
    step.trust_ratio = ratio;
  }
  if (weights > done) ApplyWeights(done, weights, optimizer, update, step, vectors);
}

// Updates one tensor and the padding after it, which is 0 in all vectors.
void ApplyStatistic(float momentum, float scale, int64_t first, int64_t last,
                    const VersionVectors& vectors) {
  for (int64_t i = first; i < last; ++i) {
    vectors.out[i] = StatisticUpdate(vectors.in[i], vectors.sum[i] * scale, momentum);
  }
}

}  // namespace

void ApplyVersion(const FlatLayout& layout, const FlatRange& range, const Optimizer& optimizer,
                  const VersionUpdate& update, const VersionVectors& vectors) {
  CAPSTAN_CHECK(range.offset >= 0 && range.end() <= layout.total_floats());
  const int64_t weights = std::min(range.end(), layout.statistics_begin()) - range.offset;
  const bool has_ratios = optimizer.trust_rule() != nullptr;
  CAPSTAN_CHECK(has_ratios != update.trust_ratios.empty());
  const RuleStep step{.learning_rate = update.learning_rate, .number = update.applied_steps + 1};
  if (weights > 0 && (optimizer.update().decay_weights_only || has_ratios)) {
    ApplyByTensors(layout, range.offset, weights, optimizer, update, step, vectors);
  } else if (weights > 0) {
    ApplyWeights(0, weights, optimizer, update, step, vectors);
  }
  if (range.end() <= layout.statistics_begin()) return;
  const std::vector<TensorSlot>& slots = layout.slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSlot& slot = slots[i];
    if (slot.spec.kind != TensorKind::kStat) continue;
    const int64_t end = i + 1 < slots.size() ? slots[i + 1].offset : layout.total_floats();
    ApplyStatistic(static_cast<float>(slot.spec.momentum),
                   static_cast<float>(update.gradient_scale),
                   std::max(slot.offset, range.offset) - range.offset,
                   std::min(end, range.end()) - range.offset, vectors);
  }
}

}  // namespace capstan::training
