#include "tests/sim/toy.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "training/init/init.h"
#include "training/optim/adam_rule.h"
#include "training/spec/resolve.h"

namespace capstan::sim {
namespace {

uint64_t Mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The sum of the lanes in [first, first + count), by the rule: left + right, or only one of them if
// the other has no lane with samples.
std::optional<std::vector<float>> NaiveSum(
    const std::vector<std::optional<std::vector<float>>>& lanes, size_t first, size_t count) {
  if (first >= lanes.size()) return std::nullopt;
  if (count == 1) return lanes[first];
  std::optional<std::vector<float>> left = NaiveSum(lanes, first, count / 2);
  std::optional<std::vector<float>> right = NaiveSum(lanes, first + count / 2, count / 2);
  if (!left.has_value()) return right;
  if (!right.has_value()) return left;
  for (size_t i = 0; i < left->size(); ++i) (*left)[i] = (*left)[i] + (*right)[i];
  return left;
}

}  // namespace

void Toy::Gradient(absl::Span<const float> weights, int64_t lineage, int32_t lane, int64_t step,
                   double loss_scale, absl::Span<float> gradient) const {
  if (counted_lanes > 0) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = static_cast<int32_t>(i % static_cast<size_t>(counted_lanes)) == lane ? -1 : 0;
    }
    if (step == nonfinite_step && lane == nonfinite_lane)
      gradient[7] = std::numeric_limits<float>::infinity();
    return;
  }
  const uint64_t key =
      Mixed(static_cast<uint64_t>(step) * 1000003 + static_cast<uint64_t>(lane) + 1) +
      (by_lineage ? static_cast<uint64_t>(lineage) * 0xD1B54A32D192ED03u : 0);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const uint64_t bits = Mixed(key + i * 0x9E3779B97F4A7C15u);
    // Sign and mantissa of 24 bits, an exponent from -12 to 11, and a part that depends on the
    // weights.
    const auto raw = static_cast<uint32_t>((bits >> 32 & 0x807FFFFFu) | ((115 + bits % 24) << 23));
    float noise = 0;
    std::memcpy(&noise, &raw, sizeof(noise));
    gradient[i] = (noise + weights[i] * 0.125f) * static_cast<float>(loss_scale);
    if (short_floats) {
      gradient[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(gradient[i]) & 0xFFFF0000);
    }
  }
  if ((step == nonfinite_step && lane == nonfinite_lane) ||
      (scaled() && loss_scale > overflow_above && lane == 0))
    gradient[7] = std::numeric_limits<float>::infinity();
}

training::SealSums Toy::Seal(int32_t lane, int64_t step, int64_t samples) const {
  return {samples, 0.125 * static_cast<double>(lane + 1) + 1e-9 * static_cast<double>(step),
          samples / 2};
}

void Histories::Begin(const job::v1::ResolvedSpec& spec) {
  spec_ = spec;
  samples_ = *training::spec::MakeSamplePlan(spec);
  const auto layout = training::spec::MakeLayout(spec);
  layout_ = *layout;
  Version& first = versions_[{0, 0}];
  std::vector<float>& initial = first.weights;
  initial.resize(layout->total_floats());
  first.m = first.v = initial;
  if (toy_.feedback) {
    first.residuals.assign(spec.lanes(), std::vector<float>(initial.size(), 0.0f));
  }
  training::InitRange(*layout, training::spec::MakeInitOptions(spec), spec.spec().training().seed(),
                      0, absl::MakeSpan(initial));
  bases_[0] = {0, 0};
}

std::string Histories::NoteLineage(int64_t lineage, int64_t base_lineage, int64_t base_version) {
  const auto [known, fresh] = bases_.emplace(lineage, Key{base_lineage, base_version});
  if (!fresh) {
    return known->second == Key{base_lineage, base_version}
               ? ""
               : absl::StrCat("lineage ", lineage, " has two bases");
  }
  if (toy_.counted_lanes > 0) return "";  // no version has weights of its own
  const Version* const base = Find(base_lineage, base_version);
  if (base == nullptr) {
    bases_.erase(lineage);
    return absl::StrCat("lineage ", lineage, " begins from ", base_lineage, "-", base_version,
                        ", which nobody has made");
  }
  versions_[{lineage, base_version}] = *base;
  return "";
}

