#include "training/schedule/schedule.h"

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

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

TEST(ScheduleTest, MultiStepMultipliesAtEachMilestone) {
  // PyTorch's docs of MultiStepLR: lr = 0.05, milestones 30 and 80, gamma 0.1 give 0.05 if
  // epoch < 30, 0.005 if 30 <= epoch < 80, 0.0005 if epoch >= 80.
  const Schedule schedule = Make({.kind = ScheduleKind::kMultiStep,
                                  .learning_rate = 0.05,
                                  .milestones = {{3, Unit::kEpochs}, {80, Unit::kSteps}},
                                  .factor = 0.1});
  EXPECT_EQ(schedule.LearningRate(0), 0.05);
  EXPECT_EQ(schedule.LearningRate(29), 0.05);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(30), 0.005);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(79), 0.005);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(80), 0.0005);
  EXPECT_DOUBLE_EQ(schedule.LearningRate(int64_t{1} << 62), 0.0005);
}

// PyTorch's closed form: base * (1 - min(total, t) / total)^power.
TEST(ScheduleTest, PolynomialByHand) {
  const Schedule square =
      Make({.kind = ScheduleKind::kPolynomial, .learning_rate = 0.5, .power = 2}, 10, 8);
  const double want[] = {0.5, 0.3828125, 0.28125, 0.1953125, 0.125, 0.0703125, 0.03125, 0.0078125};
  for (int64_t step = 0; step < 8; ++step) {
    EXPECT_DOUBLE_EQ(square.LearningRate(step), want[step]) << step;
  }
  EXPECT_EQ(square.LearningRate(8), 0);
  EXPECT_EQ(square.LearningRate(99), 0);
  const Schedule line = Make({.kind = ScheduleKind::kPolynomial,
                              .learning_rate = 1,
                              .min_learning_rate = 0.2,
                              .warmup = {2, Unit::kSteps}},
                             10, 10);
  EXPECT_EQ(line.LearningRate(1), 1);
  EXPECT_EQ(line.LearningRate(2), 1);
  EXPECT_DOUBLE_EQ(line.LearningRate(6), 0.6);  // half of the way
  EXPECT_EQ(line.LearningRate(10), 0.2);
}

// The numbers are those of the formulas in OneCycleLR.get_lr (torch/optim/lr_scheduler.py, two
// phases, "cos"), computed in Python.
TEST(ScheduleTest, OneCycleIsPyTorchs) {
  const auto expect = [](const ScheduleOptions& options, int64_t total_steps,
                         const std::vector<std::pair<int64_t, double>>& want) {
    const Schedule schedule = Make(options, 10, total_steps);
    for (const auto& [step, rate] : want) {
      EXPECT_NEAR(schedule.LearningRate(step), rate, 1e-15) << total_steps << ", step " << step;
    }
  };
  ScheduleOptions options{.kind = ScheduleKind::kOneCycle, .learning_rate = 1};
  expect(options, 10,
         {{0, 0.040000000000000036},
          {1, 0.52},
          {2, 1.0},
          {3, 0.9504846320134737},
          {4, 0.8117456539497631},
          {5, 0.6112620219362893},
          {6, 0.38874197806371075},
          {7, 0.18825834605023697},
          {8, 0.049519367986526286},
          {9, 4e-06},
          {10, 4e-06},
          {1000, 4e-06}});
  options.pct_start = 0.25;
  options.div_factor = 10;
  options.final_div_factor = 100;
  expect(options, 100,
         {{0, 0.09999999999999998},
          {1, 0.10384981238178526},
          {12, 0.55},
          {24, 1.0},
          {25, 0.9995618536343798},
          {60, 0.5318638645048921},
          {98, 0.0014381463656202376},
          {99, 0.001}});
  options.pct_start = 0.5;  // the top lies between two steps
  options.div_factor = 4;
  options.final_div_factor = 2;
  expect(options, 7,
         {{0, 0.25},
          {1, 0.5091186271093947},
          {2, 0.9283813728906053},
          {3, 0.9566738797073083},
          {4, 0.6598529086058875},
          {5, 0.2897232116868041},
          {6, 0.125}});
}

