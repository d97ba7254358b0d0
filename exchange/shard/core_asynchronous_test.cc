// Asynchronous jobs: rules A1 to A7, K and K2 on one shard.
#include <algorithm>
#include <utility>

#include "exchange/shard/shard_messages.h"
#include "exchange/shard/test_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class AsynchronousTest : public ShardCoreTest {
 protected:
  void MakeAsynchronous(int32_t shard, int32_t num_shards, int64_t max_staleness,
                        int64_t total_steps = 4) {
    Make(shard, num_shards, total_steps);
    ShardPlan plan = Plan(shard, total_steps);
    plan.asynchronous = true;
    plan.max_staleness = max_staleness;
    plan.evaluate_every_steps = 0;
    core_.emplace(std::move(plan));
  }
  // Ready in lineage 1, with a DATA stream of each worker, whose first set is taken.
  void Ready(int32_t shard = 0, int32_t num_shards = 1, int64_t max_staleness = -1) {
    MakeAsynchronous(shard, num_shards, max_staleness);
    Start(1);
    Load(1);
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
    Taken(kW0);
    Taken(kW1);
  }
  Effects Taken(StreamId stream) { return Do(WeightsTaken{stream, core_->version()}); }
  // The whole gradient of a lane in one frame.
  Effects Push(StreamId stream, int32_t lane, int64_t step) {
    return Do(Frame(stream, step, {lane, 1}));
  }
  Effects LaneSeal(StreamId stream, int32_t lane, int64_t step, int64_t staleness = 0) {
    return Do(SealArrived{stream, step, {lane, 1}, {2, 1.0, 1}, staleness});
  }
  // Frames and seal of a lane's step; the effects of the last one.
  Effects Both(StreamId stream, int32_t lane, int64_t step) {
    Push(stream, lane, step);
    return LaneSeal(stream, lane, step);
  }
};

TEST_F(AsynchronousTest, AContributionIsAppliedAtOnceAndOnlyOnce) {
  Ready();
  const auto first = All<ApplyFrame>(Push(kW0, 0, 0));
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_THAT(first[0].updates, ElementsAre(0, 0, 0));
  EXPECT_EQ(first[0].payload, 77);
  EXPECT_EQ(first[0].learning_rate, 0.5);
  EXPECT_THAT(All<ApplyFrame>(Push(kW1, 0, 0)), IsEmpty()) << "the copy of another task";
  EXPECT_EQ(core_->drops().past, 3);
  const auto other = All<ApplyFrame>(Push(kW1, 1, 0));
  ASSERT_THAT(other, SizeIs(1));
  EXPECT_THAT(other[0].updates, ElementsAre(1, 1, 1)) << "each chunk has one already";
}

// A chunk may have the copy of a dead task, and its neighbour that of the successor.
TEST_F(AsynchronousTest, EachChunkIsJudgedByItself) {
  Ready();
  FrameArrived frame = Frame(kW0, 0, {0, 1});
  frame.first_chunk = 1;
  frame.chunk_count = 1;
  frame.payload_bytes = 4096 * 4;
  frame.intact = {true};
  Do(frame);
  const auto rest = All<ApplyFrame>(Push(kW1, 0, 0));
  ASSERT_THAT(rest, SizeIs(1));
  EXPECT_THAT(rest[0].updates, ElementsAre(0, -1, 0));
}

TEST_F(AsynchronousTest, ACorruptChunkIsAskedForAgain) {
  Ready();
  FrameArrived frame = Frame(kW0, 0, {0, 1});
  frame.intact = {true, false, true};
  const Effects effects = Do(frame);
  EXPECT_THAT(All<ApplyFrame>(effects)[0].updates, ElementsAre(0, -1, 0));
  const auto acks = All<SendAck>(effects);
  ASSERT_THAT(acks, SizeIs(1));
  EXPECT_THAT(acks[0].outcomes, ElementsAre(v1::FRAME_OUTCOME_STORED, v1::FRAME_OUTCOME_CORRUPT,
                                            v1::FRAME_OUTCOME_STORED));
  EXPECT_THAT(All<ApplyFrame>(Push(kW0, 0, 0))[0].updates, ElementsAre(-1, 0, -1));
}

