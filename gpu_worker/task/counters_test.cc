#include "gpu_worker/task/counters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::gpu_worker {
namespace {

using ::testing::ElementsAre;

TEST(CountersTest, BucketsAreThoseOfPrometheus) {
  SecondsHistogram histogram;
  for (const double seconds : {0.5, 1.0, 1.5, 10.0}) histogram.Observe(seconds, {1.0, 2.0});
  EXPECT_THAT(histogram.buckets, ElementsAre(2, 1, 1));  // <= 1, <= 2, above
  EXPECT_DOUBLE_EQ(histogram.sum, 13.0);
}

TEST(CountersTest, ComeBackAsTheyWere) {
  TaskCounters counters;
  counters.steps = 7;
  counters.samples = 8;
  counters.step_seconds.Observe(0.5, {1.0});
  counters.exchange.sent_wire_bytes = 9;
  counters.exchange.pull_seconds = 2.5;
  counters.pull_seconds.Observe(0.5, {1.0, 2.0});
  counters.queued_batches = 3;
  counters.cpu_seconds = 1.5;
  counters.resident_bytes = 1 << 20;
  counters.planned_bytes = {10, 20};
  const std::string bytes = EncodeCounters(counters);
  const auto back = DecodeCounters(bytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->steps, 7);
  EXPECT_EQ(back->samples, 8);
  EXPECT_THAT(back->step_seconds.buckets, ElementsAre(1, 0));
  EXPECT_EQ(back->step_seconds.sum, 0.5);
  EXPECT_TRUE(back->barrier_seconds.buckets.empty());
  EXPECT_EQ(back->exchange.sent_wire_bytes, 9);
  EXPECT_EQ(back->exchange.pull_seconds, 2.5);
  EXPECT_THAT(back->pull_seconds.buckets, ElementsAre(1, 0, 0));
  EXPECT_EQ(back->queued_batches, 3);
  EXPECT_EQ(back->cpu_seconds, 1.5);
  EXPECT_EQ(back->resident_bytes, 1 << 20);
  EXPECT_THAT(back->planned_bytes, ElementsAre(10, 20));
}

TEST(CountersTest, AnotherLengthIsRefused) {
  const std::string bytes = EncodeCounters(TaskCounters());
  EXPECT_FALSE(DecodeCounters(absl::string_view(bytes).substr(1)).ok());
  EXPECT_FALSE(DecodeCounters(bytes + "x").ok());
  EXPECT_FALSE(DecodeCounters("").ok());
  EXPECT_FALSE(DecodeCounters(std::string(bytes.size(), '\xff')).ok());
}

}  // namespace
}  // namespace capstan::gpu_worker
