#include "training/schedule/schedule.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::training {
namespace {

using Unit = SchedulePeriod::Unit;

Schedule Make(const ScheduleOptions& options, int64_t steps_per_epoch = 10,
              int64_t total_steps = 100) {
  absl::StatusOr<Schedule> schedule = Schedule::Create(options, steps_per_epoch, total_steps);
  EXPECT_TRUE(schedule.ok()) << schedule.status();
  return *std::move(schedule);
}

TEST(ScheduleTest, Constant) {
  const Schedule schedule = Make({.learning_rate = 0.2});
  EXPECT_EQ(schedule.LearningRate(0), 0.2);
  EXPECT_EQ(schedule.LearningRate(99), 0.2);
  EXPECT_EQ(schedule.LearningRate(int64_t{1} << 62), 0.2);
}

TEST(ScheduleTest, WarmUpIsLinearAndEndsAtTheBaseRate) {
  const Schedule schedule = Make({.learning_rate = 1.0, .warmup = {4, Unit::kSteps}});
  EXPECT_EQ(schedule.LearningRate(0), 0.25);
  EXPECT_EQ(schedule.LearningRate(1), 0.5);
  EXPECT_EQ(schedule.LearningRate(3), 1.0);
  EXPECT_EQ(schedule.LearningRate(4), 1.0);
}

TEST(ScheduleTest, StepMultipliesAfterEachPeriod) {
  const Schedule schedule = Make({.kind = ScheduleKind::kStep,
                                  .learning_rate = 0.5,
                                  .every = {2, Unit::kEpochs},
                                  .factor = 0.5});
  EXPECT_EQ(schedule.LearningRate(19), 0.5);
  EXPECT_EQ(schedule.LearningRate(20), 0.25);
  EXPECT_EQ(schedule.LearningRate(39), 0.25);
  EXPECT_EQ(schedule.LearningRate(40), 0.125);
}

TEST(ScheduleTest, StepCountsTheWarmUpToo) {
  const Schedule schedule = Make({.kind = ScheduleKind::kStep,
                                  .learning_rate = 1.0,
                                  .every = {5, Unit::kSteps},
                                  .factor = 0.5,
                                  .warmup = {2, Unit::kSteps}});
  EXPECT_EQ(schedule.LearningRate(0), 0.5);
  EXPECT_EQ(schedule.LearningRate(4), 1.0);
  EXPECT_EQ(schedule.LearningRate(5), 0.5);
}

TEST(ScheduleTest, CosineByHand) {
  const Schedule schedule = Make({.kind = ScheduleKind::kCosine,
                                  .learning_rate = 1.0,
                                  .min_learning_rate = 0.2,
                                  .warmup = {2, Unit::kEpochs}},
                                 /*steps_per_epoch=*/10, /*total_steps=*/80);
  EXPECT_EQ(schedule.LearningRate(19), 1.0);
  EXPECT_EQ(schedule.LearningRate(20), 1.0);
  // A sixth, a half and two thirds of the way: cos = sqrt(3)/2, 0, -1/2.
  EXPECT_NEAR(schedule.LearningRate(30), 0.2 + 0.8 * (1 + std::sqrt(3.0) / 2) / 2, 1e-15);
  EXPECT_NEAR(schedule.LearningRate(50), 0.6, 1e-15);
  EXPECT_NEAR(schedule.LearningRate(60), 0.4, 1e-15);
  EXPECT_GT(schedule.LearningRate(79), 0.2);
  EXPECT_EQ(schedule.LearningRate(80), 0.2);
  EXPECT_EQ(schedule.LearningRate(1000), 0.2);
}

TEST(ScheduleTest, RefusesOptionsOutOfRange) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto step = ScheduleKind::kStep;
  const auto cosine = ScheduleKind::kCosine;
  for (const ScheduleOptions& options : {
           ScheduleOptions{.learning_rate = 0},
           ScheduleOptions{.learning_rate = -1},
           ScheduleOptions{.learning_rate = inf},
           ScheduleOptions{.learning_rate = std::nan("")},
           ScheduleOptions{.kind = step, .learning_rate = 1},
           ScheduleOptions{.kind = step, .learning_rate = 1, .every = {1}, .factor = 0},
           ScheduleOptions{.kind = step, .learning_rate = 1, .every = {1}, .factor = 2},
           ScheduleOptions{.kind = step, .learning_rate = 1, .every = {INT64_MAX, Unit::kEpochs}},
           ScheduleOptions{.kind = cosine, .learning_rate = 1, .min_learning_rate = 2},
           ScheduleOptions{.kind = cosine, .learning_rate = 1, .warmup = {100}},
           ScheduleOptions{.learning_rate = 1, .warmup = {-1}},
       }) {
    EXPECT_EQ(Schedule::Create(options, 10, 100).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(Schedule::Create({.learning_rate = 1}, 0, 100).ok());
  EXPECT_FALSE(Schedule::Create({.learning_rate = 1}, 10, 0).ok());
}

}  // namespace
}  // namespace capstan::training
