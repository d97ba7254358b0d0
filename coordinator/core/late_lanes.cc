#include "coordinator/core/late_lanes.h"

#include <algorithm>
#include <cstddef>

namespace capstan::coordinator::core {
namespace {

constexpr size_t kStepTimes = 15;  // of which the median is taken
constexpr int kMaxDoublings = 10;

}  // namespace

void LateLanes::NoteStep(double seconds) {
  knows_a_step_ = true;
  step_seconds_.push_back(seconds);
  if (step_seconds_.size() > kStepTimes) step_seconds_.erase(step_seconds_.begin());
}

void LateLanes::Await(int64_t step, const std::set<int32_t>& lanes, absl::Duration now) {
  if (step != step_) {  // it gets on: what was late before is forgotten
    issued_at_.clear();
    reissues_.clear();
  }
  if (step == step_ && lanes == lanes_) return;
  step_ = step;
  lanes_ = lanes;
  since_ = now;
}

void LateLanes::BeginLineage() {
  knows_a_step_ = false;
  step_ = -1;
  lanes_.clear();
  issued_at_.clear();
  reissues_.clear();
  end_since_ = absl::InfiniteDuration();
}

absl::Duration LateLanes::EndAwaitedFor(absl::Duration now) {
  end_since_ = std::min(end_since_, now);
  return now - end_since_;
}

absl::Duration LateLanes::Limit(absl::Duration least) const {
  if (step_seconds_.empty()) return least;
  std::vector<double> times = step_seconds_;
  const auto median = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), median, times.end());
  return std::max(least, 3 * absl::Seconds(*median));
}

bool LateLanes::IsLate(int32_t lane, absl::Duration limit, absl::Duration now) const {
  const auto reissued = reissues_.find(lane);
  const int doublings = reissued == reissues_.end() ? 0 : std::min(reissued->second, kMaxDoublings);
  const auto issued = issued_at_.find(lane);
  const absl::Duration since =
      issued == issued_at_.end() ? since_ : std::max(since_, issued->second);
  return now - since >= limit * (1 << doublings);
}

}  // namespace capstan::coordinator::core
