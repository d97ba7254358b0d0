#include "exchange/sender/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "training/codec/crc32c.h"

namespace capstan::exchange::sender {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using training::LaneBlock;

constexpr int64_t kChunkFloats = training::kSmallChunkFloats;

training::FlatLayout FiveChunks() {
  training::TensorSpec spec;
  spec.name = "fc.weight";
  spec.shape = {4 * kChunkFloats + 32};
  spec.fan_in = spec.fan_out = 1;
  auto layout = training::FlatLayout::Create({spec});
  EXPECT_TRUE(layout.ok() && layout->chunk_count() == 5);
  return *std::move(layout);
}

v1::ExchangeRequest Decode(const std::string& bytes) {
  const absl::string_view piece = bytes;
  auto decoded = wire::DecodeRequest({&piece, 1});
  EXPECT_TRUE(decoded.ok());
  return decoded->message;
}

// Two shards: chunks 0 and 1, chunks 2 to 4. One chunk a frame. Streams are 1 (shard 0), 2 (shard 1)
// and 3 (CONTROL to shard 0) at first.
class CoreTest : public ::testing::Test {
 protected:
  explicit CoreTest(CoreOptions options = Options()) : core_(layout_, std::move(options)) {}
  static CoreOptions Options() {
    CoreOptions options;
    options.job_id = "j1";
    options.spec_digest = std::string(32, 'd');
    options.rank = 3;
    options.max_payload_bytes = 4 * kChunkFloats;
    return options;
  }
  static Route TwoShards(int64_t lineage) {
    return {lineage, {{"ps0", "unix:/a", 0, 2}, {"ps1", "unix:/b", 2, 3}}};
  }

  Effects Step(const Event& event) { return core_.Step(event, now_); }

  // What an adapter would do, in short: "open 1 0 data", "hello 1 -1", "frame 1 0/2 chunk 0" ...
  std::vector<std::string> Said(const Effects& effects) {
    std::vector<std::string> lines;
    for (const Effect& effect : effects) lines.push_back(Line(effect));
    return lines;
  }
  std::string Line(const Effect& effect) {
    if (const auto* e = std::get_if<OpenStream>(&effect)) {
      return absl::StrCat("open ", e->stream, " shard ", e->shard,
                          e->kind == v1::STREAM_KIND_DATA ? " data" : " control");
    }
    if (const auto* e = std::get_if<SendMessage>(&effect)) {
      const v1::ExchangeRequest message = Decode(e->bytes);
      if (message.has_hello()) {
        const v1::Hello& hello = message.hello();
        return absl::StrCat(
            "hello ", e->stream, " have ", hello.have_version(),
            hello.has_damaged_version() ? absl::StrCat(" damaged ", hello.damaged_version()) : "");
      }
      if (message.has_seal()) return absl::StrCat("seal ", e->stream, " ", message.seal().step());
      if (message.has_skip()) return absl::StrCat("skip ", e->stream, " ", message.skip().step());
      if (message.has_wanted())
        return absl::StrCat("wants ", e->stream, " ", message.wanted().step());
      return absl::StrCat("block ", e->stream, " ", message.evaluation().block());
    }
    if (const auto* e = std::get_if<SendFrame>(&effect)) {
      return absl::StrCat("frame ", e->stream, " step ", e->retained->step, " lane ",
                          e->retained->block.first_lane, " chunk ", e->run.first_chunk);
    }
    if (const auto* e = std::get_if<CancelStream>(&effect)) {
      return absl::StrCat("cancel ", e->stream);
    }
    if (const auto* e = std::get_if<DropStream>(&effect)) return absl::StrCat("drop ", e->stream);
    if (const auto* e = std::get_if<UseWeights>(&effect)) {
      return absl::StrCat("weights ", e->weights.version);
    }
    if (const auto* e = std::get_if<Fail>(&effect))
      return absl::StrCat("fail ", e->status.ToString());
    if (const auto* e = std::get_if<NoteStreamEnd>(&effect)) {
      return absl::StrCat("end of ", e->shard, e->expected ? " expected" : "");
    }
    if (const auto* e = std::get_if<NoteReplicaDiffers>(&effect)) {
      return absl::StrCat("replica differs in ", e->chunk);
    }
    return absl::StrCat("wrong sums ", std::get<NoteWrongSums>(effect).wrong);
  }

