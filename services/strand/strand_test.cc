#include "services/strand/strand.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
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

// Work is a count that any thread may raise.
class Counter final : public StrandSource {
 public:
  Counter() { EXPECT_EQ(pipe(pipe_), 0); }
  ~Counter() override {
    for (const int fd : pipe_) close(fd);
  }
  void Give(int count) {
    given_ += count;
    if (asleep_) {
      EXPECT_EQ(write(pipe_[1], "", 1), 1);
    }
  }
  bool Ready() override { return done_ < given_; }
  void Run() override {
    ++done_;
    if (on_run) on_run();
  }
  void SetAsleep(bool asleep) override { asleep_ = asleep; }
  int wake_fd() const override { return pipe_[0]; }
  void OnWakeFd() override {
    char bytes[64];
    EXPECT_GE(read(pipe_[0], bytes, sizeof(bytes)), 1);
  }
  int done() const { return done_; }

  std::function<void()> on_run;

 private:
  int pipe_[2];
  std::atomic<int> given_ = 0, done_ = 0;
  std::atomic<bool> asleep_ = false;
};

TEST(StrandLoopTest, ASourceWakesAStrandThatSleeps) {
  StrandLoop strand;
  const auto source = std::make_shared<Counter>();
  strand.Post([&] { EXPECT_TRUE(strand.Add(source)); });
  std::thread runner([&] { strand.Run(); });
  for (int i = 1; i <= 2000; ++i) {
    source->Give(1);
    while (source->done() < i) std::this_thread::yield();
  }
  strand.Stop();
  runner.join();
  EXPECT_EQ(source->done(), 2000);
}

TEST(StrandLoopTest, ASourceThatIsAlwaysReadyLeavesFunctionsTheirTurn) {
  StrandLoop strand;
  const auto source = std::make_shared<Counter>();
  source->Give(1 << 30);
  std::vector<int> seen;
  strand.Post([&] {
    EXPECT_TRUE(strand.Add(source));
    strand.PostAfter(absl::Milliseconds(5), [&] {
      seen.push_back(2);
      strand.Stop();
    });
    strand.Post([&] { seen.push_back(1); });
  });
  strand.Run();
  EXPECT_THAT(seen, ElementsAre(1, 2));
  EXPECT_GT(source->done(), 1);
}

TEST(StrandLoopTest, ASourceThatIsGoneIsForgotten) {
  StrandLoop strand;
  auto source = std::make_shared<Counter>();
  source->on_run = [&] { source.reset(); };  // by itself, while it runs
  source->Give(2);
  int ran = 0;
  strand.Post([&] {
    EXPECT_TRUE(strand.Add(source));
    strand.PostAfter(absl::Milliseconds(5), [&] {
      ++ran;
      strand.Stop();
    });
  });
  strand.Run();
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(source, nullptr);
}

TEST(StrandLoopTest, NoSourceRunsOnceItHasStopped) {
  StrandLoop strand;
  const auto source = std::make_shared<Counter>();
  strand.Post([&] {
    EXPECT_TRUE(strand.Add(source));
    source->Give(5);
    strand.Stop();
  });
  strand.Run();
  EXPECT_EQ(source->done(), 0);
}

// A strand that sleeps with sources is woken by posts, too.
TEST(StrandLoopTest, APostWakesAStrandWithSources) {
  StrandLoop strand;
  const auto source = std::make_shared<Counter>();
  std::atomic<int> count = 0;
  strand.Post([&] { EXPECT_TRUE(strand.Add(source)); });
  std::thread runner([&] { strand.Run(); });
  for (int i = 1; i <= 2000; ++i) {
    strand.Post([&] { ++count; });
    while (count < i) std::this_thread::yield();
  }
  strand.Stop();
  runner.join();
}

}  // namespace
}  // namespace capstan::services
