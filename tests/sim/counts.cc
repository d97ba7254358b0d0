#include "tests/sim/counts.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "training/init/init.h"
#include "training/spec/resolve.h"

namespace capstan::sim {

Counts::Counts(const job::v1::ResolvedSpec& spec, Toy toy)
    : toy_(toy),
      layout_(*training::spec::MakeLayout(spec)),
      total_steps_(spec.total_steps()),
      initial_(layout_.total_floats()),
      steps_(spec.lanes()),
      skip_(spec.lanes(), -1) {
  training::InitRange(layout_, training::spec::MakeInitOptions(spec), spec.spec().training().seed(),
                      0, absl::MakeSpan(initial_));
  const auto samples = *training::spec::MakeSamplePlan(spec);
  for (int32_t lane = 0; lane < spec.lanes(); ++lane) {
    for (int64_t step = 0; step < total_steps_; ++step) {
      if (samples.LaneSampleCount(step, lane) == 0) continue;
      if (step == toy_.nonfinite_step && lane == toy_.nonfinite_lane)
        skip_[lane] = static_cast<int64_t>(steps_[lane].size());
      steps_[lane].push_back(step);
    }
  }
}

int64_t Counts::CountAt(float value, int64_t at) const {
  return std::llround((static_cast<double>(value) - initial_[at]) / kLearningRate);
}

int64_t Counts::Over(int32_t lane, int64_t count) const {
  return skip_[lane] >= 0 && count >= skip_[lane] ? count + 1 : count;
}

std::string Counts::Check(absl::Span<const float> weights, int64_t first_float,
                          const std::vector<int64_t>& marks, bool all) const {
  const auto lanes = static_cast<int64_t>(steps_.size());
  for (int32_t chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
    const training::FlatRange range = layout_.ChunkRange(chunk);
    const int64_t begin = range.offset - first_float;
    if (begin < 0 || begin + range.size > static_cast<int64_t>(weights.size())) continue;
    for (int64_t i = 0; i < range.size; ++i) {
      if (i >= 2 * lanes && i < range.size - lanes) i = range.size - lanes;  // enough of each lane
      const int64_t at = range.offset + i;
      const auto lane = static_cast<int32_t>(at % lanes);
      const auto total = static_cast<int64_t>(steps_[lane].size());
      const int64_t count = CountAt(weights[begin + i], at);
      const int64_t over = std::min(Over(lane, count), total);
      const int64_t most = total - (skip_[lane] >= 0 ? 1 : 0);
      const auto& steps = steps_[lane];
      const auto want = std::lower_bound(steps.begin(), steps.end(), marks[lane]) - steps.begin();
      if (over >= want && count <= most && (!all || count == most)) continue;
      return absl::StrCat("chunk ", chunk, " has ", count, " contributions of lane ", lane,
                          ", want ", all ? "all " : absl::StrCat(want, " to "), most);
    }
  }
  return "";
}

int64_t Counts::Floor(absl::Span<const float> weights) const {
  const auto lanes = static_cast<int64_t>(steps_.size());
  int64_t floor = total_steps_;
  for (int32_t chunk = 0; chunk < layout_.chunk_count(); ++chunk) {
    const int64_t first = layout_.ChunkRange(chunk).offset;
    for (int64_t at = first; at < first + lanes; ++at) {
      const auto lane = static_cast<int32_t>(at % lanes);
      const auto over = static_cast<size_t>(Over(lane, CountAt(weights[at], at)));
      if (over < steps_[lane].size()) floor = std::min(floor, steps_[lane][over]);
    }
  }
  return floor;
}

}  // namespace capstan::sim
