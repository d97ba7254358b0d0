// Ended jobs whose limits.ttl_after_finished is over.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class ExpiryTest : public RecoveryTest {
 protected:
  // A job that has ended with the checkpoints 1-4 and 1-5, and nothing of it runs any more.
  void Ended(double ttl_seconds) {
    job::v1::JobSpec spec = Spec(1, 1);
    if (ttl_seconds > 0) spec.mutable_limits()->set_ttl_after_finished_seconds(ttl_seconds);
    Running(1, 1, spec);
    Lead(4);
    for (const int64_t step : {4, 5}) Save(step);
    Cancel(id_);
    PassAndFollow(absl::Seconds(2));
    ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
  }
  bool Known() const { return core_.Peek(id_) != nullptr; }
};

TEST_F(ExpiryTest, CheckpointsGoFirstAndTheRecordWithThem) {
  Ended(/*ttl_seconds=*/100);
  Pass(absl::Seconds(97), All());
  EXPECT_THAT(Job(id_).checkpoints(), SizeIs(2));
  EXPECT_THAT(removes_, IsEmpty());
  Pass(absl::Seconds(2), All());
  EXPECT_THAT(Job(id_).checkpoints(), IsEmpty());
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointsExpired"));
  EXPECT_THAT(Saved(id_).deleted(), ElementsAre("1-4", "1-5"));  // durable before it is done
  ASSERT_THAT(removes_, SizeIs(2));
  Do(CheckpointRemoved{id_, removes_[0].checkpoint, absl::OkStatus()});
  EXPECT_TRUE(Known());
  Do(CheckpointRemoved{id_, removes_[1].checkpoint, absl::OkStatus()});
  EXPECT_FALSE(Known());
  EXPECT_EQ(journal_.state().jobs.count(id_), 0u);
}

TEST_F(ExpiryTest, TheyGoInTheMomentWhenTheirTimeIsOver) {
  Ended(/*ttl_seconds=*/100);
  Pass(core_.Peek(id_)->standing().ended_at() + absl::Seconds(100) - now_, All());
  EXPECT_THAT(removes_, SizeIs(2));
}

TEST_F(ExpiryTest, WithoutTheKeyNothingGoesByTime) {
  Ended(/*ttl_seconds=*/0);
  Pass(absl::Hours(24), All());
  EXPECT_THAT(Job(id_).checkpoints(), SizeIs(2));
  EXPECT_THAT(removes_, IsEmpty());
}

TEST_F(ExpiryTest, AFolderThatStaysIsTriedAgain) {
  Ended(/*ttl_seconds=*/10);
  Pass(absl::Seconds(10), All());
  ASSERT_THAT(removes_, SizeIs(2));
  Do(CheckpointRemoved{id_, "1-4", absl::OkStatus()});
  Do(CheckpointRemoved{id_, "1-5", absl::DataLossError("unlink")});
  removes_.clear();
  Pass(absl::Minutes(11), All());
  ASSERT_THAT(removes_, SizeIs(1));
  EXPECT_EQ(removes_[0].checkpoint, "1-5");
  Do(CheckpointRemoved{id_, "1-5", absl::OkStatus()});
  EXPECT_FALSE(Known());
}

TEST_F(ExpiryTest, WhatAnotherJobBeginsFromStaysUntilItHasBegun) {
  Ended(/*ttl_seconds=*/10);
  job::v1::JobSpec spec = Spec(2, 1, "next");  // of a gang that is not there
  spec.mutable_model()->set_initial_weights(absl::StrCat("file:///out/", id_, "/1-5"));
  const std::string next = Submit(spec, "next");
  ASSERT_NE(next, "");
  Pass(absl::Seconds(20), All());
  ASSERT_THAT(Job(id_).checkpoints(), SizeIs(1));
  EXPECT_EQ(Job(id_).checkpoints(0).id(), "1-5");
  Do(CheckpointRemoved{id_, "1-4", absl::OkStatus()});
  EXPECT_TRUE(Known());
  Cancel(next);
  Pass(absl::Minutes(11), All());
  Do(CheckpointRemoved{id_, "1-5", absl::OkStatus()});
  EXPECT_FALSE(Known());
}

TEST_F(ExpiryTest, AStartOfTheCoordinatorGivesTheWholeTimeAgain) {
  Ended(/*ttl_seconds=*/100);
  Pass(absl::Seconds(90), All());
  World next;
  // A wall clock far ahead changes nothing.
  ASSERT_TRUE(
      next.core_.Restore(journal_.state(), absl::Seconds(1), absl::FromUnixSeconds(1 << 30)).ok());
  next.now_ = absl::Seconds(1);
  next.Do(Restored{});
  next.Pass(absl::Seconds(90));
  EXPECT_THAT(next.Job(id_).checkpoints(), SizeIs(2));
  next.Pass(absl::Seconds(15));
  EXPECT_THAT(next.Job(id_).checkpoints(), IsEmpty());
}

}  // namespace
}  // namespace capstan::coordinator::core
