#include "training/optim/apply.h"

#include <algorithm>
#include <optional>
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

// Of the sum of weights.
float ScaleOf(const VersionUpdate& update) {
  return static_cast<float>(update.gradient_scale * update.clip_factor);
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
  const float scale = ScaleOf(update);
  if (scale == 1 && clip == 0) return apply(first, last - first, vectors.sum + first);
  alignas(64) float gradient[kScaledFloats];
  for (int64_t at = first; at < last; at += kScaledFloats) {
    const int64_t n = std::min(kScaledFloats, last - at);
    for (int64_t i = 0; i < n; ++i) gradient[i] = vectors.sum[at + i] * scale;
    if (clip > 0) ClipBlock(static_cast<float>(clip), n, gradient);
    apply(at, n, gradient);
  }
}

// Cuts the first `weights` floats of a range that begins at `offset` where tensors meet that are
// decayed differently or have different trust ratios. Padding belongs to the tensor before it.
// Calls visit(first, last, step) for each piece.
template <class Visit>
void EachPiece(const FlatLayout& layout, int64_t offset, int64_t weights,
               const Optimizer& optimizer, const VersionUpdate& update, Visit visit) {
  // Of the tensors up to here.
  RuleStep step{.learning_rate = update.learning_rate, .number = update.applied_steps + 1};
  if (weights <= 0) return;
  if (!optimizer.update().decay_weights_only && update.trust_ratios.empty()) {
    return visit(int64_t{0}, weights, step);
  }
  int64_t done = 0;
  const std::vector<TensorSlot>& slots = layout.slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSlot& slot = slots[i];
    if (slot.spec.kind != TensorKind::kWeight) continue;
    const bool decay = Decays(slot.spec, optimizer.update());
    const double ratio = update.trust_ratios.empty() ? 1 : update.trust_ratios[i];
    if (decay == step.decay && ratio == step.trust_ratio) continue;
    const int64_t border = std::clamp(slot.offset - offset, int64_t{0}, weights);
    if (border > done) visit(done, border, step);
    done = border;
    step.decay = decay;
    step.trust_ratio = ratio;
  }
  if (weights > done) visit(done, weights, step);
}

// Calls visit(first, last, momentum) for each running statistic with a place in `range`, in floats
// from its begin, with the padding after it.
template <class Visit>
void EachStatistic(const FlatLayout& layout, const FlatRange& range, Visit visit) {
  if (range.end() <= layout.statistics_begin()) return;
  const std::vector<TensorSlot>& slots = layout.slots();
  for (size_t i = 0; i < slots.size(); ++i) {
    const TensorSlot& slot = slots[i];
    if (slot.spec.kind != TensorKind::kStat) continue;
    const int64_t end = i + 1 < slots.size() ? slots[i + 1].offset : layout.total_floats();
    visit(std::max(slot.offset, range.offset) - range.offset,
          std::min(end, range.end()) - range.offset, static_cast<float>(slot.spec.momentum));
  }
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
  EachPiece(layout, range.offset, weights, optimizer, update,
            [&](int64_t first, int64_t last, const RuleStep& step) {
              ApplyWeights(first, last, optimizer, update, step, vectors);
            });
  EachStatistic(layout, range, [&](int64_t first, int64_t last, float momentum) {
    ApplyStatistic(momentum, static_cast<float>(update.gradient_scale), first, last, vectors);
  });
}

std::vector<UpdatePart> UpdateParts(const FlatLayout& layout, const Optimizer& optimizer,
                                    const VersionUpdate& update) {
  std::vector<UpdatePart> parts;
  EachPiece(layout, 0, layout.statistics_begin(), optimizer, update,
            [&](int64_t first, int64_t last, const RuleStep& step) {
              const std::optional<RuleNumbers> rule = optimizer.Numbers(step);
              CAPSTAN_CHECK(rule.has_value());
              parts.push_back({.size = last - first,
                               .scale = ScaleOf(update),
                               .clip = static_cast<float>(optimizer.update().clip_value),
                               .rule = *rule});
            });
  float last_momentum = -1;
  EachStatistic(layout, {0, layout.total_floats()},
                [&](int64_t first, int64_t last, float momentum) {
                  if (momentum == last_momentum) {
                    parts.back().size += last - first;
                    return;
                  }
                  last_momentum = momentum;
                  parts.push_back({.size = last - first,
                                   .scale = static_cast<float>(update.gradient_scale),
                                   .rule = {RuleForm::kStatistic, false, {momentum}}});
                });
  return parts;
}

}  // namespace capstan::training
