// Tasks that need longer than a step to take a version (rule R8).
#include <cstdint>
#include <utility>
#include <vector>

#include "exchange/shard/test_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using training::Decision;

// Worker 0 owns all lanes; worker 1 has a stream and reads.
class SlowReaderTest : public ShardCoreTest {
 protected:
  void Begin(int32_t shard, int32_t num_shards) {
    Make(shard, num_shards);
    ShardPlan plan = Plan(shard, 20);
    plan.evaluate_every_steps = 0;
    core_.emplace(std::move(plan));
    Start(1);
    Load(1);
    if (shard > 0) Do(LeadOpened{1});
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
    if (shard == 0 && num_shards > 1) Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
    Do(ViewChange{.lineage = 1, .generation = 2, .workers = {0, 1}, .lane_owners = {0, 0}});
  }
  void StartOver(int64_t lineage) {
    Do(StartLineage{.lineage = lineage,
                    .generation = 9,
                    .num_shards = num_shards_,
                    .run = run_,
                    .workers = {0, 1},
                    .lane_owners = {0, 0}});
  }
  static std::vector<int64_t> SentTo(StreamId stream, const Effects& effects) {
    std::vector<int64_t> versions;
    for (const SendWeights& send : All<SendWeights>(effects)) {
      if (send.stream == stream) versions.push_back(send.version);
    }
    return versions;
  }
  int64_t HeldBy(const Effects& effects) { return All<ApplyStep>(effects).at(0).held_version; }
};

TEST_F(SlowReaderTest, FinishesTheVersionItIsInsideAndGoesToTheNewest) {
  Begin(0, 1);
  Do(WeightsTaken{kW0, 0});
  Effects effects = RunStep();  // worker 1 is inside version 0
  EXPECT_EQ(HeldBy(effects), 0);
  EXPECT_EQ(core_->State(now_).lead().lineage(), 1);
  EXPECT_THAT(SentTo(kW0, effects), ElementsAre(1));
  EXPECT_THAT(SentTo(kW1, effects), IsEmpty());
  EXPECT_THAT(All<DropWeights>(effects), IsEmpty());
  Do(WeightsTaken{kW0, 1});
  effects = RunStep();
  EXPECT_EQ(HeldBy(effects), 0);
  EXPECT_THAT(SentTo(kW1, effects), IsEmpty());
  EXPECT_EQ(core_->State(now_).lead().slow_readers(0).rank(), 1);
  EXPECT_EQ(core_->State(now_).lead().slow_readers(0).missed_versions(), 2);
  Do(WeightsTaken{kW0, 2});
  Do(WeightsTaken{kW1, 0});
  effects = RunStep();
  EXPECT_EQ(HeldBy(effects), -1);
  EXPECT_THAT(SentTo(kW1, effects), ElementsAre(3));
  EXPECT_EQ(core_->missed_versions(), 2);
  // As long as it keeps up nothing is held, and after a while it is no slow reader.
  for (int i = 0; i < 10; ++i) {
    Do(WeightsTaken{kW0, core_->version()});
    Do(WeightsTaken{kW1, core_->version()});
    effects = RunStep();
    EXPECT_EQ(HeldBy(effects), -1);
    EXPECT_THAT(SentTo(kW1, effects), ElementsAre(core_->version()));
  }
  EXPECT_EQ(core_->State(now_).lead().slow_readers_size(), 0);
}

// No more than one version is held: who is inside another one waits for the next.
TEST_F(SlowReaderTest, OneVersionIsHeldForAllOfThem) {
  Begin(0, 1);
  Do(ViewChange{.lineage = 1, .generation = 3, .workers = {0, 1, 2}, .lane_owners = {0, 0}});
  Do(WeightsTaken{kW0, 0});
  RunStep();  // 0 is held for worker 1
  constexpr StreamId kW2 = 30;
  Effects effects = Hello(kW2, v1::STREAM_KIND_DATA, 2);
  EXPECT_THAT(SentTo(kW2, effects), ElementsAre(1));
  effects = RunStep();
  EXPECT_EQ(HeldBy(effects), 0);
  EXPECT_THAT(SentTo(kW2, effects), IsEmpty());
  ASSERT_EQ(All<DropWeights>(effects).size(), 1u);
  EXPECT_EQ(All<DropWeights>(effects)[0].stream, kW2);
  EXPECT_THAT(All<DropWeights>(RunStep()), IsEmpty());  // there is nothing left of it
  Do(WeightsTaken{kW1, 0});
  effects = RunStep();
  EXPECT_EQ(HeldBy(effects), -1);
  EXPECT_THAT(SentTo(kW1, effects), ElementsAre(4));
  EXPECT_THAT(SentTo(kW2, effects), ElementsAre(4));
  effects = RunStep();  // both are inside the same one
  EXPECT_EQ(HeldBy(effects), 4);
}