  Effects Arrives(StreamId stream, v1::ExchangeResponse message, int64_t lineage = 1) {
    wire::SetCheck(&message, lineage);
    const std::string bytes = message.SerializeAsString();
    const absl::string_view piece = bytes;
    return Step(MessageArrived{stream, {&piece, 1}});
  }
  Effects Greets(StreamId stream, int64_t version, int64_t lineage = 1) {
    v1::ExchangeResponse reply;
    reply.mutable_hello()->set_lineage(lineage);
    reply.mutable_hello()->set_version(version);
    reply.mutable_hello()->set_speaks(wire::kSpeaks);
    return Arrives(stream, reply, lineage);
  }
  // All chunks of the stream's shard in one frame; each weight is `value`.
  Effects Weights(StreamId stream, int64_t version, float value, bool wrong_sum = false,
                  bool stop = false, int64_t set = 0, std::vector<int64_t> marks = {},
                  bool skipped = false) {
    const training::ChunkRun run =
        stream % 3 == 1 ? training::ChunkRun{0, 2} : training::ChunkRun{2, 3};
    v1::ExchangeResponse message;
    v1::WeightFrame& frame = *message.mutable_weights();
    frame.set_version(version);
    frame.set_first_chunk(run.first_chunk);
    frame.set_stop(stop);
    frame.set_skipped(skipped);
    frame.set_set(set);
    for (const int64_t mark : marks) frame.add_marks(mark);
    if (!marks.empty()) {
      frame.set_floor(*std::min_element(marks.begin(), marks.end()));
      frame.set_max_staleness(1);
    }
    for (int32_t chunk = run.first_chunk; chunk < run.end(); ++chunk) {
      const std::vector<float> floats(layout_.ChunkRange(chunk).size, value);
      const absl::string_view bytes(reinterpret_cast<const char*>(floats.data()),
                                    4 * floats.size());
      frame.add_crc32c(training::Crc32c(bytes) + (wrong_sum && chunk == run.end() - 1 ? 1 : 0));
      frame.mutable_payload()->append(bytes.data(), bytes.size());
    }
    return Arrives(stream, message);
  }
  Effects Acks(StreamId stream, int64_t step, int32_t lane, int32_t chunk,
               v1::FrameOutcome outcome) {
    v1::ExchangeResponse message;
    v1::FrameAck& ack = *message.mutable_ack();
    ack.set_step(step);
    ack.set_first_lane(lane);
    ack.set_lane_count(1);
    ack.set_first_chunk(chunk);
    ack.add_outcomes(outcome);
    return Arrives(stream, message);
  }
  std::shared_ptr<FloatBuffer> Gradient(float value) {
    auto gradient = std::make_shared<FloatBuffer>(layout_.total_floats());
    std::fill(gradient->span().begin(), gradient->span().end(), value);
    return gradient;
  }
  Effects Push(int64_t step, int32_t lane, const std::shared_ptr<FloatBuffer>& gradient,
               std::optional<int64_t> ready = std::nullopt) {
    return Step(
        BlockReady{step, LaneBlock{lane, 1}, gradient, ready.value_or(layout_.total_floats())});
  }
  void OpenAll(int64_t version = 0) {
    Step(RouteGiven{TwoShards(1)});
    for (const StreamId stream : {1, 2, 3}) Greets(stream, version);
  }