// With these options PyTorch's formula divides by 0.
TEST(ScheduleTest, OneCycleOfFewStepsStaysBetweenItsRates) {
  for (const double pct_start : {0.0, 0.1, 0.5, 1.0}) {
    for (const int64_t total : {1, 2, 3, 10}) {
      const Schedule schedule = Make(
          {.kind = ScheduleKind::kOneCycle, .learning_rate = 1, .pct_start = pct_start}, 10, total);
      for (int64_t step = 0; step <= total; ++step) {
        EXPECT_GE(schedule.LearningRate(step), 4e-6 * (1 - 1e-9)) << pct_start << " " << step;
        EXPECT_LE(schedule.LearningRate(step), 1) << pct_start << " of " << total << " " << step;
      }
    }
  }
}

// An order may lower the rate below the job file's minimum. The minimum then becomes the ordered
// rate.
TEST(ScheduleTest, ABaseRateBelowTheLeastOneIsTheLeastOne) {
  const Schedule schedule = *Schedule::Create(
      {.kind = ScheduleKind::kCosine, .learning_rate = 1, .min_learning_rate = 0.5}, 10, 100);
  const Schedule lower = schedule.WithBaseRate(0.25);
  EXPECT_EQ(lower.LearningRate(0), 0.25);
  EXPECT_EQ(lower.LearningRate(99), 0.25);
  EXPECT_EQ(lower.LearningRate(100), 0.25);
  EXPECT_EQ(schedule.WithBaseRate(2).LearningRate(100), 0.5);
}

TEST(ScheduleTest, RefusesOptionsOutOfRange) {
  const double inf = std::numeric_limits<double>::infinity();
  const auto step = ScheduleKind::kStep;
  const auto cosine = ScheduleKind::kCosine;
  const auto many = ScheduleKind::kMultiStep;
  const auto polynomial = ScheduleKind::kPolynomial;
  const auto cycle = ScheduleKind::kOneCycle;
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
           ScheduleOptions{.kind = many, .learning_rate = 1},
           ScheduleOptions{.kind = many, .learning_rate = 1, .milestones = {{0}}},
           ScheduleOptions{.kind = many, .learning_rate = 1, .milestones = {{5}, {5}}},
           ScheduleOptions{
               .kind = many, .learning_rate = 1, .milestones = {{2, Unit::kEpochs}, {19}}},
           ScheduleOptions{.kind = many, .learning_rate = 1, .milestones = {{5}}, .factor = 1.5},
           ScheduleOptions{.kind = polynomial, .learning_rate = 1, .power = 0},
           ScheduleOptions{.kind = polynomial, .learning_rate = 1, .power = inf},
           ScheduleOptions{.kind = polynomial, .learning_rate = 1, .min_learning_rate = 2},
           ScheduleOptions{.kind = polynomial, .learning_rate = 1, .warmup = {100}},
           ScheduleOptions{.kind = cycle, .learning_rate = 1, .pct_start = 1.1},
           ScheduleOptions{.kind = cycle, .learning_rate = 1, .pct_start = std::nan("")},
           ScheduleOptions{.kind = cycle, .learning_rate = 1, .div_factor = 0.5},
           ScheduleOptions{.kind = cycle, .learning_rate = 1, .final_div_factor = inf},
           ScheduleOptions{.kind = cycle, .learning_rate = 1, .warmup = {1}},
       }) {
    EXPECT_EQ(Schedule::Create(options, 10, 100).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(Schedule::Create({.learning_rate = 1}, 0, 100).ok());
  EXPECT_FALSE(Schedule::Create({.learning_rate = 1}, 10, 0).ok());
}

TEST(ScheduleTest, TakesOptionsAtTheirLimits) {
  EXPECT_TRUE(Schedule::Create({.learning_rate = 1}, 1, 1).ok());
  const ScheduleOptions longest{
      .kind = ScheduleKind::kStep, .learning_rate = 1, .every = {int64_t{1} << 62}, .factor = 1};
  EXPECT_TRUE(Schedule::Create(longest, 10, 100).ok());
  const ScheduleOptions to_zero{.kind = ScheduleKind::kCosine, .learning_rate = 1};
  EXPECT_TRUE(Schedule::Create(to_zero, 10, 100).ok());
  const ScheduleOptions flat{
      .kind = ScheduleKind::kCosine, .learning_rate = 1, .min_learning_rate = 1};
  EXPECT_TRUE(Schedule::Create(flat, 10, 100).ok());
}

}  // namespace
}  // namespace capstan::training