// All wait for the owner of a lane: it must not be kept from the version at hand.
TEST_F(SlowReaderTest, WhoIsGivenLanesIsSentTheVersionAtHand) {
  Begin(0, 1);
  RunStep();
  RunStep();
  const Effects effects =
      Do(ViewChange{.lineage = 1, .generation = 3, .workers = {0, 1}, .lane_owners = {0, 1}});
  EXPECT_THAT(SentTo(kW1, effects), ElementsAre(2));
  EXPECT_THAT(SentTo(kW0, effects), IsEmpty());
  const Effects again =
      Do(ViewChange{.lineage = 1, .generation = 4, .workers = {0, 1}, .lane_owners = {0, 1}});
  EXPECT_THAT(SentTo(kW1, again), IsEmpty());           // it has been sent that
  EXPECT_THAT(SentTo(kW1, RunStep()), ElementsAre(3));  // and all others from now on
}

// A stream that broke inside the held version is given it again: other shards finish it too.
TEST_F(SlowReaderTest, ANewStreamGoesOnWithTheHeldVersion) {
  Begin(0, 1);
  RunStep();
  RunStep();
  Do(StreamClosed{kW1});
  constexpr StreamId kAgain = 31;
  EXPECT_THAT(SentTo(kAgain, Hello(kAgain, v1::STREAM_KIND_DATA, 1)), ElementsAre(0));
  EXPECT_EQ(HeldBy(RunStep()), 0);  // as long as that takes
  Do(StreamClosed{kAgain});
  constexpr StreamId kHasIt = 32;  // and waits where it has it
  EXPECT_THAT(SentTo(kHasIt, Hello(kHasIt, v1::STREAM_KIND_DATA, 1, /*have=*/0)), IsEmpty());
  EXPECT_THAT(SentTo(kHasIt, RunStep()), ElementsAre(4));
}

// With what was said of it the first time, not with what is true of the version at hand.
TEST_F(SlowReaderTest, AHeldVersionThatIsSentAgainSaysWhatItSaidBefore) {
  Begin(0, 1);
  Do(GiveOrders{1, {{.id = 1, .what = training::Order::What::kCheckpoint}}});
  Do(WeightsTaken{kW0, 0});
  Do(WeightsTaken{kW1, 0});
  const int64_t step = core_->version();
  Do(Frame(kW0, step, {0, 2}));
  Roots(/*finite=*/false);
  const Effects made = Seal(kW0, step);
  ASSERT_THAT(SentTo(kW1, made), ElementsAre(1));
  ASSERT_TRUE(All<SendWeights>(made)[0].skipped);
  ASSERT_TRUE(All<SendWeights>(made)[0].saved);
  RunStep();  // worker 1 is inside version 1
  const Effects newest = RunStep();
  EXPECT_EQ(HeldBy(newest), 1);
  EXPECT_FALSE(All<SendWeights>(newest)[0].skipped);
  EXPECT_EQ(All<SendWeights>(newest)[0].skipped_before, 2u) << "step 0, of version 3";
  Do(StreamClosed{kW1});
  constexpr StreamId kAgain = 31;
  const Effects again = Hello(kAgain, v1::STREAM_KIND_DATA, 1);
  ASSERT_THAT(SentTo(kAgain, again), ElementsAre(1));
  EXPECT_TRUE(All<SendWeights>(again)[0].skipped);
  EXPECT_TRUE(All<SendWeights>(again)[0].saved);
  EXPECT_EQ(All<SendWeights>(again)[0].skipped_before, 0u);
}

