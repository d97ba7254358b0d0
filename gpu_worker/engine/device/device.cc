#include "gpu_worker/engine/device/device.h"

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/device/group.h"

namespace capstan::engine {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 48;  // limit of the counters of random numbers

}  // namespace

absl::Status Plan::CheckLabels(const SampleBatch& batch, int64_t classes, int64_t target_size) {
  if (target_size > 0) {
    if (batch.targets != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("batch.targets: none, want ", target_size,
                                                   " numbers for each of ", batch.count,
                                                   " samples"));
  }
  for (int64_t i = 0; i < batch.count; ++i) {
    if (batch.labels[i] < 0 || batch.labels[i] >= classes) {
      return absl::InvalidArgumentError(
          absl::StrCat("label of sample ", i, ": ", batch.labels[i], ", want 0 to ", classes - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status Plan::CheckIds(const SampleBatch& batch, const std::string& graph) {
  if (batch.ids == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch.ids: none, want ", batch.count, " for graph ", graph, ", which draws"));
  }
  for (int64_t i = 0; i < batch.count; ++i) {
    if (batch.ids[i] < 0 || batch.ids[i] >= kMostIds) {
      return absl::InvalidArgumentError(
          absl::StrCat("id of sample ", i, ": ", batch.ids[i], ", want 0 to ", kMostIds - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status Plan::CheckLanes(absl::Span<const SampleBatch> lanes,
                              absl::Span<const LaneResult> results, int64_t max_lanes) {
  const auto count = static_cast<int64_t>(lanes.size());
  if (count < 1 || count > max_lanes) {
    return absl::InvalidArgumentError(absl::StrCat("lanes: ", count, ", want 1 to ", max_lanes));
  }
  if (results.size() != lanes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("results: ", results.size(), ", want one for each of ", count, " lanes"));
  }
  for (const SampleBatch& lane : lanes) {
    if (lane.count > 0) return absl::OkStatus();
  }
  return absl::InvalidArgumentError("lanes: none has samples");
}

absl::Status Plan::ComputeLanes(absl::Span<const SampleBatch> lanes, double loss_scale,
                                float* gradient, absl::Span<LaneResult> results) {
  absl::Status status = CheckLanes(lanes, results, info().max_lanes);
  if (!status.ok()) return status;
  absl::StatusOr<LaneResult> result = ComputeLane(lanes[0], loss_scale, gradient);
  if (!result.ok()) return result.status();
  results[0] = *result;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<PlanGroup>> Device::MakeGroup(const std::vector<Plan*>&,
                                                             const GroupOptions&) {
  return absl::UnimplementedError(
      absl::StrCat("device ", name(), ": its lanes are summed on the host"));
}

absl::StatusOr<DeviceLimits> Device::MeasureLimits(int) {
  return absl::UnimplementedError(
      absl::StrCat("device ", name(), ": only the limits of CPUs are measured"));
}

}  // namespace capstan::engine
