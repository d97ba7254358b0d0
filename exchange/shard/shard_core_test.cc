#include "exchange/shard/shard_core.h"

#include <string>
#include <utility>
#include <vector>

#include "exchange/shard/test_shard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::exchange::shard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using training::FoldCommand;
using Kind = training::FoldCommand::Kind;

// ---- R6 ----

TEST_F(ShardCoreTest, AStepIsFoldedCheckedDecidedAppliedAndSent) {
  Ready();
  Effects effects = Do(Frame(kW0, 0, {0, 1}));
  ASSERT_THAT(All<FoldFrame>(effects), SizeIs(1));
  EXPECT_EQ(All<FoldFrame>(effects)[0].payload, 77);
  EXPECT_THAT(All<FoldFrame>(effects)[0].commands, Each(ElementsAre(FoldCommand{Kind::kTake, 0})));
  EXPECT_THAT(All<SendAck>(effects), IsEmpty());  // all stored: the next version is the answer
  EXPECT_THAT(All<CheckRoots>(effects), IsEmpty());
  EXPECT_THAT(core_->State(now_).waiting().lanes(), ElementsAre(0, 1));  // lane 0: its seal
  EXPECT_EQ(core_->State(now_).waiting().missing_chunks(), 3);
  EXPECT_EQ(core_->State(now_).waiting().chunks(), 3);
  EXPECT_EQ(core_->waiting_workers(), 1);

  effects = Do(Frame(kW1, 0, {1, 1}));
  EXPECT_THAT(All<FoldFrame>(effects)[0].commands, Each(ElementsAre(FoldCommand{Kind::kAdd, 0})));
  EXPECT_LT(IndexOf<FoldFrame>(effects), IndexOf<CheckRoots>(effects));
  EXPECT_THAT(Roots(), IsEmpty());  // the seals are missing
  Seal(kW0, 0, {0, 1});
  effects = Seal(kW1, 0, {1, 1});
  ASSERT_THAT(All<ApplyStep>(effects), SizeIs(1));
  const training::Decision decision = All<ApplyStep>(effects)[0].decision;
  EXPECT_EQ(decision.step, 0);
  EXPECT_TRUE(decision.apply);
  EXPECT_EQ(decision.learning_rate, 0.5);
  const auto sent = All<SendWeights>(effects);
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].stream, kW0);
  EXPECT_EQ(sent[1].stream, kW1);
  EXPECT_EQ(sent[0].version, 1);
  EXPECT_LT(IndexOf<ApplyStep>(effects), IndexOf<SendWeights>(effects));
  ASSERT_THAT(All<LogStep>(effects), SizeIs(1));
  EXPECT_EQ(All<LogStep>(effects)[0].line.loss, 4.0);  // two seals of 8 over 4 samples
  EXPECT_EQ(All<LogStep>(effects)[0].line.lineage, 1);
  EXPECT_THAT(All<StateChanged>(effects), SizeIs(1));  // the first step of a history is news
  EXPECT_EQ(core_->version(), 1);
}

TEST_F(ShardCoreTest, AStateSaysWhatItIsOf) {
  Ready(1, 2);
  EXPECT_EQ(core_->State(now_).shard(), 1);
  Ready();
  RunStep();
  const node::v1::ShardState state = core_->State(now_);
  EXPECT_EQ(state.job_id(), "j1");
  EXPECT_EQ(state.shard(), 0);
  EXPECT_EQ(state.version(), 1);
  EXPECT_EQ(state.waiting().step(), 1);
}

TEST_F(ShardCoreTest, AWaitIsCountedFromItsVersion) {
  now_ = absl::Seconds(10);
  Ready();
  EXPECT_EQ(core_->State(now_ + absl::Seconds(2)).waiting().seconds(), 2);
  now_ += absl::Seconds(3);
  RunStep();
  EXPECT_EQ(core_->State(now_ + absl::Seconds(2)).waiting().seconds(), 2);
}

struct Refusal {
  const char* name;
  void (*change)(FrameArrived&);
  absl::StatusCode code;
  int64_t DropCounts::*count;
};

// Every lane of a step computes with the scale of the lead, whichever stream the weights came by.
TEST_F(ShardCoreTest, TheLeadSendsTheLossScaleWithTheWeights) {
  for (const int32_t shard : {0, 1}) {
    Make(shard, 2);
    ShardPlan plan = Plan(shard);
    plan.dynamic_loss_scale = true;
    core_.emplace(std::move(plan));
    Start(1);
    Load(1);
    const auto sent = All<SendWeights>(Hello(kW0, v1::STREAM_KIND_DATA, 0));
    ASSERT_THAT(sent, SizeIs(1));
    EXPECT_EQ(sent[0].loss_scale, shard == 0 ? 65536 : 0);
  }
}

