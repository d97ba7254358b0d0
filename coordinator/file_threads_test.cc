#include "coordinator/file_threads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::coordinator {
namespace {

using ::testing::ElementsAre;

TEST(FileThreadsTest, ADiskThatHangsHoldsUpItsOwnJobsAlone) {
  FileThreads threads;
  std::promise<void> disk;
  std::vector<int> order;
  (void)threads.Post("hangs", [&] {
    disk.get_future().wait();
    order.push_back(1);
  });
  std::promise<void> second;
  (void)threads.Post("hangs", [&] {
    order.push_back(2);
    second.set_value();
  });
  std::promise<void> other;
  (void)threads.Post("well", [&] { other.set_value(); });
  ASSERT_EQ(other.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  disk.set_value();
  second.get_future().wait();
  EXPECT_THAT(order, ElementsAre(1, 2));
}

TEST(FileThreadsTest, AKeyComesAgainAfterItsThreadHasEnded) {
  FileThreads threads;
  for (int i = 0; i < 100; ++i) {
    std::promise<void> done;
    (void)threads.Post("job", [&] { done.set_value(); });
    ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready) << i;
  }
}

TEST(FileThreadsTest, TooMuchOfAKeyIsRefused) {
  FileThreads threads;
  std::promise<void> go;
  std::promise<int> done;
  int count = 0;
  const std::shared_future<void> wait = go.get_future().share();
  (void)threads.Post("job", [wait] { wait.wait(); });
  size_t taken = 0;
  while (taken <= FileThreads::kMaxWaiting && threads.TryPost("job", [&count] { ++count; })) {
    ++taken;
  }
  EXPECT_GE(taken, FileThreads::kMaxWaiting - 1);  // the first one may wait, too
  EXPECT_LE(taken, FileThreads::kMaxWaiting);
  (void)threads.Post("job", [&] { done.set_value(count); });
  go.set_value();
  EXPECT_EQ(done.get_future().get(), static_cast<int>(taken));
}

TEST(FileThreadsTest, AKeyHasSoManyThreadsAndNoMore) {
  FileThreads threads({.threads = 3, .max_waiting = 100});
  std::promise<void> disk;
  const std::shared_future<void> wait = disk.get_future().share();
  std::atomic<int> begun{0};
  std::promise<void> third;
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(threads.TryPost("hangs", [&] {
      if (++begun == 3) third.set_value();
      wait.wait();
    }));
  }
  third.get_future().wait();
  std::promise<void> other;
  ASSERT_TRUE(threads.TryPost("well", [&] { other.set_value(); }));
  other.get_future().wait();
  EXPECT_EQ(begun, 3);
  disk.set_value();
  EXPECT_TRUE(threads.Stop());
}

// If the system gives no thread, as at a container's limit, the call fails and the process lives
// on.
TEST(FileThreadsTest, WithoutAThreadWorkIsRefusedUnlessAnotherOneTakesIt) {
  bool gives = false;
  FileThreads threads({.threads = 2, .make_thread = [&gives](std::function<void()> run) {
                         if (!gives) {
                           throw std::system_error(EAGAIN, std::generic_category(), "no thread");
                         }
                         return std::thread(std::move(run));
                       }});
  // A dropped piece may post another one, so it must not be destroyed under the lock.
  const auto held = [&threads] {
    return std::shared_ptr<void>(nullptr, [&threads](void*) { (void)threads.Post("job", [] {}); });
  };
  EXPECT_FALSE(threads.TryPost("job", [held = held()] {}));
  EXPECT_FALSE(threads.Post("job", [held = held()] {}));
  gives = true;
  std::promise<void> go, done;
  ASSERT_TRUE(threads.Post("job", [&] { go.get_future().wait(); }));
  gives = false;
  ASSERT_TRUE(threads.Post("job", [&] { done.set_value(); }));  // the existing thread takes it
  EXPECT_FALSE(threads.Post("other", [] {}));
  go.set_value();
  done.get_future().wait();
  EXPECT_TRUE(threads.Stop());
}

TEST(FileThreadsTest, AStopWithPatienceEndsBesideADiskThatHangs) {
  FileThreads threads;
  std::promise<void> begun, disk;
  (void)threads.Post("hangs", [&] {
    begun.set_value();
    disk.get_future().wait();
  });
  begun.get_future().wait();
  EXPECT_FALSE(threads.Stop(absl::Milliseconds(20)));
  disk.set_value();
  EXPECT_TRUE(threads.Stop());
}

TEST(FileThreadsTest, AStopFinishesWhatIsUnderWayAndDropsTheRest) {
  FileThreads threads;
  std::promise<void> begun, go;
  int done = 0;
  (void)threads.Post("job", [&] {
    begun.set_value();
    go.get_future().wait();
    ++done;
  });
  (void)threads.Post("job", [&] { done += 10; });
  begun.get_future().wait();
  std::thread stop([&] { threads.Stop(); });
  // Waits until Stop has begun. Each key is new, so nothing waits there.
  for (int i = 0; threads.TryPost(absl::StrCat("other ", i), [] {}); ++i) {
    std::this_thread::yield();
  }
  go.set_value();
  stop.join();
  (void)threads.Post("job", [&] { done += 100; });
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace capstan::coordinator