std::string Histories::NoteDecision(int64_t lineage, const training::Decision& decision) {
  const auto [known, fresh] = decisions_.emplace(Key{lineage, decision.step}, decision);
  const training::Decision& first = known->second;
  if (first.apply != decision.apply || first.stop != decision.stop ||
      first.learning_rate != decision.learning_rate || first.checkpoint != decision.checkpoint ||
      first.evaluate != decision.evaluate || first.order_ids != decision.order_ids ||
      first.gradient_scale != decision.gradient_scale || first.loss_scale != decision.loss_scale ||
      first.applied_steps != decision.applied_steps || first.clip_factor != decision.clip_factor ||
      first.tensor_norms != decision.tensor_norms ||
      first.max_staleness != decision.max_staleness) {
    return absl::StrCat("two shards have different decisions on step ", decision.step,
                        " of lineage ", lineage);
  }
  if (toy_.counted_lanes > 0) return "";
  const std::optional<double> scale = ScaleAt(lineage, decision.step);
  if (!fresh || !scale.has_value()) return "";
  const bool bad = (decision.step == toy_.nonfinite_step &&
                    samples_->LaneSampleCount(decision.step, toy_.nonfinite_lane) > 0) ||
                   (toy_.scaled() && *scale > toy_.overflow_above);
  if (decision.apply == bad)
    return absl::StrCat("step ", decision.step, bad ? " is not finite and" : " is not", " applied");
  const double next = toy_.scaled() && bad ? *scale / 2 : *scale;
  if (decision.gradient_scale != 1 / *scale || decision.loss_scale != next) {
    return absl::StrCat("step ", decision.step, " of lineage ", lineage, " has a loss scale of ",
                        1 / decision.gradient_scale, ", the next one of ", decision.loss_scale,
                        "; want ", *scale, " and ", next);
  }
  const std::string broken = CheckClipFactor(lineage, decision);
  return broken.empty() ? CheckTensorNorms(lineage, decision) : broken;
}

std::string Histories::CheckTensorNorms(int64_t lineage, const training::Decision& decision) {
  const bool wanted = toy_.optimizer != Toy::Optimizer::kSgd && decision.apply;
  const std::vector<training::TensorSlot>& slots = layout_->slots();
  if (decision.tensor_norms.size() != (wanted ? slots.size() : 0)) {
    return absl::StrCat("step ", decision.step, " of lineage ", lineage, " has norms of ",
                        decision.tensor_norms.size(), " tensors");
  }
  const Version* const known = wanted ? Find(lineage, decision.step) : nullptr;
  if (known == nullptr) return "";
  Version version = *known;
  std::vector<float> direction = SumAt(lineage, decision.step, version);
  if (toy_.optimizer == Toy::Optimizer::kLamb) {
    direction = LambDirection(version, direction, decision.applied_steps + 1);
  }
  const auto norm = [](const std::vector<float>& values, const training::FlatRange& range) {
    double squares = 0;
    for (int64_t i = range.offset; i < range.end(); ++i) squares += double{values[i]} * values[i];
    return std::sqrt(squares);
  };
  for (size_t i = 0; i < slots.size(); ++i) {
    const training::TensorNorms& got = decision.tensor_norms[i];
    const double weights = norm(version.weights, slots[i].range());
    const double along = norm(direction, slots[i].range());
    if (std::abs(got.weights - weights) <= 1e-9 * weights &&
        std::abs(got.direction - along) <= 1e-9 * along) {
      continue;
    }
    return absl::StrCat("step ", decision.step, " of lineage ", lineage, " has norms of ",
                        slots[i].spec.name, " of ", got.weights, " and ", got.direction, "; want ",
                        weights, " and ", along);
  }
  return "";
}

std::vector<float> Histories::LambDirection(Version& version, const std::vector<float>& sum,
                                            int64_t number) {
  const auto beta1 = static_cast<float>(0.9), rest1 = static_cast<float>(1 - 0.9);
  const auto beta2 = static_cast<float>(0.999), rest2 = static_cast<float>(1 - 0.999);
  const auto correction = static_cast<float>(1 - training::PowerBySquaring(0.9, number));
  const auto root_correction =
      static_cast<float>(std::sqrt(1 - training::PowerBySquaring(0.999, number)));
  std::vector<float> direction(sum.size());
  for (size_t i = 0; i < sum.size(); ++i) {
    version.m[i] = beta1 * version.m[i] + rest1 * sum[i];
    version.v[i] = beta2 * version.v[i] + rest2 * (sum[i] * sum[i]);
    direction[i] = version.m[i] / correction /
                   (std::sqrt(version.v[i]) / root_correction + static_cast<float>(1e-6));
  }
  return direction;
}

void Histories::Update(Version& version, const training::Decision& decision,
                       const std::vector<float>& sum) const {
  std::vector<float>& w = version.weights;
  const auto rate = static_cast<float>(decision.learning_rate);
  if (toy_.optimizer == Toy::Optimizer::kSgd) {
    for (size_t i = 0; i < w.size(); ++i) w[i] = w[i] - rate * sum[i];
    return;
  }
  const bool lamb = toy_.optimizer == Toy::Optimizer::kLamb;
  const std::vector<float> direction =
      lamb ? LambDirection(version, sum, decision.applied_steps + 1) : sum;
  const std::vector<training::TensorSlot>& slots = layout_->slots();
  for (size_t tensor = 0; tensor < slots.size(); ++tensor) {
    // The padding behind a tensor is updated like the tensor; its gradient is not 0 here.
    const auto end = static_cast<size_t>(tensor + 1 < slots.size() ? slots[tensor + 1].offset
                                                                   : layout_->total_floats());
    const auto [weights, along] = decision.tensor_norms[tensor];
    const bool scaled = lamb || slots[tensor].spec.init == training::TensorInit::kInitializer;
    double ratio = 1;
    if (scaled && weights > 0 && along > 0) {
      ratio = lamb ? weights / along : Toy::kEta * weights / (along * decision.clip_factor + 1e-8);
    }
    for (auto i = static_cast<size_t>(slots[tensor].offset); i < end; ++i) {
      w[i] = lamb ? w[i] - static_cast<float>(decision.learning_rate * ratio) * direction[i]
                  : w[i] - rate * (direction[i] * static_cast<float>(ratio));
    }
  }
}