TEST_F(ShardCoreTest, WhatDoesNotFitEndsTheStreamAndChangesNothing) {
  using absl::StatusCode;
  const Refusal cases[] = {
      {"step ahead", [](FrameArrived& f) { f.step = 1; }, StatusCode::kInvalidArgument,
       &DropCounts::ahead},
      {"negative step", [](FrameArrived& f) { f.step = -1; }, StatusCode::kInvalidArgument,
       &DropCounts::invalid},
      {"block not aligned",
       [](FrameArrived& f) {
         f.block = {1, 2};
       },
       StatusCode::kInvalidArgument, &DropCounts::invalid},
      {"lane 2 of 2",
       [](FrameArrived& f) {
         f.block = {2, 1};
       },
       StatusCode::kInvalidArgument, &DropCounts::invalid},
      {"three lanes",
       [](FrameArrived& f) {
         f.block = {0, 3};
       },
       StatusCode::kInvalidArgument, &DropCounts::invalid},
      {"short payload", [](FrameArrived& f) { f.payload_bytes -= 4; }, StatusCode::kInvalidArgument,
       &DropCounts::invalid},
      {"no chunk",
       [](FrameArrived& f) {
         f.chunk_count = 0;
         f.payload_bytes = 0;
         f.intact.clear();
       },
       StatusCode::kInvalidArgument, &DropCounts::invalid},
      {"chunk 3 of 3", [](FrameArrived& f) { f.first_chunk = 2; }, StatusCode::kInvalidArgument,
       &DropCounts::invalid},
      {"chunk overflow", [](FrameArrived& f) { f.first_chunk = 2147483647; },
       StatusCode::kInvalidArgument, &DropCounts::invalid},
      {"negative chunk", [](FrameArrived& f) { f.first_chunk = -1; }, StatusCode::kInvalidArgument,
       &DropCounts::invalid},
      {"chunk of shard 0", [](FrameArrived& f) { f.first_chunk = 0; }, StatusCode::kOutOfRange,
       &DropCounts::wrong_shard},
  };
  for (const Refusal& refusal : cases) {
    SCOPED_TRACE(refusal.name);
    Ready(/*shard=*/1, /*num_shards=*/2);
    FrameArrived frame = Frame(kW0, 0, {0, 1});
    refusal.change(frame);
    const Effects effects = Do(frame);
    EXPECT_EQ(ClosedWith(effects, kW0), refusal.code);
    EXPECT_THAT(effects, SizeIs(1));
    EXPECT_EQ(core_->drops().*refusal.count, 1);
    EXPECT_THAT(core_->State(now_).waiting().lanes(), ElementsAre(0, 1));
    // What the stream still had under way is dropped without a word.
    EXPECT_THAT(Do(Frame(kW0, 0, {0, 1})), IsEmpty());
  }
}