  const training::FlatLayout layout_ = FiveChunks();
  Core core_;
  absl::Duration now_ = absl::Seconds(100);
};

TEST_F(CoreTest, ADataStreamToEachShardAndAControlStreamToTheLead) {
  const Effects effects = Step(RouteGiven{TwoShards(1)});
  EXPECT_THAT(Said(effects),
              ElementsAre("open 1 shard 0 data", "hello 1 have -1", "open 2 shard 1 data",
                          "hello 2 have -1", "open 3 shard 0 control", "hello 3 have -1"));
  const v1::Hello hello = Decode(std::get<SendMessage>(effects[5]).bytes).hello();
  EXPECT_EQ(hello.job_id(), "j1");
  EXPECT_EQ(hello.spec_digest(), std::string(32, 'd'));
  EXPECT_EQ(hello.lineage(), 1);
  EXPECT_EQ(hello.index(), 3);
  EXPECT_EQ(hello.kind(), v1::STREAM_KIND_CONTROL);
  EXPECT_EQ(hello.speaks(), wire::kSpeaks);
  EXPECT_FALSE(core_.connected());
  Greets(2, 0);
  EXPECT_TRUE(core_.connected());
  EXPECT_THAT(core_.Waiting(now_), HasSubstr("shard 0 (node ps0, unix:/a): opening for 0"));
  EXPECT_THAT(Said(Step(RouteGiven{TwoShards(1)})), IsEmpty());
}

TEST_F(CoreTest, OneShardHasOneStreamForEverything) {
  EXPECT_THAT(Said(Step(RouteGiven{{1, {{"ps0", "unix:/a", 0, 5}}}})),
              ElementsAre("open 1 shard 0 data", "hello 1 have -1"));
  Greets(1, 0);
  EXPECT_THAT(Said(Step(SealReady{0, LaneBlock{0, 1}, {}})), ElementsAre("seal 1 0"));
}

TEST_F(CoreTest, FramesAlternateOverTheShardsAndSealsTakeTheControlStream) {
  OpenAll();
  EXPECT_THAT(Said(Push(0, 0, Gradient(1))),
              ElementsAre("frame 1 step 0 lane 0 chunk 0", "frame 2 step 0 lane 0 chunk 2",
                          "frame 1 step 0 lane 0 chunk 1", "frame 2 step 0 lane 0 chunk 3",
                          "frame 2 step 0 lane 0 chunk 4"));
  EXPECT_THAT(Said(Step(SealReady{0, LaneBlock{0, 1}, {}})), ElementsAre("seal 3 0"));
  EXPECT_THAT(Said(Step(EvaluationReady{0, 7, {}})), ElementsAre("block 3 7"));
}

TEST_F(CoreTest, WhatWasReadyBeforeAStreamOpensIsSentWhenItDoes) {
  Step(RouteGiven{TwoShards(1)});
  EXPECT_THAT(Said(Push(0, 0, Gradient(1))), IsEmpty());
  EXPECT_THAT(Said(Step(SealReady{0, LaneBlock{0, 1}, {}})), IsEmpty());
  EXPECT_THAT(Said(Step(EvaluationReady{0, 7, {}})), IsEmpty());
  EXPECT_THAT(Said(Greets(1, 0)),
              ElementsAre("frame 1 step 0 lane 0 chunk 0", "frame 1 step 0 lane 0 chunk 1"));
  EXPECT_THAT(Said(Greets(3, 0)), ElementsAre("seal 3 0", "block 3 7"));
}

TEST_F(CoreTest, OnlyWhatIsFinalIsSentAndNothingTwice) {
  OpenAll();
  const auto gradient = Gradient(1);
  EXPECT_THAT(Said(Push(0, 0, gradient, 2 * kChunkFloats + 16)),
              ElementsAre("frame 1 step 0 lane 0 chunk 0", "frame 1 step 0 lane 0 chunk 1"));
  Step(StreamEnded{2, absl::UnavailableError("broken")});
  now_ += absl::Milliseconds(50);
  EXPECT_THAT(Said(Step(Tick{})), ElementsAre("open 4 shard 1 data", "hello 4 have -1"));
  EXPECT_THAT(Said(Push(0, 0, gradient, 3 * kChunkFloats)), IsEmpty());
  EXPECT_THAT(Said(Greets(4, 0)), ElementsAre("frame 4 step 0 lane 0 chunk 2"));
  EXPECT_THAT(Said(Push(0, 0, gradient)),
              ElementsAre("frame 4 step 0 lane 0 chunk 3", "frame 4 step 0 lane 0 chunk 4"));
}

TEST_F(CoreTest, AFrameHasTheChecksumsOfItsChunksAndRefersToTheGradient) {
  OpenAll();
  const auto gradient = Gradient(1.5f);
  const Effects effects = Push(3, 2, gradient);
  const Core::Frame frame = core_.Encode(std::get<SendFrame>(effects[1]));
  EXPECT_EQ(frame.payload.data(),
            reinterpret_cast<const char*>(gradient->data() + 2 * kChunkFloats));
  EXPECT_EQ(frame.owner, gradient);
  const v1::Frame header = Decode(absl::StrCat(frame.prefix, frame.payload)).frame();
  EXPECT_EQ(header.step(), 3);
  EXPECT_EQ(header.first_lane(), 2);
  EXPECT_EQ(header.lane_count(), 1);
  EXPECT_EQ(header.first_chunk(), 2);
  EXPECT_THAT(header.crc32c(), ElementsAre(training::Crc32c(frame.payload)));
  EXPECT_EQ(core_.stats().sent_payload_bytes, 4 * kChunkFloats);
}

TEST_F(CoreTest, TheWaitBeforeAnAttemptDoublesUpToItsLimitAndBeginsAnewAfterAnAnswer) {
  Step(RouteGiven{{1, {{"ps0", "unix:/a", 0, 5}}}});
  StreamId stream = 1;
  for (const int ms : {50, 100, 200, 400, 800, 1600, 2000, 2000}) {
    EXPECT_EQ(core_.NextDeadline(), now_ + absl::Seconds(10));  // for the HelloReply
    Step(StreamEnded{stream++, absl::UnavailableError("nobody")});
    EXPECT_EQ(core_.NextDeadline(), now_ + absl::Milliseconds(ms));
    now_ = core_.NextDeadline() - absl::Nanoseconds(1);
    EXPECT_THAT(Said(Step(Tick{})), IsEmpty());
    now_ = core_.NextDeadline();
    EXPECT_EQ(Step(Tick{}).size(), 2u);
  }
  Greets(stream, 0);
  EXPECT_EQ(core_.NextDeadline(), absl::InfiniteDuration());
  Step(StreamEnded{stream, absl::OkStatus()});
  EXPECT_EQ(core_.NextDeadline(), now_ + absl::Milliseconds(50));
  EXPECT_EQ(core_.stats().retries, 9);
}

TEST_F(CoreTest, AShardThatDoesNotGreetIsAskedAgain) {
  Step(RouteGiven{{1, {{"ps0", "unix:/a", 0, 5}}}});
  now_ += absl::Seconds(10);
  EXPECT_THAT(Said(Step(Tick{})), ElementsAre("cancel 1"));
  EXPECT_THAT(Said(Greets(1, 0)), IsEmpty());  // too late
  Step(StreamEnded{1, absl::CancelledError("by us")});
  EXPECT_THAT(core_.Waiting(now_),
              HasSubstr("backing off for 0, after DEADLINE_EXCEEDED: no HelloReply"));
}

TEST_F(CoreTest, AnOldViewWaitsForTheNextRoute) {
  OpenAll();
  Push(0, 0, Gradient(1));
  Step(SealReady{0, LaneBlock{0, 1}, {}});
  EXPECT_THAT(Said(Step(StreamEnded{1, absl::FailedPreconditionError("old")})),
              ElementsAre("end of 0"));
  Step(StreamEnded{2, absl::OutOfRangeError("old")});
  EXPECT_EQ(core_.NextDeadline(), absl::InfiniteDuration());
  EXPECT_THAT(core_.Waiting(now_), HasSubstr("shard 1 (node ps1, unix:/b): waits for a view"));

  EXPECT_THAT(Said(Step(RouteGiven{TwoShards(4)})),
              ElementsAre("drop 3", "open 4 shard 0 data", "hello 4 have -1", "open 5 shard 1 data",
                          "hello 5 have -1", "open 6 shard 0 control", "hello 6 have -1"));
  // Nothing of the lineage before is sent in this one, and nothing of its streams counts.
  for (const StreamId stream : {4, 5, 6}) EXPECT_THAT(Said(Greets(stream, 0, 4)), IsEmpty());
  EXPECT_THAT(Said(Greets(3, 0)), IsEmpty());
}

TEST_F(CoreTest, ABugEndsItOnce) {
  Step(RouteGiven{TwoShards(1)});
  EXPECT_THAT(Said(Step(StreamEnded{2, absl::InvalidArgumentError("no")})),
              ElementsAre("end of 1", "fail INVALID_ARGUMENT: shard 1 (node ps1, unix:/b): no"));
  EXPECT_THAT(Said(Step(StreamEnded{1, absl::UnimplementedError("no")})), ElementsAre("end of 0"));
}

TEST_F(CoreTest, OnlyTheCorruptFrameIsSentAgainAndItsChecksumIsRenewed) {
  OpenAll();
  const auto gradient = Gradient(1);
  const Effects sent = Push(0, 0, gradient);
  Push(0, 1, Gradient(2));
  core_.Encode(std::get<SendFrame>(sent[1]));
  gradient->data()[2 * kChunkFloats] = 9;  // as if the checksum had been computed wrong
  const Effects again = Acks(2, 0, 0, 2, v1::FRAME_OUTCOME_CORRUPT);
  EXPECT_THAT(Said(again), ElementsAre("wrong sums 1", "frame 2 step 0 lane 0 chunk 2"));
  const Core::Frame frame = core_.Encode(std::get<SendFrame>(again[1]));
  EXPECT_THAT(Decode(absl::StrCat(frame.prefix, frame.payload)).frame().crc32c(),
              ElementsAre(training::Crc32c(frame.payload)));
  EXPECT_THAT(Said(Acks(2, 0, 1, 3, v1::FRAME_OUTCOME_COVERED)), IsEmpty());
  for (int i = 2; i <= 8; ++i) {
    EXPECT_THAT(Said(Acks(2, 0, 1, 3, v1::FRAME_OUTCOME_CORRUPT)),
                ElementsAre("frame 2 step 0 lane 1 chunk 3"));
  }
  EXPECT_THAT(Said(Acks(2, 0, 1, 3, v1::FRAME_OUTCOME_CORRUPT)), ElementsAre("cancel 2"));
}

TEST_F(CoreTest, AVersionIsUsedOnceAllShardsHaveSentItAndItsStepIsForgotten) {
  OpenAll();
  Push(0, 0, Gradient(1));
  Step(SealReady{0, LaneBlock{0, 1}, {}});
  Step(EvaluationReady{0, 7, {}});
  EXPECT_THAT(Said(Weights(1, 1, 5)), IsEmpty());
  // Shard 0 is past step 0: it is not sent again there.
  Step(StreamEnded{1, absl::UnavailableError("broken")});
  now_ += absl::Milliseconds(50);
  Step(Tick{});
  EXPECT_THAT(Said(Greets(4, 1)), IsEmpty());
  const Effects effects = Weights(2, 1, 6);
  ASSERT_THAT(Said(effects), ElementsAre("weights 1"));
  const CompleteWeights& whole = std::get<UseWeights>(effects[0]).weights;
  EXPECT_EQ(whole.lineage, 1);
  EXPECT_EQ(whole.weights->data()[0], 5);
  EXPECT_EQ(whole.weights->data()[2 * kChunkFloats - 1], 5);
  EXPECT_EQ(whole.weights->data()[2 * kChunkFloats], 6);
  EXPECT_EQ(whole.weights->data()[layout_.total_floats() - 1], 6);
  Step(StreamEnded{3, absl::UnavailableError("broken")});
  now_ += absl::Milliseconds(50);
  EXPECT_THAT(Said(Step(Tick{})), ElementsAre("open 5 shard 0 control", "hello 5 have 1"));
  EXPECT_THAT(Said(Greets(5, 1)), IsEmpty());
}

TEST_F(CoreTest, WeightsSayThatTheStepBeforeWasSkipped) {
  OpenAll();
  Weights(1, 1, 5, false, false, 0, {}, /*skipped=*/true);
  Effects effects = Weights(2, 1, 5, false, false, 0, {}, /*skipped=*/true);
  ASSERT_THAT(Said(effects), ElementsAre("weights 1"));
  EXPECT_TRUE(std::get<UseWeights>(effects[0]).weights.skipped);
  Weights(1, 2, 6);
  effects = Weights(2, 2, 6);
  ASSERT_THAT(Said(effects), ElementsAre("weights 2"));
  EXPECT_FALSE(std::get<UseWeights>(effects[0]).weights.skipped);
}

TEST_F(CoreTest, WeightsWithAWrongChecksumEndTheStreamAndAreNamedInTheNextHello) {
  OpenAll();
  Weights(1, 1, 5);
  EXPECT_THAT(Said(Weights(2, 1, 6, /*wrong_sum=*/true)), ElementsAre("cancel 2"));
  Step(StreamEnded{2, absl::CancelledError("by us")});
  now_ += absl::Milliseconds(50);
  EXPECT_THAT(Said(Step(Tick{})), ElementsAre("open 4 shard 1 data", "hello 4 have -1 damaged 1"));
  Greets(4, 1);
  Step(StreamEnded{4, absl::UnavailableError("broken")});
  now_ += absl::Milliseconds(50);
  EXPECT_THAT(Said(Step(Tick{})), ElementsAre("open 5 shard 1 data", "hello 5 have -1"));
  Greets(5, 1);
  EXPECT_THAT(Said(Weights(5, 1, 6)), ElementsAre("weights 1"));
}

TEST_F(CoreTest, TheEndOfAStreamBehindTheLastVersionIsExpected) {
  OpenAll();
  Weights(1, 1, 5, /*wrong_sum=*/false, /*stop=*/true);
  EXPECT_THAT(Said(Step(StreamEnded{3, absl::OkStatus()})), ElementsAre("end of 0"));
  Weights(2, 1, 6);
  EXPECT_THAT(Said(Step(StreamEnded{1, absl::OkStatus()})), ElementsAre("end of 0 expected"));
}

TEST_F(CoreTest, AMessageThatIsDamagedOrOfAnotherLineageEndsItsStream) {
  OpenAll();
  const absl::string_view damaged = "\x7f\x01";
  EXPECT_THAT(Said(Step(MessageArrived{1, {&damaged, 1}})), ElementsAre("cancel 1"));
  EXPECT_THAT(Said(Step(MessageArrived{2, {}})), ElementsAre("cancel 2"));
  v1::ExchangeResponse ack;
  ack.mutable_ack()->add_outcomes(v1::FRAME_OUTCOME_COVERED);
  EXPECT_THAT(Said(Arrives(3, ack, /*lineage=*/2)), ElementsAre("cancel 3"));
  EXPECT_EQ(core_.stats().corrupt_frames, 1);
}

TEST(CheckRouteTest, ChunksOfTheShardsFollowEachOtherAndCoverTheModel) {
  const training::FlatLayout layout = FiveChunks();
  const auto check = [&layout](std::vector<ShardAddress> shards) {
    return CheckRoute(layout, {1, std::move(shards)}).code();
  };
  EXPECT_EQ(check({{"", "", 0, 2}, {"", "", 2, 3}}), absl::StatusCode::kOk);
  EXPECT_EQ(check({{"", "", 0, 2}, {"", "", 2, 2}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({{"", "", 0, 2}, {"", "", 2, 4}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({{"", "", 0, 2}, {"", "", 3, 2}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({{"", "", 0, 0}, {"", "", 0, 5}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(check({}), absl::StatusCode::kInvalidArgument);
}

// Asynchronous jobs: two lanes, staleness at most 1.
class AsynchronousCoreTest : public CoreTest {
 protected:
  AsynchronousCoreTest() : CoreTest(Asynchronous()) {}
  static CoreOptions Asynchronous() {
    CoreOptions options = Options();
    options.asynchronous = true;
    options.lanes = 2;
    return options;
  }
  Effects Set(StreamId stream, int64_t set, std::vector<int64_t> marks, float value = 1) {
    return Weights(stream, 0, value, false, false, set, std::move(marks));
  }
  // All streams are open, and both shards have sent their first set.
  void Ready() {
    OpenAll();
    Set(1, 1, {0, 0});
    Set(2, 1, {0, 0});
  }
};

TEST_F(AsynchronousCoreTest, WeightsComeWithEachSetOfAShard) {
  OpenAll();
  EXPECT_THAT(Said(Set(1, 1, {0, 0})), IsEmpty());
  EXPECT_THAT(Said(Set(2, 1, {0, 0})), ElementsAre("weights 0"));
  const Effects effects = Set(2, 2, {3, 1}, 5);
  ASSERT_THAT(Said(effects), ElementsAre("weights 0"));
  const CompleteWeights& weights = std::get<UseWeights>(effects[0]).weights;
  EXPECT_THAT(weights.marks, ElementsAre(0, 0)) << "shard 0 is behind";
  EXPECT_EQ(weights.weights->span()[0], 1);
  EXPECT_EQ(weights.weights->span()[2 * kChunkFloats], 5);
}

TEST_F(AsynchronousCoreTest, WeightsWithoutMarksEndTheStream) {
  OpenAll();
  EXPECT_THAT(Said(Set(1, 1, {0, 0, 0})), ElementsAre("cancel 1"));
  EXPECT_THAT(Said(Set(2, 0, {0, 0})), ElementsAre("cancel 2"));
}

// A2: a lane's step is kept until every shard has answered it.
TEST_F(AsynchronousCoreTest, AStepIsSentAgainToAShardThatHasNotAnsweredIt) {
  Ready();
  EXPECT_EQ(Said(Push(0, 0, Gradient(1))).size(), 5u);
  Step(SealReady{0, LaneBlock{0, 1}, {}});
  Set(1, 2, {1, 0});  // shard 0 has it all
  Step(StreamEnded{1, absl::UnavailableError("gone")});
  Step(StreamEnded{2, absl::UnavailableError("gone")});
  now_ += absl::Seconds(1);
  Step(Tick{});  // streams 4 and 5
  EXPECT_THAT(Said(Greets(4, 0)), IsEmpty());
  EXPECT_THAT(Said(Greets(5, 0)),
              ElementsAre("frame 5 step 0 lane 0 chunk 2", "frame 5 step 0 lane 0 chunk 3",
                          "frame 5 step 0 lane 0 chunk 4"));
  // Once both have answered, nothing is sent again, the seal neither.
  Weights(5, 0, 1, false, false, 1, {1, 0});
  Step(StreamEnded{5, absl::UnavailableError("gone")});
  Step(StreamEnded{3, absl::UnavailableError("gone")});
  now_ += absl::Seconds(1);
  Step(Tick{});
  EXPECT_THAT(Said(Greets(6, 0)), IsEmpty());
  EXPECT_THAT(Said(Greets(7, 0)), IsEmpty());
}

TEST_F(AsynchronousCoreTest, LanesAreKeptApart) {
  Ready();
  Push(4, 0, Gradient(1));
  Push(0, 1, Gradient(2));
  Set(1, 2, {5, 0});
  Set(2, 2, {5, 0});
  Step(StreamEnded{2, absl::UnavailableError("gone")});
  now_ += absl::Seconds(1);
  Step(Tick{});
  EXPECT_THAT(Said(Greets(4, 0)),
              ElementsAre("frame 4 step 0 lane 1 chunk 2", "frame 4 step 0 lane 1 chunk 3",
                          "frame 4 step 0 lane 1 chunk 4"));
}

TEST_F(AsynchronousCoreTest, ASkipGoesToEveryShardAndIsSentAgain) {
  Ready();
  EXPECT_THAT(Said(Step(SkipReady{0, 1})), ElementsAre("skip 1 0", "skip 2 0"));
  Set(1, 2, {0, 1});
  Step(StreamEnded{2, absl::UnavailableError("gone")});
  now_ += absl::Seconds(1);
  Step(Tick{});
  EXPECT_THAT(Said(Greets(4, 0)), ElementsAre("skip 4 0"));
}

// K2
TEST_F(AsynchronousCoreTest, OnlyShardsWithOldWeightsAreAsked) {
  Ready();
  Set(2, 2, {4, 3});
  EXPECT_THAT(Said(Step(WeightsWanted{4, 0})), ElementsAre("wants 1 4"));
  EXPECT_THAT(Said(Step(WeightsWanted{5, 0})), ElementsAre("wants 1 5", "wants 2 5"));
  EXPECT_THAT(Said(Step(WeightsWanted{1, 0})), IsEmpty());
}

TEST_F(AsynchronousCoreTest, AnotherLineageForgetsMarksAndSteps) {
  Ready();
  Push(0, 0, Gradient(1));
  Step(RouteGiven{TwoShards(2)});  // streams 4 to 6
  EXPECT_THAT(Said(Greets(4, 0, 2)), IsEmpty());
  EXPECT_THAT(Said(Step(WeightsWanted{1, 0})), ElementsAre("wants 4 1"))
      << "no set of this lineage is here";
}

// A frame holds as many encoded chunks as fit into it.
TEST(CompressedCoreTest, SendsWordsAndCountsFloats) {
  const training::FlatLayout layout = FiveChunks();
  CoreOptions options;
  options.spec_digest = std::string(32, 'd');
  options.gradient_format = {.encoding = training::GradientEncoding::kOneBit};
  const int64_t chunk_words = training::EncodedWords(options.gradient_format, kChunkFloats);
  options.max_payload_bytes = 4 * 2 * chunk_words;
  Core core(layout, std::move(options));
  core.Step(RouteGiven{{1, {{"ps0", "unix:/a", 0, 5}}}}, absl::ZeroDuration());
  v1::ExchangeResponse reply;
  reply.mutable_hello()->set_lineage(1);
  reply.mutable_hello()->set_speaks(wire::kSpeaks);
  wire::SetCheck(&reply, 1);
  const std::string bytes = reply.SerializeAsString();
  const absl::string_view piece = bytes;
  core.Step(MessageArrived{1, {&piece, 1}}, absl::ZeroDuration());
  const training::GradientLayout words(layout, {.encoding = training::GradientEncoding::kOneBit});
  const auto gradient = std::make_shared<FloatBuffer>(words.total_words());
  for (int64_t i = 0; i < words.total_words(); ++i) gradient->data()[i] = static_cast<float>(i);
  const Effects effects = core.Step(BlockReady{0, LaneBlock{2, 1}, gradient, words.total_words()},
                                    absl::ZeroDuration());
  std::vector<std::pair<int32_t, size_t>> sent;
  for (const Effect& effect : effects) {
    const auto* const send = std::get_if<SendFrame>(&effect);
    ASSERT_NE(send, nullptr);
    const Core::Frame frame = core.Encode(*send);
    const int64_t first = words.ChunkRange(send->run.first_chunk).offset;
    EXPECT_EQ(frame.payload.data(), reinterpret_cast<const char*>(gradient->data() + first));
    const v1::Frame header = Decode(frame.prefix + std::string(frame.payload)).frame();
    EXPECT_EQ(header.first_chunk(), send->run.first_chunk);
    ASSERT_EQ(header.crc32c_size(), send->run.chunk_count);
    EXPECT_EQ(header.crc32c(0), training::Crc32c(frame.payload.substr(
                                    0, 4 * words.ChunkRange(send->run.first_chunk).size)));
    sent.emplace_back(send->run.chunk_count, frame.payload.size());
  }
  EXPECT_THAT(sent, ElementsAre(std::pair(2, 8 * chunk_words), std::pair(2, 8 * chunk_words),
                                std::pair(1, 4 * (1 + 1))));
  EXPECT_EQ(core.stats().sent_payload_bytes, 4 * layout.total_floats());
}

}  // namespace
}  // namespace capstan::exchange::sender
