// Clipping by norm: square sums on their way up, the factor on its way down.
#include "exchange/shard/shard_messages.h"
#include "exchange/shard/test_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;
using training::RootReport;

class NormTest : public ShardCoreTest {
 protected:
  // Ready in lineage 1 with a DATA stream of each worker. Shard 0 has chunk 0, shard 1 has chunks 1
  // and 2.
  void ReadyToClip(int32_t shard, double clip_norm) {
    Make(shard, 2);
    ShardPlan plan = Plan(shard, 4);
    plan.clip_norm = clip_norm;
    core_.emplace(std::move(plan));
    Start(1);
    Load(1);
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
  }
};

TEST_F(NormTest, OnlyAJobThatClipsHasSquareSums) {
  for (const double clip_norm : {0.0, 1.0}) {
    ReadyToClip(0, clip_norm);
    const auto checks = All<CheckRoots>(Do(Frame(kW0, 0, {0, 2})));
    ASSERT_THAT(checks, SizeIs(1));
    EXPECT_EQ(checks[0].norms, clip_norm > 0);
  }
}

TEST_F(NormTest, TheLeadAddsThePartsOfAllShards) {
  ReadyToClip(0, /*clip_norm=*/1);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  Do(Frame(kW0, 0, {0, 2}));
  Do(RootsChecked{1, 0, {true, {{{0, 1}, 9}}}});
  Seal(kW0, 0);
  // There are no such chunks: the stream ends, and the part is still missing.
  EXPECT_EQ(ClosedWith(Do(PartArrived{kShard1, 0, 1, {true, {{{1, 2}, 7}}}}), kShard1),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->drops().invalid, 1);
  EXPECT_EQ(core_->drops().ahead, 0);
  EXPECT_EQ(core_->version(), 0);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  const Effects effects = Do(PartArrived{kShard1, 0, 1, {true, {{{1, 1}, 7}, {{2, 2}, 0}}}});
  ASSERT_THAT(All<SendDecision>(effects), SizeIs(1));
  EXPECT_EQ(All<SendDecision>(effects)[0].decision.clip_factor, 0.25);
  ASSERT_THAT(All<ApplyStep>(effects), SizeIs(1));
  EXPECT_EQ(All<ApplyStep>(effects)[0].decision.clip_factor, 0.25);
}

// The job fails, whichever part arrives last.
TEST_F(NormTest, AMissingSquareSumFailsTheJob) {
  for (const bool own_part_is_last : {false, true}) {
    ReadyToClip(0, /*clip_norm=*/1);
    Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
    Do(Frame(kW0, 0, {0, 2}));
    Seal(kW0, 0);
    const auto own = [&] { return Do(RootsChecked{1, 0, {true, {{{0, 1}, 9}}}}); };
    if (!own_part_is_last) own();
    Effects effects = Do(PartArrived{kShard1, 0, 1, {true, {{{1, 1}, 7}}}});
    if (own_part_is_last) effects = own();
    EXPECT_THAT(All<StateChanged>(effects), SizeIs(1));
    EXPECT_THAT(All<ApplyStep>(effects), IsEmpty());
    EXPECT_EQ(core_->lead()->failure()->message, "step 0: square sums: chunk 2 of 3 has none");
  }
}

TEST_F(NormTest, AnotherShardSendsItsSquareSumsAndAppliesTheFactor) {
  ReadyToClip(1, /*clip_norm=*/1);
  Do(LeadOpened{1});
  Do(Frame(kW0, 0, {0, 2}));
  const RootReport report{true, {{{1, 1}, 7}, {{2, 2}, 0}}};
  Effects effects = Do(RootsChecked{1, 0, report});
  ASSERT_THAT(All<SendPart>(effects), SizeIs(1));
  EXPECT_EQ(All<SendPart>(effects)[0].report, report);
  now_ += absl::Milliseconds(200);
  effects = Do(Tick{});
  ASSERT_THAT(All<SendPart>(effects), SizeIs(1));
  EXPECT_EQ(All<SendPart>(effects)[0].report, report);
  training::Decision decision;
  decision.apply = true;
  decision.clip_factor = 0.25;
  effects = Do(DecisionArrived{1, decision, {}});
  ASSERT_THAT(All<ApplyStep>(effects), SizeIs(1));
  EXPECT_EQ(All<ApplyStep>(effects)[0].decision.clip_factor, 0.25);
}

// ---- Norms of tensors ----

class TensorNormTest : public ShardCoreTest {
 protected:
  // As NormTest::ReadyToClip, from `snapshot` of version 2 if there is one.
  void ReadyToMeasure(int32_t shard, bool scaled = false,
                      const std::optional<training::LeadSnapshot>& snapshot = std::nullopt) {
    Make(shard, 2);
    ShardPlan plan = Plan(shard, 4);
    plan.dynamic_loss_scale = scaled;
    plan.pieces = std::make_shared<const training::TensorPieces>(plan.layout);
    core_.emplace(std::move(plan));
    Start(1);
    if (snapshot.has_value()) {
      Do(BaseLoaded{1, 2, "", "", snapshot, {}});
    } else {
      Load(1);
    }
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
    Do(LeadOpened{1});
  }
  CheckRoots Check(int64_t step) {
    const auto checks = All<CheckRoots>(Do(Frame(kW0, step, {0, 2})));
    EXPECT_THAT(checks, SizeIs(1));
    return checks.at(0);
  }
};