TEST_F(AsynchronousTest, AStepAheadOfItsMarkEndsTheStream) {
  Ready();
  EXPECT_EQ(ClosedWith(Push(kW0, 0, 1), kW0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->drops().ahead, 1);
  EXPECT_EQ(ClosedWith(LaneSeal(kW1, 1, 1), kW1), absl::StatusCode::kInvalidArgument);
}

TEST_F(AsynchronousTest, RefusesLanesAndStepsThatTheJobDoesNotHave) {
  for (const auto& [lane, step] : {std::pair<int32_t, int64_t>{2, 0}, {-1, 0}, {0, 4}, {0, -1}}) {
    Ready();
    EXPECT_EQ(ClosedWith(Push(kW0, lane, step), kW0), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ClosedWith(Do(SkipArrived{kW1, step, lane}), kW1),
              absl::StatusCode::kInvalidArgument);
    Hello(14, v1::STREAM_KIND_DATA, 0);
    EXPECT_EQ(ClosedWith(Do(WeightsAskedFor{14, step, lane}), 14),
              absl::StatusCode::kInvalidArgument);
  }
  for (const int32_t lane : {2, -1}) {
    Ready();
    EXPECT_EQ(ClosedWith(LaneSeal(kW0, lane, 0), kW0), absl::StatusCode::kInvalidArgument);
  }
  Ready();
  EXPECT_EQ(ClosedWith(Do(Frame(kW0, 0, {0, 2})), kW0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ClosedWith(Do(SealArrived{kW1, 0, {0, 2}, {4, 1.0, 1}}), kW1),
            absl::StatusCode::kInvalidArgument);
}

// A2: the answer of the lead waits for the seal, too.
TEST_F(AsynchronousTest, TheAnswerToAStepIsTheWeightsAsTheyAreThen) {
  Ready();
  EXPECT_THAT(All<SendWeights>(Push(kW0, 0, 0)), IsEmpty());
  const auto answer = All<SendWeights>(LaneSeal(kW0, 0, 0));
  ASSERT_THAT(answer, SizeIs(1));
  EXPECT_EQ(answer[0].stream, kW0);
  EXPECT_EQ(answer[0].set, 2) << "the first one came with the stream";
  EXPECT_EQ(answer[0].version, 0);
  EXPECT_THAT(answer[0].marks, ElementsAre(1, 0));
  // Its frames are still on their way: what is owed waits for them.
  EXPECT_THAT(All<SendWeights>(Both(kW0, 0, 1)), IsEmpty());
  const auto next = All<SendWeights>(Taken(kW0));
  ASSERT_THAT(next, SizeIs(1));
  EXPECT_THAT(next[0].marks, ElementsAre(2, 0));
}

TEST_F(AsynchronousTest, AStepThatIsPastIsAnsweredToo) {
  Ready();
  Both(kW0, 0, 0);
  Taken(kW0);
  const auto answer = All<SendWeights>(Push(kW1, 0, 0));
  ASSERT_THAT(answer, SizeIs(1));
  EXPECT_EQ(answer[0].stream, kW1);
  EXPECT_THAT(answer[0].marks, ElementsAre(1, 0));
}

TEST_F(AsynchronousTest, ASkipRaisesMarksAndIsAnswered) {
  Ready();
  EXPECT_THAT(All<ApplyFrame>(Do(SkipArrived{kW0, 0, 0})), IsEmpty());
  const auto answer = All<SendWeights>(LaneSeal(kW0, 0, 0));
  ASSERT_THAT(answer, SizeIs(1));
  EXPECT_THAT(answer[0].marks, ElementsAre(1, 0));
  EXPECT_THAT(All<ApplyFrame>(Push(kW1, 1, 0))[0].updates, ElementsAre(0, 0, 0))
      << "a skip is no update";
  EXPECT_THAT(All<ApplyFrame>(Do(SkipArrived{kW0, 0, 0})), IsEmpty()) << "repeated";
  EXPECT_EQ(ClosedWith(Do(SkipArrived{kW0, 2, 0}), kW0), absl::StatusCode::kInvalidArgument);
}

// K: step t is answered once the slowest lane is at t + 1 - k.
TEST_F(AsynchronousTest, AnAnswerIsParkedUntilTheSlowestLaneIsNearEnough) {
  Ready(0, 1, /*max_staleness=*/1);
  EXPECT_THAT(All<SendWeights>(Both(kW0, 0, 0)), SizeIs(1)) << "floor 0 will do for step 1";
  Taken(kW0);
  EXPECT_THAT(All<SendWeights>(Both(kW0, 0, 1)), IsEmpty()) << "step 2 needs a floor of 1";
  // The floor is that of the weights: the seal of lane 1 does not matter to lane 0.
  const auto answers = All<SendWeights>(Push(kW1, 1, 0));
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].stream, kW0);
  EXPECT_THAT(answers[0].marks, ElementsAre(2, 0)) << "the marks count the seals, too";
  EXPECT_EQ(answers[0].floor, 1);
  EXPECT_THAT(All<SendWeights>(LaneSeal(kW1, 1, 0)), SizeIs(1));
}

