#include "coordinator/file_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;

TEST(FileThreadsTest, ADiskThatHangsHoldsUpItsOwnJobsAlone) {
  FileThreads threads;
  std::promise<void> disk;
  std::vector<int> order;
  threads.Post("hangs", [&] {
    disk.get_future().wait();
    order.push_back(1);
  });
  std::promise<void> second;
  threads.Post("hangs", [&] {
    order.push_back(2);
    second.set_value();
  });
  std::promise<void> other;
  threads.Post("well", [&] { other.set_value(); });
  ASSERT_EQ(other.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  disk.set_value();
  second.get_future().wait();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(FileThreadsTest, AKeyComesAgainAfterItsThreadHasEnded) {
  FileThreads threads;
  for (int i = 0; i < 100; ++i) {
    std::promise<void> done;
    threads.Post("job", [&] { done.set_value(); });
    done.get_future().wait();
  }
}

TEST(FileThreadsTest, TooMuchOfAKeyIsRefused) {
  FileThreads threads;
  std::promise<void> go;
  std::promise<int> done;
  int count = 0;
  const std::shared_future<void> wait = go.get_future().share();
  threads.Post("job", [wait] { wait.wait(); });
  size_t taken = 0;
  while (taken <= FileThreads::kMaxWaiting && threads.TryPost("job", [&count] { ++count; })) {
    ++taken;
  }
  EXPECT_GE(taken, FileThreads::kMaxWaiting - 1);  // the first one may wait, too
  EXPECT_LE(taken, FileThreads::kMaxWaiting);
  threads.Post("job", [&] { done.set_value(count); });
  go.set_value();
  EXPECT_EQ(done.get_future().get(), static_cast<int>(taken));
}

TEST(FileThreadsTest, AStopFinishesWhatIsUnderWayAndDropsTheRest) {
  FileThreads threads;
  std::promise<void> begun, go;
  int done = 0;
  threads.Post("job", [&] {
    begun.set_value();
    go.get_future().wait();
    ++done;
  });
  threads.Post("job", [&] { done += 10; });
  begun.get_future().wait();
  std::thread stop([&] { threads.Stop(); });
  // Until it has begun; a key of its own each time, which so has nothing waiting.
  for (int i = 0; threads.TryPost(absl::StrCat("other ", i), [] {}); ++i) {
    std::this_thread::yield();
  }
  go.set_value();
  stop.join();
  threads.Post("job", [&] { done += 100; });
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace capstan::coordinator