// What the storage measures with is what the decision of the step will say.
TEST_F(TensorNormTest, RootsAreCheckedWithTheNumbersOfTheNextDecision) {
  ReadyToMeasure(1, /*scaled=*/true);
  CheckRoots check = Check(0);
  EXPECT_EQ(check.gradient_scale, 1.0 / 65536);
  EXPECT_EQ(check.applied_steps, 0);
  Do(RootsChecked{1, 0, {false, {}}});
  Do(DecisionArrived{1, {.step = 0, .apply = false, .loss_scale = 32768, .applied_steps = 0}, {}});
  ASSERT_EQ(core_->version(), 1);
  check = Check(1);
  EXPECT_EQ(check.gradient_scale, 1.0 / 32768);
  EXPECT_EQ(check.applied_steps, 0);
  Do(RootsChecked{1, 1, {true, {}}});
  training::Decision decision{.step = 1, .apply = true, .loss_scale = 32768, .applied_steps = 0};
  decision.tensor_norms.resize(core_->plan().pieces->tensor_count());
  Do(DecisionArrived{1, decision, {}});
  ASSERT_EQ(core_->version(), 2);
  check = Check(2);
  EXPECT_EQ(check.gradient_scale, 1.0 / 32768);
  EXPECT_EQ(check.applied_steps, 1);
}

TEST_F(TensorNormTest, ACheckpointSaysHowManyStepsWereApplied) {
  training::LeadSnapshot snapshot;
  snapshot.step = 2;
  snapshot.samples_used = 0;
  for (int64_t step = 0; step < 2; ++step) {
    for (int32_t lane = 0; lane < 2; ++lane) {
      snapshot.samples_used += Plan(1, 4).samples.LaneSampleCount(step, lane);
    }
  }
  snapshot.skipped_steps = 1;
  snapshot.epoch.epoch = 1;
  snapshot.loss_scale = 1024;
  ReadyToMeasure(1, /*scaled=*/true, snapshot);
  ASSERT_EQ(core_->version(), 2);
  const CheckRoots check = Check(2);
  EXPECT_EQ(check.gradient_scale, 1.0 / 1024);
  EXPECT_EQ(check.applied_steps, 1);
}

TEST_F(TensorNormTest, ADecisionWithTheNormsOfOtherTensorsIsDropped) {
  ReadyToMeasure(1);
  Check(0);
  Do(RootsChecked{1, 0, {true, {}}});
  const auto tensors = static_cast<size_t>(core_->plan().pieces->tensor_count());
  training::Decision decision{.step = 0, .apply = true};
  for (const size_t count : {size_t{0}, tensors - 1, tensors + 1}) {
    decision.tensor_norms.resize(count);
    EXPECT_THAT(All<ApplyStep>(Do(DecisionArrived{1, decision, {}})), IsEmpty()) << count;
  }
  decision.tensor_norms.resize(tensors);
  decision.tensor_norms[0] = {3, 4};
  const auto applied = All<ApplyStep>(Do(DecisionArrived{1, decision, {}}));
  ASSERT_THAT(applied, SizeIs(1));
  EXPECT_EQ(applied[0].decision.tensor_norms, decision.tensor_norms);
}

TEST(ShardMessagesTest, APartArrivesAsItWasSent) {
  const SendPart sent{
      812,
      {true, {{{4, 4}, 0.1}, {{8, 1}, 1e80}}, {{4, 0, 1.5, 2.5}, {5, 1, 1e80, 0.1}}},
      {.slow_ranks = {3, 1}, .held_in_use = true}};
  const PartArrived got = ReadPart(77, PartMessage(sent, 2));
  EXPECT_EQ(got.stream, 77);
  EXPECT_EQ(got.step, 812);
  EXPECT_EQ(got.shard, 2);
  EXPECT_EQ(got.report, sent.report);
  EXPECT_THAT(got.readers.slow_ranks, ElementsAre(3, 1));
  EXPECT_TRUE(got.readers.held_in_use);
  EXPECT_FALSE(ReadPart(1, PartMessage({}, 1)).report.finite);
}

TEST(ShardMessagesTest, ADecisionArrivesAsItWasSent) {
  training::Decision decision;
  decision.step = 812;
  decision.apply = true;
  decision.learning_rate = 0.1;
  decision.stop = true;
  decision.checkpoint = true;
  decision.evaluate = true;
  decision.gradient_scale = 0.125;
  decision.loss_scale = 16;
  decision.order_ids = {7, 9};
  decision.applied_steps = 800;
  decision.clip_factor = 1.0 / 3;
  decision.tensor_norms = {{0.1, 0.2}, {3, 1e80}};
  decision.max_staleness = -1;
  DecisionArrived got = ReadDecision(3, DecisionMessage(decision, {811, {4}}));
  EXPECT_EQ(got.lineage, 3);
  EXPECT_EQ(got.decision, decision);
  EXPECT_EQ(got.held.version, 811);
  EXPECT_THAT(got.held.slow_ranks, ElementsAre(4));
  got = ReadDecision(3, DecisionMessage({}, {}));
  EXPECT_EQ(got.decision, training::Decision());
  EXPECT_EQ(got.held.version, -1);
  EXPECT_THAT(got.held.slow_ranks, IsEmpty());
}

}  // namespace
}  // namespace capstan::exchange::shard