training::Decision Bound(int64_t step, int64_t max_staleness) {
  training::Decision decision;
  decision.step = step;
  decision.max_staleness = max_staleness;
  return decision;
}

// An order reaches the shards with the decision of a step, and tasks with the next set.
TEST_F(AsynchronousTest, ALooserBoundAnswersWhatWasParkedAndTellsEverybody) {
  Ready(1, 2, /*max_staleness=*/0);
  Do(LeadOpened{1});
  Push(kW0, 0, 0);
  Taken(kW0);
  Push(kW1, 1, 0);
  Taken(kW0);
  Taken(kW1);
  EXPECT_THAT(All<SendWeights>(Push(kW0, 0, 1)), IsEmpty()) << "step 2 needs a floor of 2";
  ASSERT_EQ(core_->version(), 0);
  const auto sets = All<SendWeights>(Do(DecisionArrived{1, Bound(0, 1), {}}));
  ASSERT_EQ(core_->version(), 1);
  EXPECT_EQ(core_->max_staleness(), 1);
  ASSERT_THAT(sets, SizeIs(2)) << "kW1 is owed nothing, and hears of the bound";
  for (const SendWeights& set : sets) EXPECT_EQ(set.max_staleness, 1);
  EXPECT_THAT(sets[0].marks, ElementsAre(2, 1));
}

TEST_F(AsynchronousTest, ATighterBoundParksTheNextAnswer) {
  Ready(1, 2);
  Do(LeadOpened{1});
  EXPECT_EQ(core_->max_staleness(), -1);
  Push(kW0, 0, 0);
  Taken(kW0);
  Push(kW1, 1, 0);
  Taken(kW1);
  EXPECT_THAT(All<SendWeights>(Do(DecisionArrived{1, Bound(0, 0), {}})), SizeIs(2));
  Taken(kW0);
  Taken(kW1);
  EXPECT_THAT(All<SendWeights>(Push(kW0, 0, 1)), IsEmpty());
  EXPECT_THAT(All<SendWeights>(Push(kW1, 1, 1)), SizeIs(2)) << "the floor is 2";
  // The same bound again changes nothing.
  Taken(kW0);
  Taken(kW1);
  EXPECT_THAT(All<SendWeights>(Do(DecisionArrived{1, Bound(1, 0), {}})), IsEmpty());
  ASSERT_EQ(core_->version(), 2);
}

