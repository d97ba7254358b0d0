#include "gpu_worker/service/devices.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gpu_worker/engine/device/open.h"
#include "gpu_worker/engine/plugin/loader.h"
#include "services/logging/log.h"

namespace capstan::gpu_worker {
namespace {

absl::StatusOr<node::v1::Device> Describe(const std::string& name) {
  auto device = engine::OpenDevice(name);
  if (!device.ok()) {
    return absl::Status(device.status().code(),
                        absl::StrCat("--devices ", name, ": ", device.status().message()));
  }
  node::v1::Device description;
  description.set_name(name);
  description.set_description((*device)->description());
  description.set_uuid((*device)->uuid());
  return description;
}

}  // namespace

absl::StatusOr<FoundDevices> FindDevices(const std::vector<std::string>& names) {
  FoundDevices found;
  std::vector<node::v1::Device>& devices = found.devices;
  if (names.size() == 1 && names[0] == "auto") {
    for (int i = 0;; ++i) {
      auto gpu = Describe(absl::StrCat("cuda:", i));
      if (!gpu.ok()) {
        // After the last card the error only says that there is no such card. Before the first card
        // it is the reason.
        if (i == 0) {
          services::Log(services::kInfo, "no_gpu").Kv("reason", gpu.status().message());
          // The reader learns the names of device and flag anyway.
          found.no_gpu = std::string(
              absl::StripPrefix(gpu.status().message(), "--devices cuda:0: device cuda:0: "));
          if (engine::PluginInstalled()) found.missing_gpu = found.no_gpu;
        }
        break;
      }
      devices.push_back(*std::move(gpu));
    }
  }
  const std::vector<std::string> wanted =
      names.size() == 1 && names[0] == "auto" ? std::vector<std::string>{"cpu"} : names;
  for (const std::string& name : wanted) {
    auto device = Describe(name);
    if (!device.ok()) return device.status();
    devices.push_back(*std::move(device));
  }
  return found;
}

}  // namespace capstan::gpu_worker
