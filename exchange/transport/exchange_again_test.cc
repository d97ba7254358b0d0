// What ExchangeClient says again, when, and to whom.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "exchange/transport/exchange_client.h"
#include "exchange/transport/test_exchange.h"
#include "services/logging/log.h"
#include "services/sync/mutex.h"

namespace capstan::exchange {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using training::LaneBlock;

// Whatever stream opens first.
TEST_F(ExchangeClientTest, WhatIsSaidBeforeTheLeadIsReachedComesToItsControlStreamAlone) {
  MakeShards(2);
  MakeClient();
  Open();
  OnStrand([&] {
    EXPECT_FALSE(client_->connected());
    client_->SendSeal(0, LaneBlock{0, 2}, {8, 1.5, 3});
    client_->SendEvaluation(0, 7, {10, 2.5, 9});
  });
  StartServer(0);
  StartServer(1);
  EXPECT_TRUE(shards_[0]->WaitForLog("seal 0 control"));
  EXPECT_TRUE(shards_[0]->WaitForLog("evaluation 7 control"));
  EXPECT_THAT(Wait(0), ElementsAre(100.0f, 100.0f));  // the other streams are open too
  OnStrand([&] { EXPECT_TRUE(client_->connected()); });
  EXPECT_THAT(shards_[0]->log(), ElementsAre("seal 0 control", "evaluation 7 control"));
  EXPECT_THAT(shards_[1]->log(), IsEmpty());
}

// Frames of all blocks, their seals and the evaluation; nothing of it once the next version is here.
TEST_F(ExchangeClientTest, WhatTheStepStillNeedsIsSaidAgainOnANewStream) {
  Start(1);
  Open();
  ASSERT_FALSE(Wait(0).empty());
  Faults faults;
  faults.break_after_frame = 1;
  shards_[0]->Set(faults);
  OnStrand([&] {
    client_->SendSeal(0, LaneBlock{0, 1}, {4, 1.0, 1});
    client_->SendSeal(0, LaneBlock{1, 1}, {4, 2.0, 2});
    client_->SendEvaluation(0, 3, {10, 2.5, 9});
    client_->Push(0, LaneBlock{0, 1}, gradients_.Lend());
    client_->Push(0, LaneBlock{1, 1}, gradients_.Lend());
  });
  ASSERT_TRUE(Until([&] { return shards_[0]->Count("evaluation 3 data") == 2; }));
  ASSERT_FALSE(Wait(1).empty());
  const auto expect_said = [this] {
    EXPECT_EQ(shards_[0]->CountFrames(0, LaneBlock{0, 1}), 1 + 5);  // one of the stream that broke
    EXPECT_EQ(shards_[0]->CountFrames(0, LaneBlock{1, 1}), 5);
    EXPECT_EQ(shards_[0]->Count("seal 0 data"), 2 * 2);
    EXPECT_EQ(shards_[0]->Count("evaluation 3 data"), 2);
  };
  expect_said();

  shards_[0]->Set(faults);
  Push(1, 1.0f);
  ASSERT_FALSE(Wait(2).empty());
  OnStrand([&] { client_->SendEvaluation(2, 5, {10, 2.5, 9}); });
  ASSERT_TRUE(shards_[0]->WaitForLog("evaluation 5 data"));  // behind all the others
  EXPECT_EQ(shards_[0]->hellos().size(), 3u);
  expect_said();
}

TEST_F(ExchangeClientTest, FramesAreNotSentAgainToAShardThatIsPastTheirStep) {
  MakeShards(2);
  StartServer(0);
  MakeClient();
  Open();
  Push(0, 2.0f);
  ASSERT_TRUE(shards_[0]->WaitForLog("frame 1 data"));  // its last one: it has version 1
  servers_[0]->Shutdown();
  servers_[0].reset();
  StartServer(0);
  StartServer(1);
  EXPECT_THAT(Wait(1), ElementsAre(98.0f, 98.0f));
  Push(1, 1.0f);
  EXPECT_THAT(Wait(2), ElementsAre(97.0f, 97.0f));
  EXPECT_EQ(shards_[0]->CountFrames(0, LaneBlock{0, 2}, /*first_chunk=*/0), 1);
}

TEST_F(ExchangeClientTest, ACorruptFrameOfOneNodeIsSentAgainAndNoOther) {
  Start(1);
  Open();
  ASSERT_FALSE(Wait(0).empty());
  Faults faults;
  faults.call_frames_corrupt = 1;
  shards_[0]->Set(faults);
  OnStrand([&] {
    client_->Push(0, LaneBlock{0, 1}, gradients_.Lend());
    client_->Push(0, LaneBlock{1, 1}, gradients_.Lend());
  });
  ASSERT_FALSE(Wait(1).empty());
  Push(1, 1.0f);
  ASSERT_FALSE(Wait(2).empty());
  EXPECT_EQ(shards_[0]->CountFrames(0, LaneBlock{0, 1}), 6);
  EXPECT_EQ(shards_[0]->CountFrames(0, LaneBlock{0, 1}, /*first_chunk=*/0), 2);
  EXPECT_EQ(shards_[0]->CountFrames(0, LaneBlock{1, 1}), 5);
}

TEST_F(ExchangeClientTest, ThatItCannotGoOnIsSaidOnce) {
  MakeShards(2);
  Faults faults;
  faults.refuse = absl::StatusCode::kInvalidArgument;
  for (int i = 0; i < 2; ++i) {
    shards_[i]->Set(faults);
    StartServer(i);
  }
  MakeClient();
  Open();
  ASSERT_TRUE(Until([&] { return client_->stats().retries == 3; }));  // two DATA, one CONTROL
  MutexLock lock(mu_);
  EXPECT_EQ(failures_, 1);
}

// A shard that is done with a job ends its streams: nothing is lost then.
TEST_F(ExchangeClientTest, TheEndOfAStreamBehindTheLastVersionIsNoWarning) {
  Mutex mu;
  std::vector<std::pair<std::string, services::LogLevel>> said;
  const int sink = services::AddLogSink([&](const services::LogRecord& record) {
    MutexLock lock(mu);
    if (!absl::StartsWith(record.event, "exchange_")) return;
    said.emplace_back(record.event, record.level);
    EXPECT_THAT(std::string(record.line), ::testing::Not(::testing::HasSubstr("status=")));
  });
  Start(1);
  Open();
  ASSERT_FALSE(Wait(0).empty());
  Faults faults;
  faults.stop_at = 1;
  shards_[0]->Set(faults);
  Push(0, 2.0f);
  EXPECT_THAT(Wait(1), ElementsAre(98.0f, 98.0f));
  faults.break_after_frame = 1;
  shards_[0]->Set(faults);
  Push(1, 1.0f);  // the stream ends behind it
  EXPECT_TRUE(Until([&] {
    MutexLock lock(mu);
    return !said.empty();
  }));
  services::RemoveLogSink(sink);
  MutexLock lock(mu);
  EXPECT_THAT(said, ElementsAre(Pair("exchange_ended", services::kInfo)));
}

}  // namespace
}  // namespace capstan::exchange