// A lane may have begun a step by the bound before.
TEST_F(AsynchronousTest, SealsMayBeAsStaleAsTheLoosestBoundOfTheLineage) {
  Ready(0, 1, /*max_staleness=*/2);
  core_->Step(GiveOrders{1,
                         {{.id = 1,
                           .what = training::Order::What::kMaxStaleness,
                           .step = {},
                           .max_staleness = 0}}},
              now_);
  Both(kW0, 0, 0);
  Both(kW1, 1, 0);
  ASSERT_EQ(core_->version(), 1);
  EXPECT_EQ(core_->max_staleness(), 0);
  Push(kW0, 0, 1);
  LaneSeal(kW0, 0, 1);
  Push(kW0, 0, 2);
  EXPECT_THAT(All<CloseStream>(LaneSeal(kW0, 0, 2, /*staleness=*/2)), IsEmpty());
  Push(kW0, 0, 3);
  EXPECT_EQ(ClosedWith(LaneSeal(kW0, 0, 3, /*staleness=*/3), kW0),
            absl::StatusCode::kInvalidArgument);
}

// The order is not given again, so the snapshot has its bound.
TEST_F(AsynchronousTest, ABoundSurvivesARollback) {
  for (const auto& [ordered, want] :
       {std::pair<std::optional<int64_t>, int64_t>{3, 3}, {-1, -1}, {std::nullopt, 1}}) {
    MakeAsynchronous(1, 2, /*max_staleness=*/1);
    Start(1);
    training::LeadSnapshot snapshot;
    snapshot.max_staleness = ordered;
    Do(BaseLoaded{1, 0, "", "", snapshot, {0, 0, 0, 0, 0, 0}});
    ASSERT_EQ(core_->version(), 0);
    EXPECT_EQ(core_->max_staleness(), want);
  }
}

// K2: whoever has older weights asks, and is answered like one who pushed the step before.
TEST_F(AsynchronousTest, WeightsThatAreAskedForAreParkedToo) {
  Ready(0, 1, /*max_staleness=*/0);
  Both(kW0, 0, 0);
  Hello(14, v1::STREAM_KIND_DATA, 0);  // a successor of rank 0 has lane 0 at step 1
  Do(WeightsTaken{14, 0});
  EXPECT_THAT(All<SendWeights>(Do(WeightsAskedFor{14, 1, 0})), IsEmpty());
  const auto answers = All<SendWeights>(Push(kW1, 1, 0));
  ASSERT_THAT(answers, SizeIs(2)) << "kW0 had pushed";
  EXPECT_EQ(answers[0].stream, kW0);
  EXPECT_EQ(answers[1].stream, 14);
}

TEST_F(AsynchronousTest, StalenessIsCountedAndBounded) {
  Ready(0, 1, /*max_staleness=*/2);
  Both(kW0, 0, 0);
  Push(kW0, 0, 1);
  LaneSeal(kW0, 0, 1, /*staleness=*/1);
  LaneSeal(kW0, 0, 1, /*staleness=*/1);  // repeated
  EXPECT_EQ(core_->staleness()[0], 1);
  EXPECT_EQ(core_->staleness()[1], 1);
  EXPECT_EQ(ClosedWith(LaneSeal(kW1, 1, 0, /*staleness=*/1), kW1),
            absl::StatusCode::kInvalidArgument)
      << "more than the step itself";
  Push(kW0, 0, 2);
  LaneSeal(kW0, 0, 2, /*staleness=*/2);
  Push(kW0, 0, 3);
  EXPECT_EQ(ClosedWith(LaneSeal(kW0, 0, 3, /*staleness=*/3), kW0),
            absl::StatusCode::kInvalidArgument);
}

