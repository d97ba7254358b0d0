#include "exchange/float_buffer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "tests/support/asleep.h"

namespace capstan::exchange {
namespace {

TEST(BufferPoolTest, ABufferIsUsedAgainOnlyWhenTheLastReferenceIsGone) {
  BufferPool pool(100);
  std::shared_ptr<FloatBuffer> first = pool.Lend();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(first->data()) % 64, 0u);
  for (float value : first->span()) EXPECT_EQ(value, 0.0f);
  std::shared_ptr<const FloatBuffer> reader = first;
  const FloatBuffer* where = first.get();
  first.reset();

  std::shared_ptr<FloatBuffer> second = pool.Lend();
  EXPECT_NE(second.get(), where);
  EXPECT_EQ(pool.allocated(), 2);
  reader.reset();
  EXPECT_EQ(pool.Lend().get(), where);
  EXPECT_EQ(pool.allocated(), 2);
}

// What an episode with many buffers has taken is given back.
TEST(BufferPoolTest, KeepsNoMoreFreeBuffersThanItMay) {
  BufferPool pool(4, /*max_free=*/1);
  std::vector<std::shared_ptr<FloatBuffer>> held;
  for (int i = 0; i < 5; ++i) held.push_back(pool.Lend());
  EXPECT_EQ(pool.allocated(), 5);
  EXPECT_EQ(pool.lent(), 5);
  held.resize(1);
  EXPECT_EQ(pool.allocated(), 2);
  EXPECT_EQ(pool.lent(), 1);
  held.clear();
  EXPECT_EQ(pool.allocated(), 1);
  EXPECT_EQ(pool.lent(), 0);
}

TEST(BufferPoolTest, AWaitEndsWithItsTimeOrWithAReturn) {
  BufferPool pool(4);
  std::shared_ptr<FloatBuffer> lent = pool.Lend();
  pool.WaitForReturn(absl::Milliseconds(1));  // there is none
  std::promise<pid_t> told;
  std::promise<void> ended;
  std::thread thread([&] {
    told.set_value(ThisThread());
    pool.WaitForReturn(absl::Minutes(1));
    ended.set_value();
  });
  EXPECT_TRUE(WaitUntilAsleep(told.get_future().get()));
  lent.reset();
  EXPECT_EQ(ended.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  thread.join();
}

TEST(BufferPoolTest, ALentBufferOutlivesThePool) {
  std::shared_ptr<FloatBuffer> kept;
  {
    BufferPool pool(4);
    kept = pool.Lend();
    pool.Lend();
  }
  kept->data()[3] = 7.0f;
  EXPECT_EQ(kept->span()[3], 7.0f);
}

}  // namespace
}  // namespace capstan::exchange
