// Devices of plug-ins under the contract: the fake one, whose plain loops run the programs and the
// index arithmetic of the CUDA plug-in, and the cards in CAPSTAN_TEST_DEVICES.
//
//   CAPSTAN_TEST_DEVICES=cuda:0 test/capstan_plugin_device_contract_test
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gpu_worker/engine/device/open.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "tests/contract/device_group.h"
#include "tests/contract/plugin_card.h"

namespace capstan::testing {
namespace {

std::unique_ptr<engine::Device> OpenFakeCard(int index) {
  return OpenPluginCard(CAPSTAN_FAKE_PLUGIN, index);
}
std::unique_ptr<engine::Device> OpenFake() { return OpenFakeCard(1); }

INSTANTIATE_TEST_SUITE_P(Fake, DeviceContractTest,
                         ::testing::Values(DeviceCase{"Double", OpenFake}), DeviceCaseName);

std::vector<DeviceCase> CardCases() {
  const std::vector<std::string> cards = WantedCards();
  std::vector<DeviceCase> cases;
  if (!cards.empty()) {
    cases.push_back({absl::StrReplaceAll(cards[0], {{":", ""}}), OpenCard<0>, 1e-4, 2e-4});
  }
  if (cards.size() > 1) {
    cases.push_back(
        {absl::StrReplaceAll(cards[1], {{":", ""}}) + "Second", OpenCard<1>, 1e-4, 2e-4});
  }
  return cases;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceContractTest);
INSTANTIATE_TEST_SUITE_P(Card, DeviceContractTest, ::testing::ValuesIn(CardCases()),
                         DeviceCaseName);

std::vector<std::unique_ptr<engine::Device>> TwoFakeCards() {
  std::vector<std::unique_ptr<engine::Device>> devices;
  devices.push_back(OpenFakeCard(0));
  devices.push_back(OpenFakeCard(1));
  return devices;
}

TEST(FakeGroupTest, AGroupGivesTheHostsSums) { ExpectGroupSums(TwoFakeCards(), "lenet", 3); }

TEST(FakeGroupTest, AGroupUpdatesAsTheHost) { ExpectGroupUpdates(TwoFakeCards(), "lenet", 2); }

// "cuda:0,cuda:0": two devices of one card.
class CardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& card : WantedCards()) {
      absl::StatusOr<std::unique_ptr<engine::Device>> device = engine::OpenDevice(card);
      ASSERT_TRUE(device.ok()) << device.status();
      devices_.push_back(*std::move(device));
    }
    if (devices_.empty()) {
      GTEST_SKIP() << "the contract has run on no card: set CAPSTAN_TEST_DEVICES=cuda:0,cuda:0";
    }
  }

  std::vector<std::unique_ptr<engine::Device>> devices_;
};

TEST_F(CardTest, AGroupGivesTheHostsSums) {
  ExpectGroupSums(devices_, "lenet", 17);
  ExpectGroupSums(devices_, "lenet_d2l", 64);
}

TEST_F(CardTest, AGroupUpdatesAsTheHost) {
  ExpectGroupUpdates(devices_, "lenet", 17);
  ExpectGroupUpdates(devices_, "lenet_d2l", 64);
  ExpectGroupUpdates(devices_, SmallResnet(), 16);
  ExpectGroupUpdates(devices_, ManyTensors(), 16);
}

}  // namespace
}  // namespace capstan::testing
