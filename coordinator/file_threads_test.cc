#include "coordinator/file_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

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
  go.set_value();
  stop.join();
  threads.Post("job", [&] { done += 100; });
  // The second piece runs where Stop came later than the first one's end; none runs after Stop.
  EXPECT_TRUE(done == 1 || done == 11) << done;
}

}  // namespace
}  // namespace capstan::coordinator
