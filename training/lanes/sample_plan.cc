#include "training/lanes/sample_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/random/philox.h"

namespace capstan::training {
namespace {

absl::Status OutOfRange(absl::string_view field, int64_t got, int64_t limit,
                        absl::string_view limit_name = "") {
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": got ", got, ", want 1..", limit,
                   limit_name.empty() ? "" : absl::StrCat(" (", limit_name, ")")));
}

absl::Status Validate(const SamplePlanOptions& options) {
  if (options.dataset_size < 1 || options.dataset_size > kMaxDatasetSize) {
    return OutOfRange("dataset_size", options.dataset_size, kMaxDatasetSize);
  }
  if (options.global_batch < 1 || options.global_batch > kMaxGlobalBatch) {
    return OutOfRange("global_batch", options.global_batch, kMaxGlobalBatch);
  }
  if (options.global_batch > options.dataset_size) {
    return OutOfRange("global_batch", options.global_batch, options.dataset_size, "dataset_size");
  }
  if (options.lanes < 1 || options.lanes > kMaxLanes) {
    return OutOfRange("lanes", options.lanes, kMaxLanes);
  }
  if (options.lanes > options.global_batch) {
    return OutOfRange("lanes", options.lanes, options.global_batch, "global_batch");
  }
  if (options.lane_weights.empty()) return absl::OkStatus();
  if (options.lane_weights.size() != static_cast<size_t>(options.lanes)) {
    return absl::InvalidArgumentError(absl::StrCat("lane_weights: got ",
                                                   options.lane_weights.size(), " weights, want ",
                                                   options.lanes, " (lanes)"));
  }
  double sum = 0;
  for (size_t lane = 0; lane < options.lane_weights.size(); ++lane) {
    const double weight = options.lane_weights[lane];
    if (!std::isfinite(weight) || weight <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("lane_weights[", lane, "]: got ", weight, ", want a finite number above 0"));
    }
    sum += weight;
  }
  if (!std::isfinite(sum)) {
    return absl::InvalidArgumentError("lane_weights: got an infinite sum, want a finite one");
  }
  return absl::OkStatus();
}

std::vector<int64_t> Cut(int64_t total, const SamplePlanOptions& options) {
  if (options.lane_weights.empty()) {
    return CutByWeights(total, std::vector<double>(options.lanes, 1.0));
  }
  return CutByWeights(total, options.lane_weights);
}

std::vector<int64_t> Starts(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> starts(sizes.size(), 0);
  std::exclusive_scan(sizes.begin(), sizes.end(), starts.begin(), int64_t{0});
  return starts;
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Fisher-Yates over order[first, first + size). Counter: (position, stream, epoch, attempt).
void Shuffle(const Philox& philox, uint32_t stream, int64_t epoch, int64_t first, int64_t size,
             std::vector<uint32_t>& order) {
  for (int64_t i = size - 1; i > 0; --i) {
    const uint64_t j = philox.Bounded(
        {static_cast<uint32_t>(i), stream, static_cast<uint32_t>(epoch), 0}, uint64_t(i) + 1);
    std::swap(order[first + i], order[first + static_cast<int64_t>(j)]);
  }
}

}  // namespace

std::vector<int64_t> CutByWeights(int64_t total, absl::Span<const double> weights) {
  CAPSTAN_CHECK(!weights.empty() && total >= 0 && total <= kMaxDatasetSize);
  const size_t n = weights.size();
  std::vector<int64_t> sizes(n);
  const bool equal = std::all_of(weights.begin(), weights.end(),
                                 [&](double weight) { return weight == weights[0]; });
  if (equal) {  // in integers, so that no rounding decides
    const int64_t count = static_cast<int64_t>(n);
    for (int64_t i = 0; i < count; ++i) sizes[i] = total / count + (i < total % count ? 1 : 0);
    return sizes;
  }
  double sum = 0;
  for (const double weight : weights) sum += weight;
  std::vector<double> remainder(n);
  int64_t left = total;
  for (size_t i = 0; i < n; ++i) {
    const double share = static_cast<double>(total) * (weights[i] / sum);
    sizes[i] = std::min(static_cast<int64_t>(std::floor(share)), left);
    remainder[i] = share - static_cast<double>(sizes[i]);
    left -= sizes[i];
  }
  std::vector<size_t> by_remainder(n);
  std::iota(by_remainder.begin(), by_remainder.end(), size_t{0});
  std::stable_sort(by_remainder.begin(), by_remainder.end(),
                   [&](size_t a, size_t b) { return remainder[a] > remainder[b]; });
  for (size_t k = 0; left > 0; k = (k + 1) % n, --left) ++sizes[by_remainder[k]];
  return sizes;
}

