#include "gpu_worker/service/log_forwarder.h"

#include <gtest/gtest.h>

namespace capstan::gpu_worker {
namespace {

TEST(LogForwarderTest, LinesCarryWhoWhenAndHowBad) {
  LogForwarder logs("j1", 3, "host7");
  EXPECT_FALSE(logs.Take().has_value());
  const absl::Time time = absl::FromUnixNanos(1500000000000000001);
  logs.Add("time=2026-05-02T09:14:03.123Z level=error event=x", absl::Seconds(1), time);
  logs.Add("free(): invalid pointer", absl::Seconds(1), time);
  logs.Add("a text that only speaks of level=debug somewhere far behind the start of it",
           absl::Seconds(1), time);
  const auto batch = logs.Take();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->job_id(), "j1");
  ASSERT_EQ(batch->lines_size(), 3);
  EXPECT_EQ(batch->lines(0).level(), "error");
  EXPECT_EQ(batch->lines(0).index(), 3);
  EXPECT_EQ(batch->lines(0).host(), "host7");
  EXPECT_EQ(batch->lines(0).role(), common::v1::ROLE_WORKER);
  EXPECT_EQ(batch->lines(0).time().seconds(), 1500000000);
  EXPECT_EQ(batch->lines(0).time().nanos(), 1);
  EXPECT_EQ(batch->lines(1).level(), "warning");
  EXPECT_EQ(batch->lines(2).level(), "warning");
  EXPECT_FALSE(logs.Take().has_value());
}

TEST(LogForwarderTest, WhatIsAboveTheRateIsDroppedAndCounted) {
  LogLimits limits;
  limits.lines_per_second = 10;
  limits.burst_lines = 5;
  LogForwarder logs("j1", 0, "h", limits);
  for (int i = 0; i < 8; ++i) logs.Add("line", absl::Seconds(1), absl::UnixEpoch());
  auto batch = logs.Take();
  ASSERT_TRUE(batch.has_value());
  EXPECT_EQ(batch->lines_size(), 5);
  EXPECT_EQ(batch->dropped(), 3);
  // 0.2 s later there is room for two.
  for (int i = 0; i < 3; ++i) logs.Add("line", absl::Seconds(1.2), absl::UnixEpoch());
  batch = logs.Take();
  EXPECT_EQ(batch->lines_size(), 2);
  EXPECT_EQ(batch->dropped(), 1);
}

TEST(LogForwarderTest, LongLinesAndLargeBatchesAreCut) {
  LogLimits limits;
  limits.max_batch_lines = 2;
  limits.max_line_bytes = 10;
  LogForwarder logs("j1", 0, "h", limits);
  for (int i = 0; i < 3; ++i) logs.Add(std::string(100, 'x'), absl::Seconds(1), absl::UnixEpoch());
  const auto batch = logs.Take();
  EXPECT_EQ(batch->lines_size(), 2);
  EXPECT_EQ(batch->dropped(), 1);
  EXPECT_LE(batch->lines(0).text().size(), 10u);
}

}  // namespace
}  // namespace capstan::gpu_worker
