#include "gpu_worker/engine/device/open.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gpu_worker/engine/plugin/loader.h"
#include "gpu_worker/engine/plugin/plugin_device.h"

namespace capstan::engine {
namespace {

// The index after "kind:", 0 for "kind" alone, -1 for anything else.
int64_t IndexOf(absl::string_view name, absl::string_view kind) {
  if (!absl::ConsumePrefix(&name, kind)) return -1;
  if (name.empty()) return 0;
  int64_t index = 0;
  if (!absl::ConsumePrefix(&name, ":") || name.size() > 4 ||
      name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(name, &index)) {
    return -1;
  }
  return index;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenDevice(absl::string_view name) {
  if (IndexOf(name, "cpu") >= 0) {
    CpuDeviceOptions options;
    options.name = std::string(name);
    const char* const word = std::getenv("CAPSTAN_CPU_TARGET");
    if (word != nullptr && *word != '\0') {
      const absl::StatusOr<const BlockedMath*> target = CpuTarget(word);
      if (!target.ok()) {
        return absl::Status(
            target.status().code(),
            absl::StrCat("device ", name, ": CAPSTAN_CPU_TARGET ", target.status().message()));
      }
      options.target = *target;
    }
    return MakeCpuDevice(options);
  }
  if (const int64_t index = IndexOf(name, "cuda"); index >= 0) {
    const absl::StatusOr<LoadedPlugin> plugin = LoadPlugin(DefaultLoaderOptions());
    if (!plugin.ok()) {
      return absl::Status(plugin.status().code(),
                          absl::StrCat("device ", name, ": ", plugin.status().message()));
    }
    return OpenPluginDevice(*plugin, std::string(name), static_cast<int>(index));
  }
  return absl::NotFoundError(
      absl::StrCat("device ", name, ": not known, want cpu, cpu:<index> or cuda:<index>"));
}

}  // namespace capstan::engine