TEST_F(ShardCoreTest, AFrameThatBeginsHereAndEndsElsewhereIsRefused) {
  Ready(/*shard=*/0, /*num_shards=*/2);
  run_.chunk_count = 2;  // the second is of shard 1
  EXPECT_EQ(ClosedWith(Do(Frame(kW0, 0, {0, 1})), kW0), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(core_->drops().wrong_shard, 1);
}

// 5 samples in batches of 4: the second step has one, so lane 1 is empty in it.
TEST_F(ShardCoreTest, APastStepMayHaveHadLanesThatThisOneLacks) {
  Make(0, 1);
  ShardPlan plan = Plan(0);
  plan.samples = *training::SamplePlan::Create({.dataset_size = 5, .global_batch = 4, .lanes = 2});
  core_.emplace(std::move(plan));
  Start(1);
  Load(1);
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  Hello(kW1, v1::STREAM_KIND_DATA, 1);
  RunStep();
  ASSERT_EQ(core_->version(), 1);
  const Effects late = Do(Frame(kW1, 0, {1, 1}));
  EXPECT_EQ(ClosedWith(late, kW1), absl::StatusCode::kOk);
  EXPECT_THAT(All<SendAck>(late), SizeIs(1));
  EXPECT_EQ(core_->drops().past, 3);
  EXPECT_EQ(ClosedWith(Do(Frame(kW1, 1, {1, 1})), kW1), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(All<CheckRoots>(Do(Frame(kW0, 1, {0, 1}))), SizeIs(1));
}

// An answer that comes too late, or twice: it would stand for sums that are not there.
TEST_F(ShardCoreTest, RootsOfAnotherStepOrLineageDoNotCount) {
  Ready();
  RunStep();
  EXPECT_THAT(Do(RootsChecked{1, 0, {true, {}}}), IsEmpty());
  EXPECT_THAT(All<ApplyStep>(Seal(kW0, 1)), IsEmpty());
  EXPECT_EQ(core_->version(), 1);
  Start(2);
  Load(2);
  Hello(kW0, v1::STREAM_KIND_DATA, 0, -1, 2);
  EXPECT_THAT(Do(RootsChecked{1, 0, {true, {}}}), IsEmpty());
  Seal(kW0, 0);
  EXPECT_EQ(core_->version(), 0);
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(All<ApplyStep>(Roots()), SizeIs(1));

  Ready(1, 2);
  Do(LeadOpened{1});
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(All<SendPart>(Roots()), SizeIs(1));
  EXPECT_THAT(Roots(/*finite=*/false), IsEmpty());
}

TEST_F(ShardCoreTest, OutcomesOfRepeatedAndOverlappingNodes) {
  using Outcomes = std::vector<v1::FrameOutcome>;
  Ready();
  Do(Frame(kW0, 0, {0, 1}));
  Effects effects = Do(Frame(kW1, 0, {0, 1}));  // the same block, whoever sends it
  ASSERT_THAT(All<SendAck>(effects), SizeIs(1));
  EXPECT_EQ(All<SendAck>(effects)[0].outcomes, Outcomes(3, v1::FRAME_OUTCOME_COVERED));
  EXPECT_THAT(All<FoldFrame>(effects), IsEmpty());
  EXPECT_EQ(core_->drops().covered, 3);

  // The root discards lane 0, which was held below it.
  effects = Do(Frame(kW1, 0, {0, 2}));
  ASSERT_THAT(All<FoldFrame>(effects), SizeIs(1));
  EXPECT_THAT(All<FoldFrame>(effects)[0].commands, Each(ElementsAre(FoldCommand{Kind::kTake, 0})));
  EXPECT_THAT(All<CheckRoots>(effects), SizeIs(1));
  effects = Do(Frame(kW0, 0, {1, 1}));  // below the held root
  EXPECT_EQ(All<SendAck>(effects)[0].outcomes, Outcomes(3, v1::FRAME_OUTCOME_COVERED));
  EXPECT_THAT(All<CheckRoots>(effects), IsEmpty());

  Roots();
  Seal(kW0, 0);
  ASSERT_EQ(core_->version(), 1);
  effects = Do(Frame(kW0, 0, {1, 1}));
  EXPECT_EQ(All<SendAck>(effects)[0].outcomes, Outcomes(3, v1::FRAME_OUTCOME_PAST));
  EXPECT_EQ(core_->drops().past, 3);
}

TEST_F(ShardCoreTest, ACorruptChunkIsSentAgainAndTheOthersCount) {
  Ready();
  FrameArrived frame = Frame(kW0, 0, {0, 2});
  frame.intact[1] = false;
  Effects effects = Do(frame);
  const std::vector<v1::FrameOutcome> want = {v1::FRAME_OUTCOME_STORED, v1::FRAME_OUTCOME_CORRUPT,
                                              v1::FRAME_OUTCOME_STORED};
  EXPECT_EQ(All<SendAck>(effects)[0].outcomes, want);
  EXPECT_THAT(All<FoldFrame>(effects)[0].commands, ElementsAre(SizeIs(1), IsEmpty(), SizeIs(1)));
  EXPECT_EQ(core_->drops().corrupt, 1);
  EXPECT_EQ(core_->State(now_).waiting().missing_chunks(), 1);
  effects = Do(Frame(kW0, 0, {0, 2}));  // again, whole
  EXPECT_THAT(All<CheckRoots>(effects), SizeIs(1));
  EXPECT_EQ(All<SendAck>(effects)[0].outcomes,
            (std::vector<v1::FrameOutcome>{v1::FRAME_OUTCOME_COVERED, v1::FRAME_OUTCOME_STORED,
                                           v1::FRAME_OUTCOME_COVERED}));
  EXPECT_THAT(All<FoldFrame>(effects)[0].commands, ElementsAre(IsEmpty(), SizeIs(1), IsEmpty()));
}

TEST_F(ShardCoreTest, ANonFiniteStepIsSkippedAndPublished) {
  Ready();
  Do(Frame(kW0, 0, {0, 2}));
  Roots(/*finite=*/false);
  const Effects effects = Seal(kW0, 0);
  ASSERT_THAT(All<ApplyStep>(effects), SizeIs(1));
  EXPECT_FALSE(All<ApplyStep>(effects)[0].decision.apply);
  ASSERT_THAT(All<SendWeights>(effects), SizeIs(2));
  EXPECT_TRUE(All<SendWeights>(effects)[0].skipped);
  EXPECT_EQ(core_->State(now_).lead().skipped_steps(), 1);
  // A task that lost its stream hears of it, too.
  EXPECT_TRUE(All<SendWeights>(Hello(21, v1::STREAM_KIND_DATA, 0, /*have=*/0))[0].skipped);
  for (const SendWeights& send : All<SendWeights>(RunStep())) EXPECT_FALSE(send.skipped);
}

// A lane leaves by itself if gradients are compressed, in words.
TEST_F(ShardCoreTest, ACompressedFrameHasTheSizeOfItsFormatAndOneLane) {
  Make(0, 1);
  ShardPlan plan = Plan(0);
  plan.gradient_format = {.encoding = training::GradientEncoding::kTwoBit};
  core_.emplace(std::move(plan));
  Start(1);
  Load(1);
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  Hello(kW1, v1::STREAM_KIND_DATA, 1);
  FrameArrived frame = Frame(kW0, 0, {0, 1});
  frame.payload_bytes = 3 * 4 * (1 + 4096 / 16);
  EXPECT_THAT(All<FoldFrame>(Do(frame)), SizeIs(1));
  frame.stream = kW1;
  frame.block = {0, 2};
  EXPECT_EQ(ClosedWith(Do(frame), kW1), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ClosedWith(Do(Frame(kW0, 0, {1, 1})), kW0), absl::StatusCode::kInvalidArgument)
      << "the size of floats";
  EXPECT_EQ(core_->drops().invalid, 2);
}

TEST_F(ShardCoreTest, ThreeNonFiniteStepsAreReported) {
  Ready(0, 1, /*total_steps=*/8);
  Effects last;
  for (int step = 0; step < 3; ++step) {
    Do(Frame(kW0, step, {0, 2}));
    Roots(false);
    last = Seal(kW0, step);
    if (step == 1) Evaluate(2);
  }
  EXPECT_THAT(All<StateChanged>(last), SizeIs(1));  // the coordinator ends the job
  EXPECT_EQ(core_->version(), 2);
  EXPECT_EQ(core_->State(now_).lead().reason(), "NonFiniteLoss");
}

TEST_F(ShardCoreTest, AVersionIsRetiredWithTheFirstAcceptedFrameOfTheNextStep) {
  Ready();
  RunStep();
  EXPECT_THAT(All<RetireVersion>(Do(Frame(kW0, 0, {0, 1}))), IsEmpty());  // past: not accepted
  const Effects effects = Do(Frame(kW0, 1, {0, 1}));
  ASSERT_THAT(All<RetireVersion>(effects), SizeIs(1));
  EXPECT_EQ(All<RetireVersion>(effects)[0].version, 0);
  EXPECT_THAT(All<RetireVersion>(Do(Frame(kW1, 1, {1, 1}))), IsEmpty());
}

// ---- Streams ----

struct HelloCase {
  const char* name;
  StreamOpened hello;
  absl::StatusCode code;
};

TEST_F(ShardCoreTest, HellosAreAnsweredByLineageDigestAndView) {
  using absl::StatusCode;
  const std::string digest(32, 'd');
  const HelloCase cases[] = {
      {"good", {20, v1::STREAM_KIND_DATA, digest, 2, 0, -1}, StatusCode::kOk},
      {"older lineage",
       {20, v1::STREAM_KIND_DATA, digest, 1, 0, -1},
       StatusCode::kFailedPrecondition},
      {"newer lineage", {20, v1::STREAM_KIND_DATA, digest, 3, 0, -1}, StatusCode::kUnavailable},
      {"no lineage", {20, v1::STREAM_KIND_DATA, digest, 0, 0, -1}, StatusCode::kInvalidArgument},
      {"other digest",
       {20, v1::STREAM_KIND_DATA, std::string(32, 'e'), 2, 0, -1},
       StatusCode::kFailedPrecondition},
      {"unknown worker", {20, v1::STREAM_KIND_DATA, digest, 2, 2, -1}, StatusCode::kUnavailable},
      {"version ahead", {20, v1::STREAM_KIND_DATA, digest, 2, 0, 1}, StatusCode::kInvalidArgument},
      {"control", {20, v1::STREAM_KIND_CONTROL, digest, 2, 1, -1}, StatusCode::kOk},
      {"shard 1", {20, v1::STREAM_KIND_SHARD, digest, 2, 1, 0}, StatusCode::kOk},
      {"shard 0", {20, v1::STREAM_KIND_SHARD, digest, 2, 0, 0}, StatusCode::kInvalidArgument},
      {"shard 2 of 2", {20, v1::STREAM_KIND_SHARD, digest, 2, 2, 0}, StatusCode::kInvalidArgument},
  };
  for (const HelloCase& c : cases) {
    SCOPED_TRACE(c.name);
    Make(0, 2);
    Start(2);
    Load(2);
    const Effects effects = Do(c.hello);
    EXPECT_EQ(ClosedWith(effects, 20), c.code);
    EXPECT_THAT(All<SendHelloReply>(effects), SizeIs(c.code == StatusCode::kOk ? 1 : 0));
    const bool invalid = c.code == StatusCode::kInvalidArgument;
    EXPECT_EQ(core_->drops().invalid, invalid ? 1 : 0);
    EXPECT_EQ(core_->drops().lineage, invalid || c.code == StatusCode::kOk ? 0 : 1);
  }
  Make(1, 2);
  Start(2);
  Load(2);
  const Effects effects = Do(StreamOpened{20, v1::STREAM_KIND_CONTROL, digest, 2, 0, -1});
  EXPECT_EQ(ClosedWith(effects, 20), StatusCode::kInvalidArgument);  // seals go to the lead
  EXPECT_EQ(ClosedWith(Do(StreamOpened{21, v1::STREAM_KIND_SHARD, digest, 2, 1, 0}), 21),
            StatusCode::kInvalidArgument);  // so do parts
}

TEST_F(ShardCoreTest, AStreamGetsWhatItLacks) {
  Ready();
  RunStep();
  Effects effects = Hello(21, v1::STREAM_KIND_DATA, 0, /*have=*/0);
  EXPECT_EQ(All<SendHelloReply>(effects)[0].version, 1);
  ASSERT_THAT(All<SendWeights>(effects), SizeIs(1));
  EXPECT_EQ(All<SendWeights>(effects)[0].version, 1);
  effects = Hello(22, v1::STREAM_KIND_DATA, 0, /*have=*/1);
  EXPECT_THAT(All<SendWeights>(effects), IsEmpty());
}

TEST_F(ShardCoreTest, AStreamThatComesWhileTheBaseIsLoadedIsAnsweredAfterwards) {
  Make(0, 1);
  Start(1);
  EXPECT_THAT(Hello(kW0, v1::STREAM_KIND_DATA, 0), IsEmpty());
  EXPECT_THAT(Hello(kW1, v1::STREAM_KIND_DATA, 1, /*have=*/0), IsEmpty());
  EXPECT_THAT(Hello(20, v1::STREAM_KIND_DATA, 1, /*have=*/1), IsEmpty());
  const Effects effects = Load(1);
  EXPECT_THAT(All<StateChanged>(effects), SizeIs(1));
  EXPECT_THAT(All<SendHelloReply>(effects), SizeIs(2));
  ASSERT_THAT(All<SendWeights>(effects), SizeIs(1));
  EXPECT_EQ(All<SendWeights>(effects)[0].stream, kW0);
  EXPECT_EQ(ClosedWith(effects, 20), absl::StatusCode::kInvalidArgument);  // ahead of the base
  RunStep();
  EXPECT_THAT(Load(1), IsEmpty());  // told twice: what was computed since stays
  EXPECT_EQ(core_->version(), 1);
}

TEST_F(ShardCoreTest, MessagesOfTheWrongStreamEndIt) {
  Make(1, 2);
  Start(1);
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  EXPECT_EQ(ClosedWith(Do(Frame(kW0, 0, {0, 1})), kW0), absl::StatusCode::kInvalidArgument);
  Load(1);
  Hello(kW1, v1::STREAM_KIND_DATA, 1);
  EXPECT_EQ(ClosedWith(Seal(kW1, 0), kW1), absl::StatusCode::kInvalidArgument);  // not the lead
  Make(0, 2);
  Start(1);
  Load(1);
  Hello(kControl, v1::STREAM_KIND_CONTROL, 0);
  EXPECT_EQ(ClosedWith(Do(Frame(kControl, 0, {0, 1})), kControl),
            absl::StatusCode::kInvalidArgument);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  EXPECT_EQ(ClosedWith(Do(PartArrived{kShard1, 0, 0, {true, {}}}), kShard1),
            absl::StatusCode::kInvalidArgument);  // in another shard's name
  EXPECT_EQ(core_->drops().invalid, 2);
}

TEST_F(ShardCoreTest, SealsPartsAndEvaluationsThatDoNotFitEndTheStream) {
  using absl::StatusCode;
  Ready(0, 2);
  Hello(kControl, v1::STREAM_KIND_CONTROL, 0);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  EXPECT_EQ(ClosedWith(Seal(kW0, 1), kW0), StatusCode::kInvalidArgument);  // ahead
  EXPECT_EQ(ClosedWith(Do(PartArrived{kShard1, 1, 1, {true, {}}}), kShard1),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(ClosedWith(Do(EvaluationArrived{kW1, 2, 0, {1, 1.0, 1}}), kW1),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->drops().ahead, 3);
  const Effects wrong = Do(SealArrived{kControl, 0, {0, 2}, {5, 8.0, 1}});  // of 4 samples
  EXPECT_EQ(ClosedWith(wrong, kControl), StatusCode::kInvalidArgument);
  EXPECT_EQ(core_->drops().invalid, 1);
  EXPECT_THAT(core_->State(now_).waiting().parts(), ElementsAre(0, 1));
}

TEST_F(ShardCoreTest, AViewThatDropsAWorkerClosesItsStreams) {
  Ready();
  EXPECT_THAT(Do(ViewChange{.lineage = 1, .generation = 1, .workers = {}}),
              IsEmpty());  // not newer
  EXPECT_THAT(Do(ViewChange{.lineage = 2, .generation = 9, .workers = {}}), IsEmpty());
  const Effects effects =
      Do(ViewChange{.lineage = 1, .generation = 2, .workers = {1}, .lane_owners = {1, 1}});
  EXPECT_EQ(ClosedWith(effects, kW0), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ClosedWith(effects, kW1), absl::StatusCode::kOk);
  EXPECT_EQ(core_->State(now_).generation(), 2);
}

// ---- Lineages ----

TEST_F(ShardCoreTest, ANewLineageDiscardsTheOldOneAndAnOldOneDoesNothing) {
  Ready();
  Do(Frame(kW0, 0, {0, 1}));
  EXPECT_THAT(Start(1), IsEmpty());
  const Effects effects = Start(2);
  EXPECT_EQ(ClosedWith(effects, kW0), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ClosedWith(effects, kW1), absl::StatusCode::kFailedPrecondition);
  ASSERT_THAT(All<LoadBase>(effects), SizeIs(1));
  EXPECT_THAT(Start(1), IsEmpty());
  EXPECT_THAT(Load(1), IsEmpty());  // an answer that comes too late
  EXPECT_FALSE(core_->State(now_).ready());
  Load(2);
  EXPECT_TRUE(core_->State(now_).ready());
  EXPECT_EQ(core_->State(now_).lineage(), 2);
  EXPECT_THAT(core_->State(now_).waiting().lanes(), ElementsAre(0, 1));  // nothing is held
  EXPECT_THAT(Do(RootsChecked{1, 0, {true, {}}}), IsEmpty());
}

TEST_F(ShardCoreTest, ABaseThatCannotBeLoadedIsReported) {
  Make(0, 1);
  Start(1);
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  const Effects effects =
      Do(BaseLoaded{.lineage = 1, .reason = "DataMissing", .message = "no such file"});
  EXPECT_EQ(ClosedWith(effects, kW0), absl::StatusCode::kUnavailable);
  EXPECT_THAT(All<StateChanged>(effects), SizeIs(1));
  EXPECT_EQ(core_->State(now_).reason(), "DataMissing");
}

// ---- R7 over several shards ----

// The lead decides with the part of every shard: a decision that comes before it is of another
// history, and what it asks for is not here.
TEST_F(ShardCoreTest, ADecisionBeforeTheOwnPartIsNotFollowed) {
  Ready(1, 2);
  Do(LeadOpened{1});
  training::Decision decision;
  decision.apply = true;
  decision.learning_rate = 0.5;
  EXPECT_THAT(Do(DecisionArrived{1, decision}), IsEmpty());
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(Do(DecisionArrived{1, decision}), IsEmpty());
  EXPECT_EQ(core_->version(), 0);
  Roots();
  EXPECT_THAT(All<StateChanged>(Do(DecisionArrived{1, decision})), SizeIs(1));
  EXPECT_EQ(core_->version(), 1);
}

TEST_F(ShardCoreTest, AShardRepeatsItsPartUntilTheDecisionIsThere) {
  Make(1, 2);
  Start(1);
  EXPECT_THAT(All<ConnectLead>(Load(1)), SizeIs(1));
  Do(LeadOpened{1});
  Hello(kW0, v1::STREAM_KIND_DATA, 0);
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(All<SendPart>(Roots()), SizeIs(1));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(core_->NextDeadline(), now_ + absl::Milliseconds(200));
    now_ = core_->NextDeadline();
    const Effects effects = Do(Tick{});
    ASSERT_THAT(All<SendPart>(effects), SizeIs(1));
    EXPECT_EQ(All<SendPart>(effects)[0].step, 0);
  }
  training::Decision decision;
  decision.apply = true;
  decision.learning_rate = 0.5;
  EXPECT_THAT(Do(DecisionArrived{2, decision}), IsEmpty());  // of another lineage
  decision.step = 1;
  EXPECT_THAT(Do(DecisionArrived{1, decision}), IsEmpty());  // of another step
  decision.step = 0;
  const Effects effects = Do(DecisionArrived{1, decision});
  EXPECT_THAT(All<ApplyStep>(effects), SizeIs(1));
  EXPECT_THAT(All<SendWeights>(effects), SizeIs(1));
  EXPECT_THAT(All<LogStep>(effects), IsEmpty());  // the lead's business
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
  const Effects again = Do(DecisionArrived{1, decision});  // repeated: the lead does not know yet
  ASSERT_THAT(All<SendShown>(again), SizeIs(1));
  EXPECT_EQ(All<SendShown>(again)[0].version, 1);
  EXPECT_THAT(again, SizeIs(1));
  EXPECT_EQ(core_->version(), 1);
}

TEST_F(ShardCoreTest, APartIsSaidAgainOnANewStreamToTheLead) {
  Ready(1, 2);
  Do(Frame(kW0, 0, {0, 2}));
  EXPECT_THAT(All<SendPart>(Roots()), IsEmpty());  // no stream yet
  EXPECT_THAT(All<SendPart>(Do(LeadOpened{1})), SizeIs(1));
  Do(LeadClosed{1, absl::UnavailableError("gone")});
  for (const int64_t backoff_ms : {50, 100, 200, 400, 800, 1600, 2000, 2000}) {
    const absl::Duration start = now_;
    while (true) {
      now_ = core_->NextDeadline();
      const Effects effects = Do(Tick{});
      EXPECT_THAT(All<SendPart>(effects), IsEmpty());
      if (!All<ConnectLead>(effects).empty()) break;
    }
    EXPECT_EQ(now_ - start, absl::Milliseconds(backoff_ms));
    Do(LeadClosed{1, absl::UnavailableError("gone")});
  }
}

TEST_F(ShardCoreTest, TheLeadRepeatsItsDecisionUntilEveryShardShowsTheVersion) {
  Ready(0, 2);
  Hello(kControl, v1::STREAM_KIND_CONTROL, 0);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  Do(Frame(kW0, 0, {0, 2}));
  Roots();
  Seal(kControl, 0);
  EXPECT_EQ(core_->version(), 0);  // the part of shard 1 is missing
  EXPECT_THAT(core_->State(now_).waiting().parts(), ElementsAre(1));
  Effects effects = Do(PartArrived{kShard1, 0, 1, {true, {}}});
  ASSERT_THAT(All<SendDecision>(effects), SizeIs(1));
  EXPECT_EQ(All<SendDecision>(effects)[0].stream, kShard1);
  EXPECT_LT(IndexOf<SendDecision>(effects), IndexOf<ApplyStep>(effects));
  EXPECT_EQ(core_->version(), 1);

  now_ = core_->NextDeadline();
  EXPECT_EQ(now_, absl::Milliseconds(200));
  EXPECT_THAT(All<SendDecision>(Do(Tick{})), SizeIs(1));
  EXPECT_THAT(All<SendDecision>(Do(PartArrived{kShard1, 0, 1, {true, {}}})),
              SizeIs(1));  // asked again
  EXPECT_THAT(All<SendDecision>(Hello(31, v1::STREAM_KIND_SHARD, 1, 0)),
              SizeIs(1));  // a new stream
  EXPECT_THAT(All<SendDecision>(Hello(32, v1::STREAM_KIND_SHARD, 1, 1)), IsEmpty());  // it shows it
  now_ = core_->NextDeadline();
  EXPECT_THAT(Do(Tick{}), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
  EXPECT_THAT(Do(PartArrived{kShard1, 1, 1, {true, {}}}), IsEmpty());
  effects = Do(PartArrived{kShard1, 2, 1, {true, {}}});
  EXPECT_EQ(ClosedWith(effects, kShard1), absl::StatusCode::kInvalidArgument);  // ahead
}

TEST_F(ShardCoreTest, APartOfTheNextStepShowsTheVersion) {
  Ready(0, 2);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  Do(Frame(kW0, 0, {0, 2}));
  Roots();
  Seal(kW0, 0);
  EXPECT_THAT(All<SendDecision>(Do(PartArrived{kShard1, 0, 1, {true, {}}})), SizeIs(1));
  EXPECT_THAT(Do(PartArrived{kShard1, 1, 1, {true, {}}}), IsEmpty());
  now_ = core_->NextDeadline();
  EXPECT_THAT(Do(Tick{}), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
}

// After the last version there is no part that could show it.
TEST_F(ShardCoreTest, TheLastVersionIsShownAndTheDecisionNoLongerRepeated) {
  Ready(1, 2, /*total_steps=*/1);
  Do(LeadOpened{1});
  Do(Frame(kW0, 0, {0, 2}));
  Roots();
  training::Decision last;
  last.apply = last.stop = true;
  last.learning_rate = 0.5;
  EXPECT_THAT(All<SendShown>(Do(DecisionArrived{1, last})), SizeIs(1));

  Ready(0, 2, /*total_steps=*/1);
  Hello(kControl, v1::STREAM_KIND_CONTROL, 0);
  Hello(kShard1, v1::STREAM_KIND_SHARD, 1, 0);
  Do(Frame(kW0, 0, {0, 2}));
  Roots();
  Seal(kControl, 0);
  Do(PartArrived{kShard1, 0, 1, {true, {}}});
  EXPECT_TRUE(core_->State(now_).stopped());
  now_ = core_->NextDeadline();
  EXPECT_THAT(All<SendDecision>(Do(Tick{})), SizeIs(1));
  Do(ShownArrived{kShard1, 1});
  now_ = core_->NextDeadline();
  EXPECT_THAT(All<SendDecision>(Do(Tick{})), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
  EXPECT_EQ(ClosedWith(Do(ShownArrived{kShard1, 2}), kShard1), absl::StatusCode::kInvalidArgument);
  Hello(31, v1::STREAM_KIND_SHARD, 1, 1);
  EXPECT_THAT(Do(ShownArrived{31, 0}), IsEmpty());
  EXPECT_EQ(ClosedWith(Do(ShownArrived{31, -1}), 31), absl::StatusCode::kInvalidArgument);
}

// ---- Evaluation, the end, files ----

TEST_F(ShardCoreTest, TheEndStopsWritesAndReports) {
  Ready(0, 1, /*total_steps=*/2);
  RunStep();
  Effects effects = RunStep();
  ASSERT_THAT(All<SendWeights>(effects), SizeIs(2));
  EXPECT_TRUE(All<SendWeights>(effects)[0].stop);
  EXPECT_TRUE(All<SendWeights>(effects)[0].evaluate);
  ASSERT_THAT(All<WriteFiles>(effects), SizeIs(1));
  EXPECT_EQ(All<WriteFiles>(effects)[0].version, 2);
  EXPECT_LT(IndexOf<ApplyStep>(effects), IndexOf<WriteFiles>(effects));
  EXPECT_LT(IndexOf<LogStep>(effects), IndexOf<WriteFiles>(effects));  // the log is whole first
  EXPECT_TRUE(core_->State(now_).stopped());
  EXPECT_FALSE(core_->State(now_).lead().complete());
  EXPECT_THAT(core_->State(now_).waiting().evaluation_blocks(), ElementsAre(0, 1));
  EXPECT_THAT(core_->State(now_).waiting().lanes(), IsEmpty());

  // Nothing is computed on a version with stop.
  EXPECT_EQ(ClosedWith(Do(Frame(kW1, 2, {0, 2})), kW1), absl::StatusCode::kInvalidArgument);
  Evaluate(2);
  EXPECT_TRUE(core_->State(now_).lead().complete());
  EXPECT_EQ(core_->State(now_).lead().epochs_size(), 1);
  EXPECT_EQ(core_->State(now_).lead().epochs(0).validation_accuracy(), 0.5);
  EXPECT_FALSE(core_->State(now_).has_waiting());

  Do(FilesTaken{1, 2});  // before it is written
  Do(FilesWritten{.lineage = 1, .version = 2, .error = absl::ResourceExhaustedError("disk full")});
  EXPECT_EQ(core_->State(now_).files().error(), "disk full");
  Do(FilesTaken{1, 2});  // whatever others make of the error: the last version is owed
  EXPECT_EQ(core_->NextDeadline(), now_ + absl::Seconds(1));
  now_ = core_->NextDeadline();
  EXPECT_THAT(All<WriteFiles>(Do(Tick{})), SizeIs(1));  // tried again
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
  common::v1::FileInfo file;
  file.set_name("shard-0.safetensors");
  Do(FilesWritten{.lineage = 1, .version = 2, .files = {file}});
  ASSERT_EQ(core_->State(now_).files().files_size(), 1);
  EXPECT_EQ(core_->State(now_).files().step(), 2);
  Do(FilesTaken{1, 1});
  EXPECT_TRUE(core_->State(now_).has_files());
  Do(FilesTaken{1, 2});
  EXPECT_FALSE(core_->State(now_).has_files());
  // A task that joins late still gets the last version.
  EXPECT_TRUE(All<SendWeights>(Hello(40, v1::STREAM_KIND_DATA, 1))[0].stop);
}

TEST_F(ShardCoreTest, TheNextStepWaitsForTheEvaluation) {
  Ready();
  RunStep();
  Effects effects = RunStep();  // version 2 is evaluated
  EXPECT_TRUE(All<SendWeights>(effects)[0].evaluate);
  EXPECT_FALSE(All<SendWeights>(effects)[0].stop);
  RunStep();
  EXPECT_EQ(core_->version(), 2);
  Do(EvaluationArrived{kW0, 2, 0, {1, 1.0, 1}});
  effects = Do(EvaluationArrived{kW1, 2, 1, {1, 1.0, 1}});
  EXPECT_EQ(core_->version(), 3);
  EXPECT_THAT(All<ApplyStep>(effects), SizeIs(1));
  EXPECT_FALSE(All<StateChanged>(effects).empty());
  EXPECT_THAT(Do(EvaluationArrived{kW0, 2, 0, {1, 1.0, 1}}), IsEmpty());  // repeated: past
}

TEST_F(ShardCoreTest, EndJobClosesEverything) {
  Ready();
  const Effects effects = Do(EndJob{});
  EXPECT_EQ(ClosedWith(effects, kW0), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Start(5), IsEmpty());
  EXPECT_EQ(core_->NextDeadline(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace capstan::exchange::shard
