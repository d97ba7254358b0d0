#include "param_store/load_meter.h"

#include <gtest/gtest.h>

namespace capstan::param_store {
namespace {

TEST(LoadMeterTest, RatesAreOfTheLastSecondAndQuantilesOfTheLastFrames) {
  LoadMeter meter;
  EXPECT_EQ(meter.Report(absl::Seconds(10), 0, -1).ByteSizeLong(), 0u);
  for (int i = 1; i <= 200; ++i) meter.Pushed(absl::Milliseconds(i), 1000);
  meter.Pulled(absl::Milliseconds(3));
  meter.Sent(5000);
  EXPECT_FALSE(meter.Report(absl::Seconds(10.5), 0, -1).has_pushes_per_second());
  common::v1::ShardLoad load = meter.Report(absl::Seconds(12), 0, -1);
  EXPECT_DOUBLE_EQ(load.pushes_per_second(), 100);
  EXPECT_DOUBLE_EQ(load.bytes_in_per_second(), 100000);
  EXPECT_DOUBLE_EQ(load.pulls_per_second(), 0.5);
  EXPECT_DOUBLE_EQ(load.bytes_out_per_second(), 2500);
  EXPECT_NEAR(load.push_p99_seconds(), 0.198, 1e-6);  // 198 of 200 are not larger
  EXPECT_NEAR(load.pull_p99_seconds(), 0.003, 1e-6);
  load = meter.Report(absl::Seconds(13), 0, -1);
  EXPECT_DOUBLE_EQ(load.pushes_per_second(), 0);
  for (int i = 0; i < 256; ++i) meter.Pushed(absl::Milliseconds(1), 0);
  EXPECT_NEAR(meter.Report(absl::Seconds(14), 0, -1).push_p99_seconds(), 0.001, 1e-6);
}

TEST(LoadMeterTest, TrafficAndStepsAreOfTheLineageAtHand) {
  LoadMeter meter;
  meter.Report(absl::Seconds(1), 1, 0);
  meter.Pushed(absl::Milliseconds(1), 700);
  meter.Sent(300);
  common::v1::ShardLoad load = meter.Report(absl::Seconds(2), 1, 4);
  EXPECT_EQ(load.traffic_bytes(), 1000);
  EXPECT_EQ(load.traffic_steps(), 4);
  meter.Report(absl::Seconds(3), 2, 4);  // the next one goes on from version 4
  meter.Sent(50);
  load = meter.Report(absl::Seconds(4), 2, 5);
  EXPECT_EQ(load.traffic_bytes(), 50);
  EXPECT_EQ(load.traffic_steps(), 1);
}

}  // namespace
}  // namespace capstan::param_store
