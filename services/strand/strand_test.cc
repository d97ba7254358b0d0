#include "services/strand/strand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

#include "tests/support/asleep.h"

namespace capstan::services {
namespace {

using ::testing::ElementsAre;

TEST(StrandLoopTest, RunsInOrderAndTimersWhenTheyAreDue) {
  StrandLoop strand;
  std::vector<int> seen;  // of the strand alone until it has ended
  strand.PostAfter(absl::Milliseconds(20), [&] {
    seen.push_back(4);
    strand.Stop();
  });
  strand.PostAfter(absl::Milliseconds(10), [&] { seen.push_back(3); });
  strand.Post([&] {
    seen.push_back(1);
    strand.Post([&] { seen.push_back(2); });
  });
  std::thread thread([&] { strand.Run(); });
  thread.join();
  EXPECT_THAT(seen, ElementsAre(1, 2, 3, 4));
}

TEST(StrandLoopTest, PostsFromManyThreadsAllRun) {
  StrandLoop strand;
  int count = 0;
  std::thread runner([&] { strand.Run(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 500; ++k) strand.Post([&] { ++count; });
    });
  }
  for (std::thread& thread : threads) thread.join();
  strand.Post([&] { strand.Stop(); });
  runner.join();
  EXPECT_EQ(count, 2000);
}

// It waits for work without a limit.
TEST(StrandLoopTest, StopWakesAStrandThatIsIdle) {
  auto* const strand = new StrandLoop;  // not freed where it does not end
  auto* const ended = new std::promise<void>;
  std::promise<pid_t> told;
  strand->Post([&told] { told.set_value(ThisThread()); });
  auto* const thread = new std::thread([strand, ended] {
    strand->Run();
    ended->set_value();
  });
  ASSERT_TRUE(WaitUntilAsleep(told.get_future().get()));
  strand->Stop();
  ASSERT_EQ(ended->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  thread->join();
  delete thread;
  delete ended;
  delete strand;
}

TEST(StrandLoopTest, WhatIsPostedAfterTheStopIsDropped) {
  StrandLoop strand;
  strand.Stop();
  bool ran = false;
  strand.Post([&] { ran = true; });
  strand.PostAfter(absl::ZeroDuration(), [&] { ran = true; });
  strand.Run();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace capstan::services
