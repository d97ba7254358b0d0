#include "training/history/event_file.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

using testing::ElementsAre;
using testing::Pair;

// Written by the RecordWriter of tensorboard 2.21, in hexadecimal.
TEST(EventFileTest, HasTheBytesOfAnotherWriter) {
  EXPECT_EQ(absl::BytesToHexString(EventFileHead(1.5)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
  EXPECT_EQ(
      absl::BytesToHexString(EventRecord({1700000000.25, 300, {{"loss", 0.5}}})),
      "1b000000000000001a0d9e130900001040fc54d94110ac022a0d0a0b0a046c6f7373150000003f77f990a0");
}

job::v1::MetricPoint PointOf(int64_t step, double loss) {
  job::v1::MetricPoint point;
  point.set_step(step);
  point.mutable_time()->set_seconds(1000 + step);
  point.mutable_time()->set_nanos(500'000'000);
  point.set_loss(loss);
  return point;
}

TEST(EventsOfTest, PointsAndEvaluationsByStep) {
  JobHistory history;
  history.points = {PointOf(10, 2), PointOf(20, 1), PointOf(30, 0.5)};
  history.evaluations = {{.epoch = 1, .step = 15, .loss = 3, .accuracy = 0.25},
                         {.epoch = 2, .step = 30, .loss = {}, .accuracy = 0.5},
                         {.epoch = 3, .step = 40, .loss = {}, .accuracy = 0.75}};
  WrittenEvents written{.step = 10, .evaluation_step = 0};
  const std::vector<ScalarEvent> events =
      EventsOf(history, {"loss", "validation_loss", "validation_accuracy"}, written);
  ASSERT_EQ(events.size(), 4);
  EXPECT_EQ(events[0].step, 15);
  EXPECT_EQ(events[0].unix_seconds, 1020.5);
  EXPECT_THAT(events[0].values,
              ElementsAre(Pair("validation_loss", 3), Pair("validation_accuracy", 0.25)));
  EXPECT_EQ(events[1].step, 20);
  EXPECT_EQ(events[1].unix_seconds, 1020.5);
  EXPECT_THAT(events[1].values, ElementsAre(Pair("loss", 1)));
  EXPECT_THAT(events[2].values, ElementsAre(Pair("loss", 0.5), Pair("validation_accuracy", 0.5)));
  EXPECT_EQ(events[3].step, 40);
  EXPECT_EQ(events[3].unix_seconds, 1030.5);
  EXPECT_TRUE(EventsOf(history, MetricNames(), written).empty());
  EXPECT_TRUE(EventsOf({}, MetricNames(), written).empty());

  // An evaluation that comes after the point of its step.
  history.points.push_back(PointOf(50, 0.25));
  EXPECT_EQ(EventsOf(history, MetricNames(), written).size(), 1);
  history.evaluations.push_back({.epoch = 4, .step = 50, .loss = {}, .accuracy = 1});
  const std::vector<ScalarEvent> late = EventsOf(history, MetricNames(), written);
  ASSERT_EQ(late.size(), 1);
  EXPECT_EQ(late[0].step, 50);
  EXPECT_THAT(late[0].values, ElementsAre(Pair("validation_accuracy", 1)));
}

}  // namespace
}  // namespace capstan::training
