// A device of a plug-in that a test names by its file and opens without a driver.
#ifndef CAPSTAN_TESTS_CONTRACT_PLUGIN_CARD_H_
#define CAPSTAN_TESTS_CONTRACT_PLUGIN_CARD_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/plugin/plugin_device.h"
#include "gtest/gtest.h"

namespace capstan::testing {

inline std::unique_ptr<engine::Device> OpenPluginCard(const std::string& file, int index) {
  engine::LoaderOptions options;
  options.driver_library = "";
  options.candidates = {file};
  const absl::StatusOr<engine::LoadedPlugin> plugin = engine::LoadPlugin(options);
  EXPECT_TRUE(plugin.ok()) << plugin.status();
  absl::StatusOr<std::unique_ptr<engine::Device>> device =
      engine::OpenPluginDevice(*plugin, absl::StrCat("cuda:", index), index);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_PLUGIN_CARD_H_
