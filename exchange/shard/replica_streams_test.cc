// Who gets the sums of a step, and who the whole version, where workers update, too (rule U2).
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

// Worker 0 owns all lanes; worker 1 has a stream and reads.
class ReplicaStreamsTest : public ShardCoreTest {
 protected:
  void Begin(bool replicas = true) {
    Make(0, 1);
    ShardPlan plan = Plan(0, 20);
    plan.evaluate_every_steps = 0;
    plan.replicas = replicas;
    core_.emplace(std::move(plan));
    Start(1);
    Load(1);
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
    Do(ViewChange{.lineage = 1, .generation = 2, .workers = {0, 1}, .lane_owners = {0, 0}});
    Do(WeightsTaken{kW0, 0});
  }
  // Versions, negative where they come as sums.
  static std::vector<int64_t> SentTo(StreamId stream, const Effects& effects) {
    std::vector<int64_t> versions;
    for (const SendWeights& send : All<SendWeights>(effects)) {
      if (send.stream == stream) versions.push_back(send.update ? -send.version : send.version);
    }
    return versions;
  }
};

TEST_F(ReplicaStreamsTest, AStreamThatHasTheVersionBeforeGetsSums) {
  Begin();
  Do(WeightsTaken{kW1, 0});
  for (const int64_t version : {1, 2, 3}) {
    const Effects effects = RunStep();
    EXPECT_THAT(SentTo(kW0, effects), ElementsAre(-version));
    EXPECT_THAT(SentTo(kW1, effects), ElementsAre(-version));
    Do(WeightsTaken{kW0, version});
    Do(WeightsTaken{kW1, version});
  }
  Begin(/*replicas=*/false);
  EXPECT_THAT(SentTo(kW0, RunStep()), ElementsAre(1));
}

TEST_F(ReplicaStreamsTest, WhoeverOpensAStreamIsJudgedByWhatItHas) {
  Begin();
  Do(WeightsTaken{kW1, 0});
  RunStep();
  Do(WeightsTaken{kW0, 1});
  Do(StreamClosed{kW1});
  // The version before is not enough: its sums are gone.
  EXPECT_THAT(SentTo(20, Hello(20, v1::STREAM_KIND_DATA, 1, 0)), ElementsAre(1));
  Do(WeightsTaken{20, 1});
  EXPECT_THAT(SentTo(20, RunStep()), ElementsAre(-2));
  Do(WeightsTaken{kW0, 2});
  Do(StreamClosed{20});
  // The version at hand is.
  EXPECT_THAT(SentTo(21, Hello(21, v1::STREAM_KIND_DATA, 1, 2)), IsEmpty());
  EXPECT_THAT(SentTo(21, RunStep()), ElementsAre(-3));
}

// A frame of the step says that its sender has taken the whole version. The adapter may hear later that
// it was written.
TEST_F(ReplicaStreamsTest, WhoSendsAFrameOfAVersionHasIt) {
  Begin();
  Do(WeightsTaken{kW1, 0});
  EXPECT_THAT(SentTo(kW0, RunStep()), ElementsAre(-1));
  Do(WeightsTaken{kW1, 1});
  EXPECT_THAT(SentTo(kW0, RunStep()), ElementsAre(-2));
  EXPECT_THAT(Do(WeightsTaken{kW0, 1}), IsEmpty());  // late, and of no effect
  Do(WeightsTaken{kW1, 2});
  // A task asks for a whole version, and sends its frames again meanwhile.
  Do(StreamClosed{kW0});
  EXPECT_THAT(SentTo(20, Hello(20, v1::STREAM_KIND_DATA, 0)), ElementsAre(2));
  Do(Frame(20, 2, {0, 2}));
  Roots();
  EXPECT_THAT(SentTo(20, Seal(20, 2)), ElementsAre(3));
}

// What is queued for a stream is dropped for the next version, so the sums of that fit nothing.
TEST_F(ReplicaStreamsTest, AStreamThatIsBehindGetsWholeVersions) {
  Begin();
  Effects effects = RunStep();  // worker 1 is inside version 0, which is held
  EXPECT_THAT(SentTo(kW0, effects), ElementsAre(-1));
  EXPECT_THAT(SentTo(kW1, effects), IsEmpty());
  effects = RunStep();
  EXPECT_THAT(SentTo(kW1, effects), IsEmpty());
  Do(WeightsTaken{kW1, 0});
  EXPECT_THAT(SentTo(kW1, RunStep()), ElementsAre(3));
  // It gets lanes while it is inside version 3: all wait for it.
  Do(ViewChange{.lineage = 1, .generation = 3, .workers = {0, 1}, .lane_owners = {0, 1}});
  Do(Frame(kW0, 3, {0, 2}));
  Roots();
  EXPECT_THAT(SentTo(kW1, Seal(kW0, 3)), ElementsAre(4));
  Do(WeightsTaken{kW1, 4});
  Do(Frame(kW0, 4, {0, 2}));
  Roots();
  EXPECT_THAT(SentTo(kW1, Seal(kW0, 4)), ElementsAre(-5));
}

// The held version has no state any more, so nothing is built on it.
TEST_F(ReplicaStreamsTest, AHeldVersionIsNoBase) {
  Begin();
  RunStep();  // worker 1 is inside version 0, which is held
  Do(StreamClosed{kW1});
  Effects effects = Hello(20, v1::STREAM_KIND_DATA, 1);
  EXPECT_THAT(SentTo(20, effects), ElementsAre(0));
  Do(WeightsTaken{20, 0});
  EXPECT_THAT(SentTo(20, RunStep()), ElementsAre(2));
}

}  // namespace
}  // namespace capstan::exchange::shard
