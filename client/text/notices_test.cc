#include "client/text/notices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/text/screen_text.h"

namespace capstan::client {
namespace {

job::v1::Job Waiting() {
  job::v1::Job job;
  job.set_job_id("b-2");
  job.set_state(common::v1::JOB_STATE_PENDING);
  job.set_reason("WaitingForSlots");
  job.set_message("0 of 2 are free (a-1 has them)");
  return job;
}

TEST(NoticesTest, AJobThatWaitsIsToldWithItsReasonOnceItReallyDoes) {
  Notices notices;
  const absl::Duration begin = absl::Seconds(100);
  EXPECT_EQ(notices.Next(Waiting(), false, begin), "");
  EXPECT_EQ(notices.Next(Waiting(), false, begin + absl::Milliseconds(1900)), "");
  EXPECT_EQ(notices.Next(Waiting(), false, begin + absl::Seconds(2)),
            "b-2  PENDING  WaitingForSlots: 0 of 2 are free (a-1 has them)\n");
  EXPECT_EQ(notices.Next(Waiting(), false, begin + absl::Minutes(5)), "");  // it was told already
}

TEST(NoticesTest, ANewReasonIsToldAndNotTooOften) {
  Notices notices;
  job::v1::Job job = Waiting();
  const absl::Duration begin = absl::Seconds(100);
  notices.Next(job, false, begin);
  EXPECT_NE(notices.Next(job, false, begin + absl::Seconds(2)), "");
  job.set_message("behind job c-3");
  EXPECT_EQ(notices.Next(job, false, begin + absl::Seconds(11)), "");
  EXPECT_EQ(notices.Next(job, false, begin + absl::Seconds(12)),
            "b-2  PENDING  WaitingForSlots: behind job c-3\n");
}

TEST(NoticesTest, WhoSeesTheStateIsNotToldThatTheJobWaits) {
  Notices notices;
  notices.Next(Waiting(), true, absl::ZeroDuration());
  EXPECT_EQ(notices.Next(Waiting(), true, absl::Minutes(1)), "");
}

TEST(NoticesTest, WhatStartsAtOnceHasNotWaited) {
  Notices notices;
  job::v1::Job job = Waiting();
  notices.Next(job, false, absl::ZeroDuration());
  job.set_state(common::v1::JOB_STATE_RUNNING);
  EXPECT_EQ(notices.Next(job, false, absl::Minutes(1)), "");
  job.set_state(common::v1::JOB_STATE_PENDING);  // a restart: the wait begins only now
  EXPECT_EQ(notices.Next(job, false, absl::Minutes(2)), "");
}

TEST(NoticesTest, CheckpointsThatCannotBeSavedAreToldAndThatTheyAreAgain) {
  Notices notices;
  job::v1::Job job;
  job.set_job_id("b-2");
  job.set_state(common::v1::JOB_STATE_RUNNING);
  EXPECT_EQ(notices.Next(job, true, absl::ZeroDuration()), "");
  job.add_conditions("CHECKPOINT_DEGRADED");
  job::v1::Event& event = *job.add_events();
  event.set_type("CheckpointFailed");
  event.set_message("step 8: shard 0 on host a: No space left on device");
  EXPECT_EQ(notices.Next(job, true, absl::ZeroDuration()),
            "capstan: b-2: no checkpoint: step 8: shard 0 on host a: No space left on device\n");
  EXPECT_EQ(notices.Next(job, true, absl::Minutes(1)), "");
  job.clear_conditions();
  EXPECT_EQ(notices.Next(job, true, absl::Minutes(2)),
            "capstan: b-2: checkpoints are saved again\n");
}

TEST(ScreenTextTest, WidthsAreWhatIsSeen) {
  EXPECT_EQ(ShownWidth("abc"), 3);
  EXPECT_EQ(ShownWidth("\033[32mabc\033[0m"), 3);
  EXPECT_EQ(ShownWidth("\xc3\xa4\xe2\xa3\xbf"), 2);  // two characters of two and three bytes
  EXPECT_EQ(ShownWidth(""), 0);
}

TEST(ScreenTextTest, ALineIsCutBetweenCharactersAndItsColourEndsWithIt) {
  EXPECT_EQ(CutLine("abcdef", 4), "abcd");
  EXPECT_EQ(CutLine("abcd", 4), "abcd");
  EXPECT_EQ(CutLine("\033[32mRUNNING\033[0m  1", 3), "\033[32mRUN\033[0m");
  EXPECT_EQ(CutLine("\033[32mRUN\033[0m  1", 4), "\033[32mRUN\033[0m ");
  EXPECT_EQ(CutLine("\xc3\xa4\xc3\xa4", 1), "\xc3\xa4");
  EXPECT_EQ(FitLines("abc\ndef\nghi", 2, 2), "ab\nde");
}

// A terminal that has become narrower has wrapped its lines.
TEST(ScreenTextTest, RowsGrowWhereTheTerminalIsNarrow) {
  EXPECT_EQ(RowsOf("0123456789\nabc", 80), 2);
  EXPECT_EQ(RowsOf("0123456789\nabc", 10), 2);
  EXPECT_EQ(RowsOf("0123456789\nabc", 9), 3);
  EXPECT_EQ(RowsOf("0123456789\nabc\n", 4), 5);
}

}  // namespace
}  // namespace capstan::client
