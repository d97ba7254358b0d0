#include "training/lead/loss_scale.h"

#include <limits>

#include "gtest/gtest.h"

namespace capstan::training {
namespace {

TEST(LossScaleTest, WithoutItTheScaleIsOneAndEveryBadStepCounts) {
  LossScale scale(/*dynamic=*/false);
  EXPECT_FALSE(scale.Note(true));
  EXPECT_TRUE(scale.Note(false));
  EXPECT_EQ(scale.value(), 1);
  EXPECT_FALSE(scale.Restore(2, 0));
}

TEST(LossScaleTest, HalvesOnABadStepAndDoublesAfter2000GoodOnes) {
  LossScale scale(/*dynamic=*/true);
  EXPECT_EQ(scale.value(), 65536);
  EXPECT_FALSE(scale.Note(false));
  EXPECT_EQ(scale.value(), 32768);
  for (int i = 0; i < 1999; ++i) EXPECT_FALSE(scale.Note(true));
  EXPECT_EQ(scale.value(), 32768);
  scale.Note(true);
  EXPECT_EQ(scale.value(), 65536);
  for (int i = 0; i < 1999; ++i) scale.Note(true);
  scale.Note(false);  // the count starts again here
  for (int i = 0; i < 1999; ++i) scale.Note(true);
  EXPECT_EQ(scale.value(), 32768);
}

TEST(LossScaleTest, BelowOneABadStepCounts) {
  LossScale scale(/*dynamic=*/true);
  for (int i = 0; i < 17; ++i) EXPECT_FALSE(scale.Note(false)) << i;  // at 2^16 down to 2^0
  EXPECT_EQ(scale.value(), 0.5);
  EXPECT_TRUE(scale.Note(false));
}

TEST(LossScaleTest, NeverAboveItsLimitAndRestoredExactly) {
  LossScale scale(/*dynamic=*/true);
  ASSERT_TRUE(scale.Restore(LossScale::kLargest, 1999));
  EXPECT_EQ(scale.good_steps(), 1999);
  scale.Note(true);
  EXPECT_EQ(scale.value(), LossScale::kLargest);
  for (const double value :
       {0.0, -1.0, 3.0, 2 * LossScale::kLargest, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(scale.Restore(value, 0)) << value;
  }
  EXPECT_FALSE(scale.Restore(8, 2000));
  EXPECT_FALSE(scale.Restore(8, -1));
  EXPECT_EQ(scale.value(), LossScale::kLargest);  // nothing changed
  EXPECT_TRUE(scale.Restore(0.25, 0));
  EXPECT_EQ(scale.value(), 0.25);
}

}  // namespace
}  // namespace capstan::training