absl::StatusOr<SamplePlan> SamplePlan::Create(SamplePlanOptions options) {
  if (absl::Status status = Validate(options); !status.ok()) return status;
  std::vector<int64_t> full_share = Cut(options.global_batch, options);
  for (size_t lane = 0; lane < full_share.size(); ++lane) {
    if (full_share[lane] > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "lane_weights[", lane, "]: got ", options.lane_weights[lane], ", which gives 0 of ",
        options.global_batch, " samples (global_batch), want at least 1"));
  }
  return SamplePlan(std::move(options), std::move(full_share));
}

SamplePlan::SamplePlan(SamplePlanOptions options, std::vector<int64_t> full_share)
    : options_(std::move(options)), tree_(options_.lanes), full_share_(std::move(full_share)) {
  full_start_ = Starts(full_share_);
  if (options_.partition == Partition::kGlobal) {
    steps_per_epoch_ = CeilDiv(options_.dataset_size, options_.global_batch);
    last_share_ =
        Cut(options_.dataset_size - (steps_per_epoch_ - 1) * options_.global_batch, options_);
    last_start_ = Starts(last_share_);
    return;
  }
  part_size_ = Cut(options_.dataset_size, options_);
  part_start_ = Starts(part_size_);
  for (int32_t lane = 0; lane < options_.lanes; ++lane) {
    steps_per_epoch_ = std::max(steps_per_epoch_, CeilDiv(part_size_[lane], full_share_[lane]));
  }
}

int64_t SamplePlan::LaneSampleCount(int64_t step, int32_t lane) const {
  CAPSTAN_CHECK(step >= 0 && lane >= 0 && lane < options_.lanes);
  const int64_t k = StepInEpoch(step);
  if (options_.partition == Partition::kGlobal) {
    return k + 1 < steps_per_epoch_ ? full_share_[lane] : last_share_[lane];
  }
  return std::clamp<int64_t>(part_size_[lane] - k * full_share_[lane], 0, full_share_[lane]);
}

int64_t SamplePlan::MaxLaneSampleCount(int32_t lane) const {
  CAPSTAN_CHECK(lane >= 0 && lane < options_.lanes);
  if (last_share_.empty()) return full_share_[lane];
  return std::max(full_share_[lane], last_share_[lane]);
}

int64_t SamplePlan::StepSampleCount(int64_t step) const {
  int64_t count = 0;
  for (int32_t lane = 0; lane < options_.lanes; ++lane) count += LaneSampleCount(step, lane);
  return count;
}

int64_t SamplePlan::LaneOffset(int64_t step, int32_t lane) const {
  CAPSTAN_CHECK(step >= 0 && lane >= 0 && lane < options_.lanes);
  const int64_t k = StepInEpoch(step);
  if (options_.partition == Partition::kGlobal) {
    return k * options_.global_batch +
           (k + 1 < steps_per_epoch_ ? full_start_[lane] : last_start_[lane]);
  }
  return part_start_[lane] + std::min(k * full_share_[lane], part_size_[lane]);
}

std::vector<int32_t> SamplePlan::EmptyLanes(int64_t step) const {
  std::vector<int32_t> empty;
  for (int32_t lane = 0; lane < options_.lanes; ++lane) {
    if (LaneSampleCount(step, lane) == 0) empty.push_back(lane);
  }
  return empty;
}

LaneTree SamplePlan::StepTree(int64_t step) const { return tree_.WithEmptyLanes(EmptyLanes(step)); }

EpochPermutation SamplePlan::MakeEpochPermutation(int64_t epoch) const {
  CAPSTAN_CHECK(epoch >= 0 && epoch < (int64_t{1} << 32));
  EpochPermutation permutation{.epoch = epoch, .order = {}};
  if (!options_.shuffle) return permutation;
  permutation.order.resize(options_.dataset_size);
  std::iota(permutation.order.begin(), permutation.order.end(), uint32_t{0});
  const Philox philox(options_.seed, Purpose::kShuffle);
  if (options_.partition == Partition::kGlobal) {
    Shuffle(philox, /*stream=*/0, epoch, 0, options_.dataset_size, permutation.order);
    return permutation;
  }
  for (int32_t lane = 0; lane < options_.lanes; ++lane) {
    Shuffle(philox, /*stream=*/1 + lane, epoch, part_start_[lane], part_size_[lane],
            permutation.order);
  }
  return permutation;
}

std::vector<int64_t> SamplePlan::LaneSamples(const EpochPermutation& permutation,
                                             int64_t step_in_epoch, int32_t lane) const {
  CAPSTAN_CHECK(step_in_epoch >= 0 && step_in_epoch < steps_per_epoch_);
  CAPSTAN_CHECK(permutation.order.size() ==
                (options_.shuffle ? static_cast<size_t>(options_.dataset_size) : 0));
  const int64_t offset = LaneOffset(step_in_epoch, lane);
  std::vector<int64_t> samples(LaneSampleCount(step_in_epoch, lane));
  for (size_t i = 0; i < samples.size(); ++i) {
    const int64_t position = offset + static_cast<int64_t>(i);
    samples[i] = options_.shuffle ? permutation.order[position] : position;
  }
  return samples;
}

}  // namespace capstan::training
