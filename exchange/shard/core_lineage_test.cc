// Checkpoints of a running job, orders, and histories that begin from a manifest.
#include "exchange/shard/shard_core.h"
#include "exchange/shard/test_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/spec/lead_messages.h"

namespace capstan::exchange::shard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using training::LeadSnapshot;
using training::Order;

class CoreLineageTest : public ShardCoreTest {
 protected:
  // As Ready, saving every second version.
  void ReadySaving(int64_t total_steps = 9, int64_t every = 2,
                   absl::Duration time = absl::InfiniteDuration()) {
    run_ = {0, 3};
    ShardPlan plan = Plan(0, total_steps);
    plan.evaluate_every_steps = 0;
    plan.checkpoint_every_steps = every;
    plan.checkpoint_every = time;
    core_.emplace(std::move(plan));
    Start(1);
    Load(1);
    Hello(kW0, v1::STREAM_KIND_DATA, 0);
    Hello(kW1, v1::STREAM_KIND_DATA, 1);
  }
  Effects Written(int64_t version, const absl::Status& error = absl::OkStatus()) {
    FilesWritten written{.lineage = core_->lineage(), .version = version, .error = error};
    if (error.ok()) written.files.emplace_back().set_name("shard-0.safetensors");
    return Do(written);
  }
  LeadSnapshot Reported() {
    return *training::spec::DecodeSnapshot(core_->State(now_).files().lead_snapshot());
  }
};

TEST_F(CoreLineageTest, ACheckpointIsWrittenReportedAndTakenWhileStepsGoOn) {
  ReadySaving();
  RunStep();
  Effects effects = RunStep();
  ASSERT_THAT(All<WriteFiles>(effects), SizeIs(1));
  EXPECT_EQ(All<WriteFiles>(effects)[0].version, 2);
  EXPECT_LT(IndexOf<SendWeights>(effects), IndexOf<WriteFiles>(effects));  // workers do not wait
  EXPECT_FALSE(core_->State(now_).has_files());
  RunStep();
  EXPECT_FALSE(All<StateChanged>(Written(2)).empty());
  EXPECT_EQ(core_->State(now_).files().lineage(), 1);
  EXPECT_EQ(core_->State(now_).files().step(), 2);
  EXPECT_EQ(Reported().step, 2);
  EXPECT_EQ(Reported().samples_used, 8);               // of version 2, though step 2 is decided
  EXPECT_THAT(All<WriteFiles>(RunStep()), IsEmpty());  // version 4: one is under way
  Do(FilesTaken{1, 2});
  EXPECT_FALSE(core_->State(now_).has_files());
  effects = RunStep();
  ASSERT_THAT(All<WriteFiles>(effects), SizeIs(1));
  EXPECT_EQ(All<WriteFiles>(effects)[0].version, 5);
}

// As while no coordinator is there: what was saved meanwhile is reported to the next one, in order.
TEST_F(CoreLineageTest, CheckpointsGoOnWhileNobodyTakesThem) {
  ReadySaving();
  RunStep();
  RunStep();
  now_ += absl::Seconds(60);
  EXPECT_THAT(All<WriteFiles>(RunStep()), IsEmpty());  // version 2 is not written yet
  Written(2);
  Effects effects = RunStep();
  ASSERT_THAT(All<WriteFiles>(effects), SizeIs(1));
  EXPECT_EQ(All<WriteFiles>(effects)[0].version, 4);
  Written(4);
  EXPECT_EQ(core_->State(now_).files().step(), 2);
  Do(FilesTaken{1, 2});
  EXPECT_EQ(core_->State(now_).files().step(), 4);
  Do(FilesTaken{1, 4});
  EXPECT_FALSE(core_->State(now_).has_files());
}

TEST_F(CoreLineageTest, ACheckpointIsDueWhenItsTimeIsOver) {
  ReadySaving(/*total_steps=*/9, /*every=*/0, absl::Seconds(10));
  now_ += absl::Seconds(9);
  EXPECT_THAT(All<WriteFiles>(RunStep()), IsEmpty());
  now_ += absl::Seconds(1);
  EXPECT_THAT(All<WriteFiles>(RunStep()), SizeIs(1));
}