TEST_F(SlowReaderTest, TheLastVersionGoesToEverybody) {
  Begin(0, 1);
  while (core_->version() < 19) RunStep();
  const Effects effects = RunStep();
  EXPECT_EQ(HeldBy(effects), -1);
  EXPECT_THAT(SentTo(kW1, effects), ElementsAre(20));
}

// Another shard still sends it: the lead keeps it, and tells all.
TEST_F(SlowReaderTest, AVersionIsHeldUntilItIsTakenFromAllShards) {
  Begin(0, 2);
  const auto step = [&](const VersionReaders& readers) {
    const int64_t s = core_->version();
    Do(Frame(kW0, s, {0, 2}));
    Roots();
    Do(PartArrived{kShard1, s, 1, {true, {}}, readers});
    Do(WeightsTaken{kW0, s});
    const Effects effects = Seal(kW0, s);
    return All<SendDecision>(effects).at(0).held;
  };
  Do(WeightsTaken{kW0, 0});
  Do(WeightsTaken{kW1, 0});
  Held held = step({.slow_ranks = {1}});  // this shard has sent all of it
  EXPECT_EQ(held.version, 0);
  EXPECT_THAT(held.slow_ranks, ElementsAre(1));
  held = step({.held_in_use = true});
  EXPECT_EQ(held.version, 0);
  EXPECT_THAT(held.slow_ranks, ElementsAre(1));
  held = step({});
  EXPECT_EQ(held.version, -1);
  EXPECT_THAT(held.slow_ranks, IsEmpty());
}

// The other shards do what the decision says, and say in their parts who reads.
TEST_F(SlowReaderTest, AShardHoldsWhatTheLeadSays) {
  Begin(1, 2);
  const auto part = [&] {
    Do(Frame(kW0, core_->version(), {0, 2}));
    return All<SendPart>(Roots()).at(0).readers;
  };
  const auto decide = [&](const Held& held) {
    Decision decision;
    decision.step = core_->version();
    decision.apply = true;
    return Do(DecisionArrived{1, decision, held});
  };
  Do(WeightsTaken{kW0, 0});
  EXPECT_THAT(part().slow_ranks, ElementsAre(1));
  Effects effects = decide({0, {1}});
  EXPECT_EQ(All<ApplyStep>(effects).at(0).held_version, 0);
  ASSERT_EQ(All<SendWeights>(effects).size(), 1u);
  EXPECT_EQ(All<SendWeights>(effects)[0].stream, kW0);
  Do(WeightsTaken{kW0, 1});
  VersionReaders readers = part();
  EXPECT_TRUE(readers.held_in_use);
  EXPECT_THAT(readers.slow_ranks, IsEmpty());
  decide({0, {1}});
  Do(WeightsTaken{kW1, 0});
  EXPECT_FALSE(part().held_in_use);
  effects = decide({});
  EXPECT_EQ(All<ApplyStep>(effects).at(0).held_version, -1);
  EXPECT_EQ(All<SendWeights>(effects).size(), 2u);
  // What is not here cannot be held.
  part();
  EXPECT_EQ(All<ApplyStep>(decide({1, {1}})).at(0).held_version, -1);

  // Nothing is held in the next history: its weights go to everybody.
  part();
  const int64_t at = core_->version();
  EXPECT_EQ(All<ApplyStep>(decide({at, {1}})).at(0).held_version, at);
  StartOver(2);
  Do(BaseLoaded{.lineage = 2, .version = 7});
  EXPECT_THAT(SentTo(kW1, Hello(kW1, v1::STREAM_KIND_DATA, 1, -1, 2)), ElementsAre(7));
}

TEST_F(SlowReaderTest, ANewHistoryHasNoSlowReaders) {
  Begin(0, 1);
  RunStep();
  RunStep();
  EXPECT_EQ(core_->State(now_).lead().slow_readers_size(), 1);
  StartOver(2);
  Load(2);
  EXPECT_EQ(core_->State(now_).lead().slow_readers_size(), 0);
  EXPECT_EQ(core_->missed_versions(), 2);  // of all of them
}

}  // namespace
}  // namespace capstan::exchange::shard