// It is owed no answer, and must show the newest version before it gets lanes.
TEST_F(AsynchronousTest, ATaskWithoutLanesGetsEachVersion) {
  Ready();
  Hello(14, v1::STREAM_KIND_DATA, 0);  // rank 0 has lane 0
  Do(ViewChange{.lineage = 1, .generation = 2, .workers = {0, 1}, .lane_owners = {1, 1}});
  Do(WeightsTaken{14, 0});
  Both(kW1, 0, 0);
  Push(kW1, 1, 0);
  const auto sets = All<SendWeights>(LaneSeal(kW1, 1, 0));
  ASSERT_EQ(core_->version(), 1);
  EXPECT_EQ(std::count_if(sets.begin(), sets.end(),
                          [](const SendWeights& set) { return set.stream == 14; }),
            1);
}

// The clock: a version is decided when the slowest lane has passed its step.
TEST_F(AsynchronousTest, TheSlowestLaneIsTheClock) {
  Ready();
  Both(kW0, 0, 0);
  Both(kW0, 0, 1);
  EXPECT_EQ(core_->version(), 0);
  Push(kW1, 1, 0);
  const Effects effects = LaneSeal(kW1, 1, 0);
  EXPECT_EQ(core_->version(), 1);
  const auto steps = All<ApplyStep>(effects);
  ASSERT_THAT(steps, SizeIs(1));
  EXPECT_FALSE(steps[0].decision.apply) << "its contributions are applied";
  ASSERT_THAT(All<LogStep>(effects), SizeIs(1));
  EXPECT_EQ(All<LogStep>(effects)[0].line.samples, 4);
  Push(kW1, 1, 1);
  LaneSeal(kW1, 1, 1);
  EXPECT_EQ(core_->version(), 2) << "the seal of lane 0 was kept";
}

TEST_F(AsynchronousTest, TheLastVersionGoesToEverybodyAndNothingChangesItAnyMore) {
  MakeAsynchronous(0, 1, -1, /*total_steps=*/1);
  Start(1);
  Load(1);
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  Hello(kW1, v1::STREAM_KIND_DATA, 1);
  Taken(kW0);
  Both(kW0, 0, 0);
  Push(kW1, 1, 0);
  Effects effects = LaneSeal(kW1, 1, 0);
  EXPECT_EQ(core_->version(), 1);
  EXPECT_THAT(All<WriteFiles>(effects), SizeIs(1));
  EXPECT_THAT(All<WriteFiles>(effects)[0].marks, ElementsAre(1, 1, 2, 1, 1, 2, 1, 1, 2));
  EXPECT_THAT(All<SendWeights>(effects), IsEmpty()) << "both have a set on its way";
  for (const StreamId stream : {kW0, kW1}) {
    const auto last = All<SendWeights>(Do(WeightsTaken{stream, 0}));
    ASSERT_THAT(last, SizeIs(1));
    EXPECT_TRUE(last[0].stop);
    EXPECT_TRUE(last[0].evaluate);
    EXPECT_EQ(last[0].version, 1);
  }
  EXPECT_THAT(Do(Frame(kW0, 0, {0, 1})), IsEmpty());
  EXPECT_EQ(ClosedWith(LaneSeal(kW0, 0, 0), kW0), absl::StatusCode::kOk)
      << "a seal that is repeated";
}

// A suspend ends the lineage while lanes are ahead of the clock.
TEST_F(AsynchronousTest, WhatComesAfterASuspendIsDroppedAndNoFault) {
  Ready();
  training::Order suspend{.id = 1, .what = training::Order::What::kSuspend, .step = {}};
  Do(GiveOrders{1, {suspend}});
  Both(kW0, 0, 0);
  Taken(kW0);
  Push(kW1, 1, 0);
  const Effects effects = LaneSeal(kW1, 1, 0);
  ASSERT_EQ(core_->version(), 1);
  EXPECT_THAT(All<WriteFiles>(effects), SizeIs(1));
  const Effects late = Push(kW0, 0, 1);
  EXPECT_THAT(All<ApplyFrame>(late), IsEmpty());
  EXPECT_EQ(ClosedWith(late, kW0), absl::StatusCode::kOk);
  EXPECT_EQ(ClosedWith(LaneSeal(kW0, 0, 1), kW0), absl::StatusCode::kOk);
}