TEST_F(CoreLineageTest, ACheckpointThatCannotBeWrittenIsGivenUp) {
  ReadySaving();
  RunStep();
  RunStep();
  Written(2, absl::ResourceExhaustedError("write: No space left on device"));
  const node::v1::ShardState state = core_->State(now_);
  EXPECT_EQ(state.files().error(), "write: No space left on device");
  EXPECT_THAT(state.files().files(), IsEmpty());
  EXPECT_EQ(state.checkpoint_failures(), 1);
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());  // not tried again
  Do(FilesTaken{1, 2});
  EXPECT_FALSE(core_->State(now_).has_files());
  RunStep();
  EXPECT_THAT(All<WriteFiles>(RunStep()), SizeIs(1));  // version 4 is due again
  // Another shard could not, before this one was through.
  Do(FilesTaken{1, 4});
  Written(4);
  EXPECT_FALSE(core_->State(now_).has_files());
}

TEST_F(CoreLineageTest, OrdersReachTheLeadOnceAndAreShown) {
  ReadySaving(/*total_steps=*/9, /*every=*/0);
  Do(GiveOrders{2, {{7, Order::What::kSuspend, 0, {}}}});  // of another lineage
  const std::vector<Order> orders = {{1, Order::What::kLearningRate, 0.125, {}},
                                     {2, Order::What::kCheckpoint, 0, {}}};
  Do(GiveOrders{1, orders});
  EXPECT_THAT(core_->State(now_).lead().applied_order_ids(), IsEmpty());
  Effects effects = RunStep();
  EXPECT_THAT(All<ApplyStep>(effects)[0].decision.order_ids, ElementsAre(1, 2));
  EXPECT_EQ(All<ApplyStep>(effects)[0].decision.learning_rate, 0.125);
  EXPECT_THAT(All<WriteFiles>(effects), SizeIs(1));
  EXPECT_FALSE(All<StateChanged>(effects).empty());
  EXPECT_THAT(core_->State(now_).lead().applied_order_ids(), ElementsAre(1, 2));
  EXPECT_THAT(core_->State(now_).lead().applied_order_steps(), ElementsAre(0, 0));
  Do(GiveOrders{1, orders});
  EXPECT_THAT(All<ApplyStep>(RunStep())[0].decision.order_ids, IsEmpty());

  Do(GiveOrders{1, {{3, Order::What::kSuspend, 0, {}}}});
  effects = RunStep();
  EXPECT_TRUE(All<SendWeights>(effects)[0].stop);
  EXPECT_EQ(All<WriteFiles>(effects)[0].version, 3);  // whatever is under way
  EXPECT_TRUE(core_->State(now_).lead().suspended());
  EXPECT_FALSE(core_->State(now_).lead().complete());
  Written(1);
  EXPECT_EQ(core_->State(now_).files().step(), 1);  // the oldest first
  Do(FilesTaken{1, 1});
  Written(3, absl::DataLossError("fsync: Input/output error"));
  now_ = core_->NextDeadline();
  EXPECT_THAT(All<WriteFiles>(Do(Tick{})), SizeIs(1));  // the last one is owed
  Written(3);
  EXPECT_EQ(Reported().step, 3);
  EXPECT_THAT(Reported().applied_orders, SizeIs(3));
}

// The lead of the last lineage left version 2 with its evaluation under way.
LeadSnapshot AtTwo() {
  LeadSnapshot snapshot;
  snapshot.step = 2;
  snapshot.samples_used = 8;
  snapshot.epoch = {1, {8, 16.0, 2}, 1.5};
  snapshot.ending = snapshot.epoch;
  snapshot.applied_orders = {{4, Order::What::kLearningRate, 0.25, 1}};
  snapshot.learning_rate = 0.25;
  return snapshot;
}

// Shards were moved: this one is the lead of three, and was the lead of two. Whoever is in the next lineage
// already tries again; it is not refused for good.
TEST_F(CoreLineageTest, ALineageMayHaveAnotherNumberOfShards) {
  Ready(/*shard=*/0, /*num_shards=*/2);
  constexpr StreamId kShard2 = 14;
  EXPECT_EQ(ClosedWith(Hello(kShard2, v1::STREAM_KIND_SHARD, 2, 0, /*lineage=*/2), kShard2),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ClosedWith(Hello(kShard2, v1::STREAM_KIND_SHARD, 2, 0), kShard2),
            absl::StatusCode::kInvalidArgument);
  num_shards_ = 3;
  Start(2);
  Load(2);
  EXPECT_EQ(ClosedWith(Hello(kShard2, v1::STREAM_KIND_SHARD, 2, 0, /*lineage=*/2), kShard2),
            absl::StatusCode::kOk);
  EXPECT_EQ(core_->State(now_).waiting().parts_size(), 3);  // itself included
}

