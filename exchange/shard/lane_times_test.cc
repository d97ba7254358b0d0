#include "exchange/shard/lane_times.h"

#include "exchange/shard/test_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using training::LaneTree;

// Six lanes of three workers, two each. Times in milliseconds since the step began.
class LaneTimesTest : public testing::Test {
 protected:
  void Begin() { times_.BeginStep(LaneTree(6), owners_, now_); }
  void SealAt(int64_t ms, int32_t first, int32_t count) {
    times_.Sealed({first, count}, now_ + absl::Milliseconds(ms));
  }
  std::vector<int32_t> LateAt(int64_t ms) { return times_.Late(now_ + absl::Milliseconds(ms)); }
  // Steps of 100 ms: w0 and w1 need 50 ms, w2 all of it.
  void Steps(int count) {
    for (int i = 0; i < count; ++i) {
      Begin();
      SealAt(50, 0, 2);
      SealAt(50, 2, 2);
      SealAt(100, 4, 2);
      now_ += absl::Milliseconds(100);
    }
  }

  LaneTimes times_;
  std::vector<int32_t> owners_ = {0, 0, 1, 1, 2, 2};
  absl::Duration now_ = absl::Seconds(7);
};

TEST_F(LaneTimesTest, SaysHowLongEachWorkerNeeds) {
  Steps(4);
  ASSERT_THAT(times_.workers(), SizeIs(3));
  EXPECT_EQ(times_.workers().at(2).steps, 4);
  EXPECT_EQ(times_.workers().at(2).lanes, 8);
  EXPECT_DOUBLE_EQ(times_.workers().at(2).seconds, 0.4);
  EXPECT_DOUBLE_EQ(times_.workers().at(0).seconds, 0.2);
}

TEST_F(LaneTimesTest, ALaneIsLateAgainstTheOthersOfItsStep) {
  Steps(5);
  Begin();
  EXPECT_THAT(LateAt(100000), IsEmpty());  // nobody is done: there is nobody to compare with
  SealAt(300, 0, 2);
  SealAt(300, 2, 2);
  SealAt(310, 4, 1);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(1200));  // 4 x 300
  EXPECT_THAT(LateAt(1199), IsEmpty());
  EXPECT_THAT(LateAt(1200), ElementsAre(5));
  EXPECT_EQ(times_.NextLate(now_ + absl::Milliseconds(1200)), absl::InfiniteDuration());
}

// The limit is of the middle one, of however many and in whatever order they came.
TEST_F(LaneTimesTest, OfDifferentTimesTheMedianCounts) {
  Steps(5);
  owners_ = {0, 1, 2, 3, 4, 5};
  Begin();
  SealAt(200, 0, 1);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(800));
  SealAt(700, 1, 1);  // of two the upper one
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(2800));
  SealAt(300, 2, 1);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(1200));
  SealAt(150, 3, 1);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(1200));
  SealAt(150, 4, 1);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(800));
}

// Where this step is quick the last ones count: 100, 900, 500, 200 and 300 ms.
TEST_F(LaneTimesTest, OfDifferentStepsTheMedianCounts) {
  for (const int ms : {100, 900, 500, 200, 300}) {
    Begin();
    SealAt(10, 0, 6);
    now_ += absl::Milliseconds(ms);
  }
  Begin();
  SealAt(10, 0, 2);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(1200));
}

// The last 15 of 16 count: eight of 300 ms and seven of 900 ms.
TEST_F(LaneTimesTest, OldStepsAreForgotten) {
  for (int i = 0; i < 16; ++i) {
    Begin();
    SealAt(10, 0, 6);
    now_ += absl::Milliseconds(i == 0 || i > 8 ? 900 : 300);
  }
  Begin();
  SealAt(10, 0, 2);
  EXPECT_EQ(times_.NextLate(now_), now_ + absl::Milliseconds(1200));
}

TEST_F(LaneTimesTest, AWorkerIsDoneOnceHoweverItsLanesCome) {
  Begin();
  SealAt(10, 0, 1);
  SealAt(20, 0, 2);                                          // covers what was here
  times_.SetOwners(owners_, now_ + absl::Milliseconds(25));  // moves no lane
  SealAt(30, 2, 2);
  SealAt(40, 4, 1);
  times_.SetOwners(owners_, now_ + absl::Milliseconds(45));
  SealAt(50, 5, 1);
  for (const int32_t rank : {0, 1, 2}) {
    EXPECT_EQ(times_.workers().at(rank).steps, 1) << rank;
    EXPECT_EQ(times_.workers().at(rank).lanes, 2) << rank;
  }
  EXPECT_DOUBLE_EQ(times_.workers().at(2).seconds, 0.05);
}

