#include "services/security/file_look.h"

#include <atomic>
#include <future>
#include <memory>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "services/clock/clock.h"

namespace capstan::services {
namespace {

TEST(FileLookTest, EveryRefreshSeesALookThatBeganAfterIt) {
  std::atomic<int> looks{0};
  FileLook look([&looks] { ++looks; });
  for (int i = 1; i <= 100; ++i) {
    ASSERT_TRUE(look.Refresh());
    ASSERT_GE(looks, i);
  }
}

// A server asks at each call.
TEST(FileLookTest, ALookThatIsFreshIsNotRepeated) {
  std::atomic<int> looks{0};
  const absl::Duration begin = MonotonicNow();
  FileLook look([&looks] { ++looks; }, absl::Milliseconds(50));
  for (int i = 0; i < 10000; ++i) ASSERT_TRUE(look.Refresh());
  EXPECT_LE(looks, 1 + (MonotonicNow() - begin) / absl::Milliseconds(50));
  const int before = looks;
  absl::SleepFor(absl::Milliseconds(51));
  ASSERT_TRUE(look.Refresh());
  EXPECT_GT(looks, before);
}

TEST(FileLookTest, WhileADiskHangsNobodyWaitsAndTheLookMayOutliveItsOwner) {
  struct Disk {
    std::promise<void> answers;
    std::shared_future<void> wait = answers.get_future().share();
    std::promise<void> looked;
  };
  const auto disk = std::make_shared<Disk>();
  auto look = std::make_unique<FileLook>([disk, count = 0]() mutable {
    disk->wait.wait();
    if (++count == 2) disk->looked.set_value();
  });
  EXPECT_FALSE(look->Refresh());  // once, at most kPatience
  const absl::Duration start = MonotonicNow();
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(look->Refresh());
  EXPECT_LT(MonotonicNow() - start, 10 * FileLook::kPatience);  // not 1000 times
  disk->answers.set_value();
  disk->looked.get_future().wait();  // all requests made meanwhile are one look
  while (!look->Refresh()) {
  }

  const auto other = std::make_shared<Disk>();
  look = std::make_unique<FileLook>([other] {
    other->wait.wait();
    other->looked.set_value();
  });
  EXPECT_FALSE(look->Refresh());
  look.reset();  // returns although the look hangs
  other->answers.set_value();
  other->looked.get_future().wait();
}

}  // namespace
}  // namespace capstan::services
