#include "coordinator/work_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "services/clock/clock.h"
#include "tests/support/asleep.h"

namespace capstan::coordinator {
namespace {

TEST(WorkThreadTest, TasksRunInOrderOnOneThread) {
  WorkThread strand;
  std::vector<int> order;
  std::promise<void> done;
  for (int i = 0; i < 100; ++i) {
    strand.Post([&order, &strand, i] {
      EXPECT_TRUE(strand.OnStrand());
      order.push_back(i);
    });
  }
  strand.Post([&done] { done.set_value(); });
  done.get_future().wait();
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

TEST(WorkThreadTest, WhatNobodyWaitsForIsRunSoonAndInOrder) {
  std::atomic<int> rounds = 0;
  WorkThread strand([&rounds] { ++rounds; });
  const auto post_soon = [&strand](int count, const std::function<void()>& task) {
    for (int i = 0; i < count; ++i) strand.PostSoon(task);
  };
  int ran = 0;
  std::promise<void> all;
  post_soon(100, [&ran, &all] {
    if (++ran == 100) all.set_value();
  });
  all.get_future().wait();  // no other task comes
  EXPECT_LE(rounds, 50);    // 1 round here, unless this thread was delayed

  std::promise<int> seen;
  post_soon(1, [&ran] { ++ran; });
  strand.Post([&ran, &seen] { seen.set_value(ran); });
  EXPECT_EQ(seen.get_future().get(), 101);
}

TEST(WorkThreadTest, TimersRunInTheOrderOfTheirTimes) {
  WorkThread strand;
  std::vector<int> order;
  std::promise<void> done;
  strand.Post([&] {
    const absl::Duration now = MonotonicNow();
    strand.CallAt(now + absl::Milliseconds(20), [&] {
      order.push_back(2);
      done.set_value();
    });
    strand.CallAt(now + absl::Milliseconds(10), [&] { order.push_back(1); });
    strand.CallAt(now - absl::Seconds(1), [&] { order.push_back(0); });
  });
  done.get_future().wait();
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2));
}

// An idle strand waits without a timeout.
TEST(WorkThreadTest, StopWakesAStrandThatIsIdle) {
  auto* const strand = new WorkThread;  // not freed if it does not end
  auto* const ended = new std::promise<void>;
  std::promise<pid_t> told;
  strand->Post([&told] { told.set_value(ThisThread()); });
  ASSERT_TRUE(WaitUntilAsleep(told.get_future().get()));
  auto* const thread = new std::thread([strand, ended] {
    strand->Stop();
    ended->set_value();
  });
  ASSERT_EQ(ended->get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  thread->join();
  delete thread;
  delete ended;
  delete strand;
}

TEST(WorkThreadTest, StopRunsWhatWasPostedAndDropsTheRest) {
  int ran = 0;
  {
    WorkThread strand;
    strand.Post([&] {
      strand.CallAt(MonotonicNow() + absl::Hours(1), [&ran] { ran += 100; });
      strand.Post([&ran] { ++ran; });
    });
    strand.Post([&ran] { ++ran; });
    std::promise<void> first;
    strand.Post([&first] { first.set_value(); });
    first.get_future().wait();
    strand.Post([&ran] { ++ran; });
    strand.Stop();
    strand.Post([&ran] { ran += 1000; });
  }
  EXPECT_EQ(ran, 3);
}

}  // namespace
}  // namespace capstan::coordinator
