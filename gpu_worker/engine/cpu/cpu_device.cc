#include "gpu_worker/engine/cpu/cpu_device.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cpu/blocked/graph_plan.h"
#include "gpu_worker/engine/cpu/limits.h"
#include "training/graph/tensors.h"

namespace capstan::engine {
namespace {

using training::FlatLayout;
using training::Graph;

class CpuDevice : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options)
      : options_(options),
        math_(options.target != nullptr ? *options.target : *PresentMath().front()),
        description_(absl::StrCat("own kernels, ", math_.target)) {}

  const std::string& name() const override { return options_.name; }
  const std::string& description() const override { return description_; }

  absl::StatusOr<std::unique_ptr<Plan>> Compile(const Graph& graph, const FlatLayout& layout,
                                                const PlanOptions& options) override {
    const absl::Status status = CheckOptions(options);
    if (!status.ok()) return status;
    absl::StatusOr<std::vector<int64_t>> offsets = training::ParameterOffsets(graph, layout);
    if (!offsets.ok()) return offsets.status();
    return Named(GraphPlan::Create(graph, *offsets, layout.total_floats(), options, math_));
  }

  absl::StatusOr<DeviceLimits> MeasureLimits(int threads) override {
    return MeasureCpuLimits(math_, threads);
  }

 private:
  static absl::Status CheckOptions(const PlanOptions& options) {
    if (options.max_batch < 1 || options.max_batch > int64_t{1} << 30) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_batch: ", options.max_batch, ", want 1 to ", int64_t{1} << 30));
    }
    if (options.threads < 1 || options.threads > 1024) {
      return absl::InvalidArgumentError(
          absl::StrCat("threads: ", options.threads, ", want 1 to 1024"));
    }
    if (options.max_lanes < 1 || options.max_lanes > kMostLanesAtOnce) {
      return absl::InvalidArgumentError(
          absl::StrCat("max_lanes: ", options.max_lanes, ", want 1 to ", kMostLanesAtOnce));
    }
    if (options.precision != Precision::kFp32) {
      return absl::UnimplementedError(
          absl::StrCat("precision: ", PrecisionName(options.precision),
                       " needs a GPU; CPU devices compute only in fp32"));
    }
    return absl::OkStatus();
  }

  // Adds the device's name to errors.
  template <typename Made>
  absl::StatusOr<std::unique_ptr<Plan>> Named(absl::StatusOr<std::unique_ptr<Made>> plan) const {
    if (plan.ok()) return std::unique_ptr<Plan>(*std::move(plan));
    return absl::Status(plan.status().code(),
                        absl::StrCat("device ", options_.name, ": ", plan.status().message()));
  }

  const CpuDeviceOptions options_;
  const BlockedMath& math_;
  const std::string description_;
};

}  // namespace

absl::StatusOr<const BlockedMath*> CpuTarget(absl::string_view word) {
  return MathOf(word, PresentMath());
}

std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace capstan::engine
