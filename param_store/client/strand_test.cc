#include "param_store/client/strand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace capstan::param_store::client {
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
}  // namespace capstan::param_store::client
