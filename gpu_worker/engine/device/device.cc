#include "gpu_worker/engine/device/device.h"

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/device/group.h"

namespace capstan::engine {

absl::StatusOr<std::unique_ptr<PlanGroup>> Device::MakeGroup(const std::vector<Plan*>&,
                                                             const GroupOptions&) {
  return absl::UnimplementedError(
      absl::StrCat("device ", name(), ": its lanes are summed on the host"));
}

}  // namespace capstan::engine
