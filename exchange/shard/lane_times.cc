#include "exchange/shard/lane_times.h"

#include <algorithm>

namespace capstan::exchange::shard {
namespace {

constexpr size_t kStepsKept = 15;
constexpr int kMaxDoublings = 10;

template <typename Numbers>
double Median(const Numbers& numbers) {
  std::vector<double> sorted(numbers.begin(), numbers.end());
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  return sorted[sorted.size() / 2];
}

}  // namespace

// What is not cleared is of the running step; BeginStep makes it anew.
void LaneTimes::Clear() {
  running_ = false;
  steps_.clear();
  workers_.clear();
}

void LaneTimes::BeginStep(const training::LaneTree& tree, const std::vector<int32_t>& owners,
                          absl::Duration now) {
  if (running_) {
    steps_.push_back(absl::ToDoubleSeconds(now - began_));
    if (steps_.size() > kStepsKept) steps_.pop_front();
  }
  running_ = true;
  began_ = now;
  owners_ = owners;
  unmoved_ = true;
  done_.clear();
  missing_.clear();
  lanes_.assign(owners_.size(), Lane{.since = now});
  for (size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].sealed = !tree.HasLane(static_cast<int32_t>(i));
    if (!lanes_[i].sealed) ++missing_[owners_[i]];
  }
  computes_ = missing_;
}

void LaneTimes::SetOwners(const std::vector<int32_t>& owners, absl::Duration now) {
  if (!running_ || owners.size() != lanes_.size()) return;
  missing_.clear();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (owners[i] != owners_[i]) {
      unmoved_ = false;
      lane.since = now;
      ++lane.reissues;
    }
    if (!lane.sealed) ++missing_[owners[i]];
  }
  owners_ = owners;
}

void LaneTimes::Sealed(const training::LaneBlock& block, absl::Duration now) {
  if (!running_) return;
  const auto end = std::min<size_t>(lanes_.size(), block.first_lane + block.lane_count);
  for (auto i = static_cast<size_t>(block.first_lane); i < end; ++i) {
    if (lanes_[i].sealed) continue;
    lanes_[i].sealed = true;
    const int32_t owner = owners_[i];
    if (--missing_[owner] > 0 || !unmoved_) continue;
    const double seconds = absl::ToDoubleSeconds(now - began_);
    done_.push_back(seconds);
    WorkerTimes& worker = workers_[owner];
    ++worker.steps;
    worker.lanes += computes_[owner];
    worker.seconds += seconds;
  }
}

// Infinite: nobody is done, or too little is known.
absl::Duration LaneTimes::Limit() const {
  if (!running_ || done_.empty() || steps_.size() < kFirstSteps) return absl::InfiniteDuration();
  const double median = std::max(Median(done_), Median(steps_));
  return std::max(policy_.floor, policy_.factor * absl::Seconds(median));
}

absl::Duration LaneTimes::LateAt(const Lane& lane, absl::Duration limit) const {
  return lane.since + limit * (1 << std::min(lane.reissues, kMaxDoublings));
}

absl::Duration LaneTimes::NextLate(absl::Duration now) const {
  const absl::Duration limit = Limit();
  absl::Duration next = absl::InfiniteDuration();
  if (limit == absl::InfiniteDuration()) return next;
  for (const Lane& lane : lanes_) {
    const absl::Duration at = LateAt(lane, limit);
    if (!lane.sealed && at > now) next = std::min(next, at);
  }
  return next;
}

std::vector<int32_t> LaneTimes::Late(absl::Duration now) const {
  std::vector<int32_t> late;
  const absl::Duration limit = Limit();
  if (limit == absl::InfiniteDuration()) return late;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (!lanes_[i].sealed && now >= LateAt(lanes_[i], limit)) {
      late.push_back(static_cast<int32_t>(i));
    }
  }
  return late;
}

}  // namespace capstan::exchange::shard