TEST_F(CoreLineageTest, SealsForANewLeadComeTooEarlyAndAreTriedAgain) {
  Ready(/*shard=*/1, /*num_shards=*/2);
  EXPECT_EQ(ClosedWith(Hello(kControl, v1::STREAM_KIND_CONTROL, 0, 0, /*lineage=*/2), kControl),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ClosedWith(Hello(kControl, v1::STREAM_KIND_CONTROL, 0, 0), kControl),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(CoreLineageTest, ALineageGoesOnFromAManifest) {
  Make(0, 1);
  StartLineage start{.lineage = 3,
                     .generation = 3,
                     .run = run_,
                     .workers = {0, 1},
                     .lane_owners = {0, 1},
                     .base_manifest = "/out/j1/1-2",
                     .orders = {{4, Order::What::kLearningRate, 9, 1},  // the manifest has it
                                {5, Order::What::kLearningRate, 0.0625, 3}}};
  const Effects load = Do(start);
  ASSERT_THAT(All<LoadBase>(load), SizeIs(1));
  EXPECT_EQ(All<LoadBase>(load)[0].base_manifest, "/out/j1/1-2");
  Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 3);
  Effects effects = Do(BaseLoaded{.lineage = 3, .version = 2, .snapshot = AtTwo()});
  ASSERT_THAT(All<SendWeights>(effects), SizeIs(1));
  EXPECT_EQ(All<SendWeights>(effects)[0].version, 2);
  EXPECT_TRUE(All<SendWeights>(effects)[0].evaluate);
  EXPECT_FALSE(All<SendWeights>(effects)[0].stop);
  EXPECT_THAT(All<WriteFiles>(effects), IsEmpty());
  EXPECT_EQ(core_->State(now_).generation(), 3);
  EXPECT_EQ(core_->State(now_).lead().step(), 2);
  EXPECT_EQ(core_->State(now_).lead().samples_used(), 8);
  EXPECT_THAT(core_->State(now_).waiting().evaluation_blocks(), ElementsAre(0, 1));
  Evaluate(2);
  EXPECT_EQ(core_->State(now_).lead().epochs(0).train_loss(), 2.0);
  EXPECT_EQ(All<ApplyStep>(RunStep())[0].decision.learning_rate, 0.25);
  EXPECT_EQ(All<ApplyStep>(RunStep())[0].decision.learning_rate, 0.0625);  // at its step
  EXPECT_EQ(core_->version(), 4);
}

// SUCCEEDED needs files of the lineage that ends, also where nothing is left to compute.
TEST_F(CoreLineageTest, ALineageThatBeginsAtTheEndWritesItsFiles) {
  for (const int32_t shard : {0, 1}) {
    Make(shard, 2, /*total_steps=*/2);
    Start(3);
    const Effects effects = Do(BaseLoaded{.lineage = 3, .version = 2, .snapshot = AtTwo()});
    EXPECT_THAT(All<WriteFiles>(effects), SizeIs(1));
    EXPECT_TRUE(core_->State(now_).stopped());
    const auto sent = All<SendWeights>(Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 3));
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_TRUE(sent[0].stop && sent[0].evaluate);
  }
  Make(0, 1, /*total_steps=*/2);
  Start(3);
  Do(BaseLoaded{.lineage = 3, .version = 2, .snapshot = AtTwo()});
  Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 3);
  Evaluate(2);
  EXPECT_TRUE(core_->State(now_).lead().complete());
}

TEST_F(CoreLineageTest, ASnapshotOfAnotherHistoryIsRefused) {
  LeadSnapshot other = AtTwo();
  other.applied_orders[0].step = 2;  // of a step that is not decided
  for (const auto& [version, snapshot] :
       {std::pair{int64_t{1}, AtTwo()}, std::pair{int64_t{2}, other}}) {
    Make(0, 1);
    Start(3);
    Do(BaseLoaded{.lineage = 3, .version = version, .snapshot = snapshot});
    EXPECT_EQ(core_->State(now_).reason(), "CheckpointCorrupt");
    EXPECT_THAT(core_->State(now_).message(), HasSubstr("lead snapshot: "));
    EXPECT_FALSE(core_->State(now_).ready());
  }
  // The next lineage is not held against it.
  Start(4);
  Do(BaseLoaded{.lineage = 4, .version = 0});
  EXPECT_TRUE(core_->State(now_).ready());
  EXPECT_EQ(core_->State(now_).reason(), "");
  EXPECT_EQ(core_->State(now_).message(), "");
}