std::string Histories::CheckClipFactor(int64_t lineage, const training::Decision& decision) {
  double want = 1;
  if (toy_.clip_norm > 0 && decision.apply) {
    const Version* const version = Find(lineage, decision.step);
    if (version == nullptr) return "";
    double square_sum = 0;
    for (const float value : SumAt(lineage, decision.step, *version)) {
      square_sum += static_cast<double>(value) * static_cast<double>(value);
    }
    want = std::min(1.0, toy_.clip_norm / std::sqrt(square_sum));
  }
  if (std::abs(decision.clip_factor - want) <= 1e-9 * want) return "";
  return absl::StrCat("step ", decision.step, " of lineage ", lineage, " has a clip factor of ",
                      decision.clip_factor, "; want ", want);
}

std::vector<float> Histories::SumAt(int64_t lineage, int64_t step, const Version& version,
                                    std::vector<std::vector<float>>* left) const {
  const std::vector<float>& weights = version.weights;
  size_t width = 1;
  while (width < static_cast<size_t>(spec_->lanes())) width *= 2;
  std::vector<std::optional<std::vector<float>>> lanes(spec_->lanes());
  for (int32_t lane = 0; lane < spec_->lanes(); ++lane) {
    if (samples_->LaneSampleCount(step, lane) == 0) continue;
    lanes[lane].emplace(weights.size());
    toy_.Gradient(weights, lineage, lane, step, /*loss_scale=*/1, absl::MakeSpan(*lanes[lane]));
    if (!toy_.feedback) continue;
    // 2bit: what is sent is the threshold, its negative or nothing.
    const auto threshold =
        static_cast<float>(Toy::kThreshold / static_cast<double>(samples_->StepSampleCount(step)));
    const std::vector<float>& residual = version.residuals[lane];
    for (size_t i = 0; i < weights.size(); ++i) {
      const float whole = (*lanes[lane])[i] + residual[i];
      const float sent = whole >= threshold ? threshold : whole <= -threshold ? -threshold : 0.0f;
      (*lanes[lane])[i] = sent;
      // The first step of the job leaves nothing.
      if (left != nullptr) (*left)[lane][i] = step == 0 ? 0.0f : whole - sent;
    }
  }
  return *NaiveSum(lanes, 0, width);
}

std::optional<double> Histories::ScaleAt(int64_t lineage, int64_t step) const {
  if (!toy_.scaled()) return 1;
  while (step > 0) {
    const auto base = bases_.find(lineage);
    if (base == bases_.end()) return std::nullopt;
    if (step > base->second.second) {
      const auto before = decisions_.find({lineage, step - 1});
      if (before == decisions_.end()) return std::nullopt;
      return before->second.loss_scale;
    }
    lineage = base->second.first;  // the base lineage has all earlier steps
  }
  return training::LossScale::kFirst;
}

std::vector<training::Decision> Histories::Decisions(int64_t lineage) const {
  std::vector<training::Decision> found;  // the last one first
  int64_t end = std::numeric_limits<int64_t>::max();
  while (lineage > 0) {
    const auto [base_lineage, base_version] = bases_.at(lineage);
    for (auto it = decisions_.lower_bound({lineage, end}); it != decisions_.begin();) {
      --it;
      if (it->first.first != lineage) break;
      found.push_back(it->second);
    }
    lineage = base_lineage;
    end = base_version;
  }
  std::reverse(found.begin(), found.end());
  return found;
}

const std::vector<float>* Histories::At(int64_t lineage, int64_t version) {
  const Version* const found = Find(lineage, version);
  return found == nullptr ? nullptr : &found->weights;
}

const Histories::Version* Histories::Find(int64_t lineage, int64_t version) {
  const auto known = versions_.find({lineage, version});
  if (known != versions_.end()) return &known->second;
  const int64_t step = version - 1;
  const auto decision = decisions_.find({lineage, step});
  if (bases_.count(lineage) == 0 || version <= BaseOf(lineage) || decision == decisions_.end())
    return nullptr;
  const Version* const before = Find(lineage, step);
  if (before == nullptr) return nullptr;
  Version next = *before;
  if (decision->second.apply) {
    std::vector<float> sum =
        SumAt(lineage, step, *before, toy_.feedback ? &next.residuals : nullptr);
    if (toy_.clip_norm > 0) {
      const auto factor = static_cast<float>(decision->second.clip_factor);
      for (float& value : sum) value *= factor;
    }
    Update(next, decision->second, sum);
  }
  return &(versions_[{lineage, version}] = std::move(next));
}

}  // namespace capstan::sim
