// Devices of plug-ins: one that a test names by its file and opens without a driver, and the cards in
// CAPSTAN_TEST_DEVICES.
#ifndef CAPSTAN_TESTS_CONTRACT_PLUGIN_CARD_H_
#define CAPSTAN_TESTS_CONTRACT_PLUGIN_CARD_H_

#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpu_worker/engine/device/open.h"
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

// The "cuda:N" names in the variable. "cpu" belongs to the other back end.
inline std::vector<std::string> WantedCards() {
  std::vector<std::string> cards;
  const char* const names = std::getenv("CAPSTAN_TEST_DEVICES");
  for (const absl::string_view name :
       absl::StrSplit(names == nullptr ? "" : names, ',', absl::SkipEmpty())) {
    if (name == "cpu") continue;
    if (name.substr(0, 5) != "cuda:") {
      // A misspelled card must not let the tests pass without it.
      std::cerr << "CAPSTAN_TEST_DEVICES: " << name << ", want cpu or cuda:N" << std::endl;
      std::exit(1);
    }
    cards.emplace_back(name);
  }
  return cards;
}

template <int kIndex>
std::unique_ptr<engine::Device> OpenCard() {
  absl::StatusOr<std::unique_ptr<engine::Device>> device =
      engine::OpenDevice(WantedCards()[kIndex]);
  if (!device.ok()) {
    // If a card was asked for, it is a failure that it does not open, never a skip.
    ADD_FAILURE() << device.status();
    std::cerr << device.status() << std::endl;
    std::exit(1);
  }
  return *std::move(device);
}

}  // namespace capstan::testing

#endif  // CAPSTAN_TESTS_CONTRACT_PLUGIN_CARD_H_