// What is said between the two would be taken for the new one's.
TEST_F(CoreLineageTest, NothingOfTheOldLineageIsLeft) {
  ReadySaving(/*total_steps=*/3, /*every=*/1);
  for (int i = 0; i < 3; ++i) {
    now_ += absl::Seconds(1);
    RunStep();
  }
  Written(1);
  Written(3, absl::DataLossError("fsync: Input/output error"));
  node::v1::ShardState state = core_->State(now_);
  ASSERT_TRUE(state.stopped() && state.has_files() && state.has_lead());
  ASSERT_EQ(state.paces_size(), 2);

  EXPECT_THAT(All<StateChanged>(Start(2)), SizeIs(1));
  state = core_->State(now_);
  EXPECT_FALSE(state.ready() || state.stopped() || state.has_files() || state.has_lead());
  EXPECT_EQ(state.paces_size(), 0);
  EXPECT_EQ(core_->version(), -1);
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());  // no file is owed
  EXPECT_THAT(All<SendHelloReply>(Load(2)), IsEmpty());        // its streams have ended
  EXPECT_EQ(core_->State(now_).paces_size(), 0);

  Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 2);
  EXPECT_THAT(All<RetireVersion>(Do(Frame(kW0, 0, {0, 1}))), IsEmpty());
  EXPECT_THAT(All<WriteFiles>(RunStep()), SizeIs(1));
  // Files of the old one with the same number are not the new one's.
  FilesWritten old{.lineage = 1, .version = 1};
  old.files.emplace_back().set_name("shard-0.safetensors");
  EXPECT_THAT(Do(old), IsEmpty());
  EXPECT_FALSE(core_->State(now_).has_files());
  Do(FilesTaken{1, 1});
  Written(1);
  EXPECT_EQ(core_->State(now_).files().lineage(), 2);
}

// Else a shard that missed a decision would wait for it for ever.
TEST_F(CoreLineageTest, WhatAShardShowedInTheOldLineageDoesNotCount) {
  Ready(0, 2);
  for (const int64_t lineage : {1, 2}) {
    SCOPED_TRACE(lineage);
    if (lineage == 2) {
      ASSERT_NE(core_->NextDeadline(), absl::InfiniteDuration());  // a decision is repeated
      Start(2);
      EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
      Load(2);
      Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 2);
    }
    EXPECT_THAT(All<SendDecision>(Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0, lineage)), IsEmpty());
    Do(Frame(kW0, 0, {0, 2}));
    Roots();
    Seal(kW0, 0);
    EXPECT_THAT(All<SendDecision>(Do(PartArrived{kShard1, 0, 1, {true, {}}})), SizeIs(1));
    now_ = core_->NextDeadline();
    EXPECT_THAT(All<SendDecision>(Do(Tick{})), SizeIs(1));
    Do(ShownArrived{kShard1, 1});
  }
}

TEST_F(CoreLineageTest, AShardLeavesTheStreamToTheLeadOfTheOldLineage) {
  const absl::Status gone = absl::UnavailableError("gone");
  Make(1, 2);
  EXPECT_THAT(All<DropLead>(Start(1)), IsEmpty());  // there is none yet
  Load(1);
  for (const int64_t backoff_ms : {50, 100}) {  // also before it was ever open
    Do(LeadClosed{1, gone});
    EXPECT_EQ(core_->NextDeadline(), now_ + absl::Milliseconds(backoff_ms));
    now_ = core_->NextDeadline();
    EXPECT_THAT(All<ConnectLead>(Do(Tick{})), SizeIs(1));
  }
  Do(LeadOpened{1});
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(All<SendPart>(Roots()), SizeIs(1));

  EXPECT_THAT(All<DropLead>(Start(2)), SizeIs(1));
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
  EXPECT_THAT(All<ConnectLead>(Load(2)), SizeIs(1));
  EXPECT_THAT(Do(LeadClosed{1, gone}), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
  Do(LeadOpened{1});
  Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 2);
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(All<SendPart>(Roots()), IsEmpty());  // the stream is not open yet
  EXPECT_THAT(All<SendPart>(Do(LeadOpened{2})), SizeIs(1));
  Do(LeadClosed{2, gone});
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Milliseconds(50));
  EXPECT_THAT(All<DropLead>(Do(EndJob{})), SizeIs(1));

  Ready(0, 2);
  EXPECT_THAT(All<DropLead>(Start(2)), IsEmpty());  // this one is the lead
  EXPECT_THAT(All<DropLead>(Do(EndJob{})), IsEmpty());
}

}  // namespace
}  // namespace capstan::exchange::shard
