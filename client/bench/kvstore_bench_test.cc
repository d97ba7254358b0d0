#include "client/bench/kvstore_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/timestamp/timestamp.h"
#include "training/spec/resolve.h"

namespace capstan::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ReadSizesTest, TakesKiBAndMiB) {
  EXPECT_THAT(*ReadSizes("4KiB,1MiB,1024MiB"), ElementsAre(4096, 1 << 20, 1 << 30));
  for (const char* const bad : {"", "4", "4KB", "0KiB", "-1KiB", "1KiB,", "1.5MiB", "1025MiB",
                                "9223372036854775807KiB", "KiB", "4 KiB,x"}) {
    EXPECT_THAT(ReadSizes(bad).status().message(), HasSubstr("want sizes from 1KiB")) << bad;
  }
  EXPECT_THAT(ReadSizes("4KiB,7").status().message(), HasSubstr("got '7'"));
}

common::v1::DatasetInfo Digits() {
  common::v1::DatasetInfo digits;
  digits.set_train_samples(8192);
  digits.set_test_samples(10);
  digits.set_channels(1);
  digits.set_height(28);
  digits.set_width(28);
  digits.set_num_classes(10);
  return digits;
}

TEST(BenchJobTest, HasAsManyBytesAsWanted) {
  for (const int64_t bytes : {1 << 12, 1 << 16, 1 << 20, 1 << 26}) {
    const KvstoreBench bench{.workers = 4, .shards = 2};
    const absl::StatusOr<job::v1::JobSpec> spec = MakeBenchJob(bench, bytes);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto plan = training::spec::Resolve(*spec, Digits(), {});
    ASSERT_TRUE(plan.ok()) << plan.status();
    int64_t parameters = 0;
    for (const auto& parameter : plan->parameters()) {
      int64_t elements = 1;
      for (const int64_t extent : parameter.shape()) elements *= extent;
      parameters += elements;
    }
    EXPECT_EQ(4 * parameters, WeightBytes(bytes));
    EXPECT_NEAR(static_cast<double>(WeightBytes(bytes)), static_cast<double>(bytes), 4 * 75 / 2.0);
    EXPECT_EQ(plan->lanes(), 4);
    EXPECT_EQ(plan->num_shards(), 2);
    EXPECT_EQ(plan->global_batch(), 4);
  }
}

TEST(BenchJobTest, NamesTheKeyThatIsWrong) {
  EXPECT_THAT(MakeBenchJob({.kvstore = "dist_foo"}, 4096).status().message(),
              HasSubstr("'kvstore.type'"));
  EXPECT_THAT(MakeBenchJob({.compression = "3bit"}, 4096).status().message(),
              HasSubstr("'kvstore.gradient_compression.type'"));
  for (const char* const type : {"local", "device"}) {
    EXPECT_THAT(MakeBenchJob({.kvstore = type}, 4096).status().message(),
                HasSubstr("exchanges nothing"));
  }
  for (const char* const type : {"dist_device_sync", "dist_async"}) {
    EXPECT_TRUE(MakeBenchJob({.kvstore = type}, 4096).ok()) << type;
  }
}

job::v1::MetricPoint Point(double seconds, int64_t steps, double wait) {
  job::v1::MetricPoint point;
  SetTime(absl::UnixEpoch() + absl::Seconds(seconds), point.mutable_time());
  if (steps == 0) return point;
  job::v1::StepBreakdown& mean = *point.mutable_breakdown();
  mean.set_steps(steps);
  mean.set_barrier_wait(wait);
  mean.set_push(1);
  mean.set_pull(2);
  mean.set_forward_backward(8);
  mean.set_total(11 + wait);
  return point;
}

TEST(FiguresTest, LeavesTheWarmUpOutAndWeighsBySteps) {
  std::vector<job::v1::MetricPoint> points = {Point(9, 0, 0), Point(10, 7, 1000),
                                              Point(11, 7, 1000)};
  const auto figures = [&points] { return FiguresOf(points, absl::Seconds(1), absl::Seconds(2)); };
  EXPECT_FALSE(figures().has_value());
  points.push_back(Point(12, 1, 16));
  points.push_back(Point(12.9, 2, 32));
  points.push_back(Point(13.5, 0, 0));  // says nothing about steps
  EXPECT_FALSE(figures().has_value());
  points.push_back(Point(14, 1, 32));
  points.push_back(Point(15, 100, 1000));
  const std::optional<ExchangeFigures> f = figures();
  ASSERT_TRUE(f.has_value());
  EXPECT_EQ(f->steps, 4);
  EXPECT_EQ(f->wait, (16 + 3 * 32) / 4.0);
  EXPECT_EQ(f->step, 11 + f->wait);
  EXPECT_EQ(f->computing, 8);
  EXPECT_EQ(f->exchange(), 1 + 2 + f->wait);
  // A single long step.
  const auto one = FiguresOf({Point(0, 1, 1000), Point(0.99, 1, 1000), Point(20, 1, 19)},
                             absl::Seconds(1), absl::Seconds(1));
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->wait, 19);
  EXPECT_FALSE(FiguresOf({}, absl::Seconds(1), absl::Seconds(2)).has_value());
  EXPECT_FALSE(
      FiguresOf({Point(1, 0, 0), Point(9, 0, 0)}, absl::Seconds(1), absl::Seconds(2)).has_value());
}

}  // namespace
}  // namespace capstan::client