TEST_F(LaneTimesTest, NeverBeforeTheFloorAndNotInTheFirstSteps) {
  Steps(2);
  Begin();
  SealAt(1, 0, 4);
  EXPECT_THAT(LateAt(100000), IsEmpty());
  SealAt(100, 4, 2);
  now_ += absl::Milliseconds(100);
  Begin();
  SealAt(1, 0, 4);
  EXPECT_THAT(LateAt(499), IsEmpty());
  EXPECT_THAT(LateAt(500), ElementsAre(4, 5));
}

// A generation that gives another lane away does not begin their time anew.
TEST_F(LaneTimesTest, EachLaneHasATimeOfItsOwn) {
  Steps(5);
  Begin();
  SealAt(10, 0, 2);
  const std::vector<int32_t> moved = {0, 0, 1, 0, 2, 2};
  times_.SetOwners(moved, now_ + absl::Milliseconds(450));
  EXPECT_THAT(LateAt(500), ElementsAre(2, 4, 5));
  EXPECT_THAT(LateAt(1449), ElementsAre(2, 4, 5));
  EXPECT_THAT(LateAt(1450), ElementsAre(2, 3, 4, 5));  // 450 + twice the time
}

TEST_F(LaneTimesTest, TheNextStepBeginsWithoutWhatWasRepeated) {
  Steps(5);
  Begin();
  SealAt(10, 0, 4);
  owners_ = {0, 0, 1, 1, 0, 1};
  times_.SetOwners(owners_, now_ + absl::Milliseconds(600));
  SealAt(700, 4, 2);
  // No lane changed hands in what is measured.
  EXPECT_EQ(times_.workers().at(0).steps, 6);
  EXPECT_EQ(times_.workers().at(2).steps, 5);
  now_ += absl::Milliseconds(700);
  Begin();
  SealAt(10, 0, 2);
  SealAt(10, 4, 1);
  EXPECT_THAT(LateAt(500), ElementsAre(2, 3, 5));
}

TEST_F(LaneTimesTest, LanesWithoutSamplesAreAwaitedFromNobody) {
  Steps(5);
  times_.BeginStep(LaneTree(4), owners_, now_);
  SealAt(10, 0, 2);
  EXPECT_THAT(LateAt(500), ElementsAre(2, 3));
}

// The lead says so by itself, the moment that it is so.
TEST_F(ShardCoreTest, ALateLaneIsToldAtOnce) {
  Ready(0, 1, 9);
  for (int step = 0; step < 4; ++step) {
    if (step == 2) Evaluate(2);
    now_ += absl::Milliseconds(20);
    Do(Frame(kW0, step, {0, 1}));
    Seal(kW0, step, {0, 1});
    now_ += absl::Milliseconds(10);
    Do(Frame(kW1, step, {1, 1}));
    Roots();
    Seal(kW1, step, {1, 1});
    ASSERT_EQ(core_->version(), step + 1);
  }
  const node::v1::ShardState before = core_->State(now_);
  ASSERT_EQ(before.paces_size(), 2);
  EXPECT_EQ(before.paces(1).rank(), 1);
  EXPECT_EQ(before.paces(1).steps(), 4);
  EXPECT_EQ(before.paces(1).lanes(), 4);
  EXPECT_DOUBLE_EQ(before.paces(1).seconds(), 0.12);
  EXPECT_DOUBLE_EQ(before.paces(0).seconds(), 0.08);

  now_ += absl::Milliseconds(20);
  Do(Frame(kW0, 4, {0, 1}));
  Seal(kW0, 4, {0, 1});
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Milliseconds(480));
  now_ += absl::Milliseconds(480);
  EXPECT_THAT(All<StateChanged>(Do(Tick{})), SizeIs(1));
  EXPECT_THAT(core_->State(now_).waiting().late_lanes(), ElementsAre(1));
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());

  // Its new owner is given twice the time.
  Do(ViewChange{.lineage = 1, .generation = 2, .workers = {0, 1}, .lane_owners = {0, 0}});
  EXPECT_THAT(core_->State(now_).waiting().late_lanes(), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Seconds(1));
}

}  // namespace
}  // namespace capstan::exchange::shard