TEST_F(AsynchronousTest, ACheckpointHasTheMarksOfItsMomentAndALineageBeginsWithThem) {
  MakeAsynchronous(0, 1, -1);
  Start(1);
  training::LeadSnapshot snapshot;
  snapshot.step = 1;
  snapshot.samples_used = 4;
  snapshot.epoch = {1, {4, 2.0, 2}, 0.1};
  snapshot.loss_scale = 1;
  snapshot.learning_rate = 0.25;
  const std::vector<int64_t> marks = {3, 1, 4, 2, 1, 3, 3, 1, 4};
  Do(BaseLoaded{.lineage = 1, .version = 1, .snapshot = snapshot, .marks = marks});
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  EXPECT_EQ(ClosedWith(Push(kW0, 0, 3), kW0), absl::StatusCode::kInvalidArgument)
      << "chunk 1 has not got step 2";
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  const auto apply = All<ApplyFrame>(Push(kW0, 0, 2));
  ASSERT_THAT(apply, SizeIs(1));
  EXPECT_THAT(apply[0].updates, ElementsAre(-1, 3, -1));
  EXPECT_EQ(apply[0].learning_rate, 0.25) << "an order had set it";
  // The seals begin again at the version.
  EXPECT_EQ(ClosedWith(LaneSeal(kW0, 0, 1), kW0), absl::StatusCode::kOk);
}

TEST_F(AsynchronousTest, MarksThatCannotBeAreACorruptCheckpoint) {
  MakeAsynchronous(0, 1, -1);
  Start(1);
  training::LeadSnapshot snapshot;
  snapshot.step = 1;
  snapshot.samples_used = 4;
  snapshot.epoch = {1, {4, 2.0, 2}, 0.1};
  snapshot.loss_scale = 1;
  Do(BaseLoaded{.lineage = 1, .version = 1, .snapshot = snapshot, .marks = {1, 0, 1}});
  EXPECT_EQ(core_->State(now_).reason(), "CheckpointCorrupt");
}

// A shard that is not the lead reports when it has all of the clock's step, and takes the rate of an
// order from the decision.
TEST_F(AsynchronousTest, AnotherShardSendsItsPartAndCarriesOutTheDecision) {
  Ready(/*shard=*/1, /*num_shards=*/2);
  Do(LeadOpened{1});
  Push(kW0, 0, 0);
  const auto parts = All<SendPart>(Push(kW1, 1, 0));
  ASSERT_THAT(parts, SizeIs(1));
  EXPECT_TRUE(parts[0].report.finite);
  EXPECT_EQ(parts[0].step, 0);
  training::Decision decision;
  decision.step = 0;
  decision.apply = true;
  decision.learning_rate = 0.5;
  decision.base_learning_rate = 0.125;
  const v1::StepDecision message = DecisionMessage(decision, {});
  const Effects effects = Do(ReadDecision(1, message));
  EXPECT_EQ(core_->version(), 1);
  ASSERT_THAT(All<SendShown>(effects), SizeIs(1));
  EXPECT_EQ(All<ApplyFrame>(Push(kW0, 0, 1))[0].learning_rate, 0.125);
}

TEST_F(AsynchronousTest, NamesTheLanesThatTheClockWaitsFor) {
  Ready();
  Both(kW0, 0, 0);
  const node::v1::ShardState state = core_->State(now_);
  EXPECT_THAT(state.waiting().lanes(), ElementsAre(1));
  EXPECT_EQ(state.waiting().missing_chunks(), 3);
  EXPECT_EQ(state.paces_size(), 0);
}

}  // namespace
}  // namespace capstan::exchange::shard
