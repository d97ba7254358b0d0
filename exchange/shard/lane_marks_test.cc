#include "exchange/shard/lane_marks.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Three lanes; each epoch has a step of 4 samples and one of a single sample, which lane 0 has.
training::SamplePlan Samples() {
  training::SamplePlanOptions options;
  options.dataset_size = 5;
  options.global_batch = 4;
  options.lanes = 3;
  return *training::SamplePlan::Create(options);
}

class LaneMarksTest : public testing::Test {
 protected:
  const training::SamplePlan samples_ = Samples();
  LaneMarks marks_{samples_, /*total_steps=*/5};
};

TEST_F(LaneMarksTest, AMarkIsNeverAStepInWhichTheLaneHasNoSamples) {
  EXPECT_EQ(NextStepOf(samples_, 5, 0, 1), 1);
  EXPECT_EQ(NextStepOf(samples_, 5, 1, 1), 2);
  EXPECT_EQ(NextStepOf(samples_, 2, 1, 1), 2) << "the end";
  EXPECT_EQ(NextStepOf(samples_, 5, 1, 5), 5);
  marks_.Begin(1);
  marks_.Raise(0, 1, true);
  EXPECT_EQ(marks_.mark(0, 1), 2);
  marks_.Raise(0, 0, true);
  EXPECT_EQ(marks_.mark(0, 0), 1);
}

TEST_F(LaneMarksTest, TheSlowestChunkSpeaksForALane) {
  marks_.Begin(2);
  EXPECT_THAT(marks_.MissingLanes(0), ElementsAre(0, 1, 2));
  marks_.Raise(0, 0, true);
  EXPECT_EQ(marks_.Lowest(0), 0);
  EXPECT_EQ(marks_.MissingChunks(0), 2);
  marks_.Raise(1, 0, true);
  EXPECT_EQ(marks_.Lowest(0), 1);
  EXPECT_EQ(marks_.Floor(), 0);
  for (const int32_t chunk : {0, 1}) {
    marks_.Raise(chunk, 1, true);
    EXPECT_EQ(marks_.MissingChunks(0), 2);
  }
  marks_.Raise(1, 2, true);
  EXPECT_EQ(marks_.MissingChunks(0), 1);
  EXPECT_THAT(marks_.MissingLanes(0), ElementsAre(2));
  marks_.Raise(0, 2, true);
  EXPECT_EQ(marks_.Floor(), 1);
  EXPECT_THAT(marks_.MissingLanes(0), IsEmpty());
  EXPECT_THAT(marks_.MissingLanes(1), ElementsAre(0)) << "the others have no samples in step 1";
  EXPECT_EQ(marks_.MissingChunks(1), 2);
}

TEST_F(LaneMarksTest, ASkipIsNoUpdate) {
  marks_.Begin(1);
  marks_.Raise(0, 0, true);
  marks_.Raise(0, 0, false);
  EXPECT_EQ(marks_.mark(0, 0), 2);
  EXPECT_EQ(marks_.updates(0), 1);
}

TEST_F(LaneMarksTest, WhatIsSavedIsRestored) {
  marks_.Begin(2);
  marks_.Raise(1, 2, true);
  EXPECT_THAT(marks_.Saved(), ElementsAre(0, 0, 0, 0, 0, 0, 2, 1));
  LaneMarks other(samples_, 5);
  ASSERT_TRUE(other.Restore(2, 0, marks_.Saved()).ok());
  EXPECT_EQ(other.Saved(), marks_.Saved());
  EXPECT_EQ(other.Lowest(2), 0);
  other.Raise(0, 2, true);
  EXPECT_EQ(other.Lowest(2), 2);
}

TEST_F(LaneMarksTest, RefusesWhatCannotBe) {
  marks_.Begin(1);
  const std::vector<int64_t> before = marks_.Saved();
  EXPECT_EQ(marks_.Restore(1, 0, {0, 0, 0}).message(), "marks: 3 numbers, want 4");
  EXPECT_EQ(marks_.Restore(1, 0, {0, 0, 6, 0}).message(), "mark 6 of lane 2: want a step of 0..5");
  EXPECT_EQ(marks_.Restore(1, 2, {2, 0, 2, 0}).message(), "mark 0 of lane 1: want a step of 2..5");
  EXPECT_EQ(marks_.Restore(1, 0, {0, 1, 0, 0}).message(), "mark 1 of lane 1: want a step of 0..5");
  EXPECT_EQ(marks_.Restore(1, 0, {0, 0, 0, -1}).message(), "updates below 0");
  EXPECT_EQ(marks_.Saved(), before);
}

}  // namespace
}  // namespace capstan::exchange::shard
