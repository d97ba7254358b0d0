#include "tests/sim/toy.h"

#include <cmath>
#include <limits>
#include <optional>

#include "training/init/init.h"
#include "training/spec/resolve.h"

namespace capstan::sim {
namespace {

uint64_t Mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

// The sum below [first, first + count) as the rule says it: left + right, the other child where one
// has no lane with samples.
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

void Toy::Gradient(absl::Span<const float> weights, int32_t lane, int64_t step,
                   absl::Span<float> gradient) const {
  const uint64_t key =
      Mixed(static_cast<uint64_t>(step) * 1000003 + static_cast<uint64_t>(lane) + 1);
  for (size_t i = 0; i < gradient.size(); ++i) {
    const uint64_t bits = Mixed(key + i * 0x9E3779B97F4A7C15u);
    const float mantissa =
        static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
    // Exponents from -12 to 11, and a part that depends on the weights it was computed from.
    gradient[i] = std::ldexp(mantissa, static_cast<int>(bits % 24) - 12) + weights[i] * 0.125f;
  }
  if (step == nonfinite_step && lane == nonfinite_lane)
    gradient[7] = std::numeric_limits<float>::infinity();
}

training::SealSums Toy::Seal(int32_t lane, int64_t step, int64_t samples) const {
  return {samples, 0.125 * static_cast<double>(lane + 1) + 1e-9 * static_cast<double>(step),
          samples / 2};
}

std::vector<std::vector<float>> ReferenceVersions(const job::v1::ResolvedSpec& spec,
                                                  const Toy& toy) {
  const auto layout = training::spec::MakeLayout(spec);
  const auto samples = training::spec::MakeSamplePlan(spec);
  const auto schedule = training::spec::MakeSchedule(spec);
  std::vector<std::vector<float>> versions(1);
  versions[0].resize(layout->total_floats());
  training::InitRange(*layout, training::spec::MakeInitOptions(spec), spec.spec().training().seed(),
                      0, absl::MakeSpan(versions[0]));
  size_t width = 1;
  while (width < static_cast<size_t>(spec.lanes())) width *= 2;
  for (int64_t step = 0; step < spec.total_steps(); ++step) {
    const std::vector<float>& weights = versions.back();
    std::vector<std::optional<std::vector<float>>> lanes(spec.lanes());
    for (int32_t lane = 0; lane < spec.lanes(); ++lane) {
      if (samples->LaneSampleCount(step, lane) == 0) continue;
      lanes[lane].emplace(weights.size());
      toy.Gradient(weights, lane, step, absl::MakeSpan(*lanes[lane]));
    }
    const std::vector<float> sum = *NaiveSum(lanes, 0, width);
    std::vector<float> next = weights;
    bool finite = true;
    for (const float value : sum) finite = finite && std::isfinite(value);
    const float rate = static_cast<float>(schedule->LearningRate(step));
    for (size_t i = 0; finite && i < next.size(); ++i) next[i] = next[i] - rate * sum[i];
    versions.push_back(std::move(next));
  }
  return versions;
}

}  // namespace capstan::sim
