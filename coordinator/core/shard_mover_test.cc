// Moves of shards while a job trains: added, drained, moved. No step is lost, nothing counts as a restart, and
// the coordinator may end itself at any point of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_SUSPENDED;
using job::v1::SHARD_CHANGE_ADD;
using job::v1::SHARD_CHANGE_DRAIN;
using job::v1::SHARD_CHANGE_MOVE;
using job::v1::ShardChange;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ShardMoverTest : public RecoveryTest {
 public:
  using RecoveryTest::id_;
  using RecoveryTest::Lineage;
  using RecoveryTest::PassAndFollow;
  using RecoveryTest::stores_;
  using RecoveryTest::workers_;

  absl::Status Move(ShardChange change, int shard = 0, const std::string& node = "") {
    auto request = For<job::v1::MoveShardRequest>();
    request.mutable_move()->set_change(change);
    request.mutable_move()->set_shard(shard);
    request.mutable_move()->set_node(node);
    Ask(request);
    return LastReply().status;
  }
  // The lead has made `step` the last version by these orders, and the job's shards have it on disk.
  void Freeze(int64_t step, const std::vector<int64_t>& orders) {
    node::v1::LeadState& lead = *Shard(LeadStore(), id_, 0).mutable_lead();
    lead.set_lineage(Lineage());
    lead.set_step(step);
    lead.set_suspended(true);
    for (const int64_t id : orders) {
      lead.add_applied_order_ids(id);
      lead.add_applied_order_steps(step - 1);
    }
    Beat(LeadStore());
  }
  void Files(int64_t step, const std::vector<int64_t>& orders) {
    const job::v1::Job job = Job(id_);
    for (const job::v1::Member& shard : job.shards()) {
      const SessionId session = StoreOf(shard.node());
      const auto at = std::find(stores_.begin(), stores_.end(), session);
      std::iter_swap(stores_.begin() + shard.index(), at);  // Report goes by position
      Report(shard.index(), Lineage(), step, "", orders);
    }
    Written();
  }
  void SaveLast(int64_t step, const std::vector<int64_t>& orders) {
    Freeze(step, orders);
    Files(step, orders);
  }
  SessionId StoreOf(const std::string& node) { return core_.nodes().Find(node)->session(); }
  SessionId LeadStore() { return StoreOf(Job(id_).shards(0).node()); }
  std::vector<std::string> Homes() {
    const job::v1::Job job = Job(id_);
    std::vector<std::string> nodes;
    for (const job::v1::Member& shard : job.shards()) nodes.push_back(shard.node());
    return nodes;
  }
  // "0+3 3+3 6+2": first chunks and counts of the view.
  std::string Runs() {
    std::string runs;
    for (const auto& route : core_.Peek(id_)->view().shards()) {
      absl::StrAppend(&runs, runs.empty() ? "" : " ", route.first_chunk(), "+",
                      route.chunk_count());
    }
    return runs;
  }
  std::vector<std::string> Messages(const std::string& type) {
    std::vector<std::string> messages;
    const job::v1::Job job = Job(id_);
    for (const auto& event : job.events()) {
      if (event.type() == type) messages.push_back(event.message());
    }
    return messages;
  }
  absl::Status Drain(const std::string& node) {
    Do(core::SetDrained{++calls_, node, true});
    return LastReply().status;
  }
};

TEST_F(ShardMoverTest, AnAddedShardGetsItsPartOfTheVersionAtHandAndNoRestartCounts) {
  job::v1::JobSpec spec = Spec(2, 2);
  spec.mutable_recovery()->set_max_restarts(0);
  Running(2, 2, spec);
  EXPECT_EQ(Runs(), "0+4 4+4");
  stores_.push_back(Store("s2"));
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD).ok()) << LastReply().status;
  EXPECT_EQ(std::get<job::v1::MoveShardResponse>(LastReply().response).order_id(), 1);
  EXPECT_THAT(Messages("OrderGiven"), ElementsAre("order 1: add a shard"));
  Pass(absl::Seconds(1), All());
  EXPECT_EQ(Runs(), "0+4 4+4");  // until the version is saved
  EXPECT_TRUE(Take(stores_[2], ConnectResponse::kStartLineage).empty());

  Freeze(5, {1});
  EXPECT_EQ(Lineage(), 1);
  const std::string digest = core_.Peek(id_)->resolution().digest();
  Files(5, {1});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_THAT(Homes(), ElementsAre("s0", "s1", "s2"));
  EXPECT_EQ(Runs(), "0+2 2+3 5+3");
  EXPECT_THAT(Messages("ShardsMoved"),
              ElementsAre("order 1: shard 2 on host host-s2 is added on node s2, 3 shards"));
  EXPECT_THAT(Messages("LineageStarted"), ElementsAre("lineage 2 from checkpoint 1-5"));
  // Living members know the job by its digest.
  EXPECT_EQ(core_.Peek(id_)->resolution().digest(), digest);
  Follow();
  ASSERT_EQ(starts_.size(), 5u);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-5"));
  EXPECT_THAT(starts_.back().orders(), IsEmpty());  // the manifest has applied it
  EXPECT_EQ(starts_.back().spec_digest(), digest);
  PassAndFollow(absl::Seconds(1));
  Lead(6);
  EXPECT_EQ(Job(id_).progress().step(), 6);
  EXPECT_EQ(Job(id_).restarts(), 0);
  EXPECT_EQ(Saved(id_).restarts(), 0);
  EXPECT_THAT(EventTypes(id_), Not(Contains("Recovered")));
}

// Shard 1 of 3 goes: shard 2 becomes shard 1, in the same process.
TEST_F(ShardMoverTest, TheLastShardGetsTheNumberOfTheDrainedOne) {
  Running(1, 3);
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok()) << LastReply().status;
  SaveLast(5, {1});
  EXPECT_THAT(Homes(), ElementsAre("s0", "s2"));
  EXPECT_EQ(Runs(), "0+4 4+4");
  EXPECT_THAT(Messages("ShardsMoved"),
              ElementsAre("order 1: shard 1 on host host-s1 is drained, 2 shards"));
  // The one that goes is told to drop the job. The one with another number is not: that ends it itself.
  Beat(stores_[1]);
  EXPECT_FALSE(Take(stores_[1], ConnectResponse::kEndJob).empty());
  Forget(stores_[1]);
  Beat(stores_[1]);
  EXPECT_TRUE(core_.nodes().Find("s1")->jobs().empty());
  for (int i = 0; i < 3; ++i) Beat(stores_[2]);  // still as shard 2
  EXPECT_TRUE(Take(stores_[2], ConnectResponse::kEndJob).empty());
  const auto starts = Take(stores_[2], ConnectResponse::kStartLineage);
  ASSERT_EQ(starts.size(), 1u);
  EXPECT_EQ(starts[0].start_lineage().shard(), 1);
  // While the process begins anew it reports nothing of the job, and is not lost by that.
  Forget(stores_[2]);
  Pass(absl::Seconds(2), {workers_[0], stores_[0], stores_[2]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Lineage(), 2);
  Follow();
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_TRUE(core_.Peek(id_)->AllShardsReady());
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(ShardMoverTest, TheLeadCanBeDrainedAndMoved) {
  Running(1, 2);
  Lead(3);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 0).ok());
  SaveLast(4, {1});
  EXPECT_THAT(Homes(), ElementsAre("s1"));
  EXPECT_EQ(Runs(), "0+8");
  PassAndFollow(absl::Seconds(1));
  Forget(StoreOf("s0"));
  PassAndFollow(absl::Seconds(1));

  ASSERT_EQ(Homes(), std::vector<std::string>{"s1"});
  node::v1::LeadState& lead = *Shard(StoreOf("s1"), id_, 0).mutable_lead();
  lead.set_lineage(2);
  lead.set_step(6);
  Beat(StoreOf("s1"));
  ASSERT_TRUE(Move(SHARD_CHANGE_MOVE, 0, "s0").ok()) << LastReply().status;
  SaveLast(7, {1, 2});
  EXPECT_EQ(Lineage(), 3);
  EXPECT_THAT(Homes(), ElementsAre("s0"));
  EXPECT_THAT(Messages("ShardsMoved"),
              Contains("order 2: shard 0 moves from node s1 to node s0, 1 shard"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(ShardMoverTest, WhatDoesNotGoTogetherIsRefusedByName) {
  Running(1, 2);
  Lead(4);
  const auto refused = [this](ShardChange change, int shard, const std::string& node,
                              absl::StatusCode code, const std::string& why) {
    const absl::Status status = Move(change, shard, node);
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  using Code = absl::StatusCode;
  refused(SHARD_CHANGE_ADD, 0, "", Code::kFailedPrecondition, "no param_store is free");
  refused(SHARD_CHANGE_ADD, 0, "s9", Code::kNotFound, "no node s9");
  refused(SHARD_CHANGE_ADD, 0, "w0", Code::kFailedPrecondition, "it is a worker");
  refused(SHARD_CHANGE_ADD, 0, "s1", Code::kFailedPrecondition, "it has shard 1 already");
  refused(SHARD_CHANGE_MOVE, 1, "", Code::kInvalidArgument, "a move names one");
  refused(SHARD_CHANGE_MOVE, 2, "s1", Code::kInvalidArgument, "got 2, job " + id_ + " has 0 to 1");
  refused(SHARD_CHANGE_DRAIN, -1, "", Code::kInvalidArgument, "got -1");
  refused(job::v1::SHARD_CHANGE_UNSPECIFIED, 0, "", Code::kInvalidArgument, "want add");
  stores_.push_back(Store("s2"));
  ASSERT_TRUE(Drain("s2").ok());
  refused(SHARD_CHANGE_ADD, 0, "s2", Code::kFailedPrecondition, "node s2: it is drained");
  stores_.push_back(Connect("s3", common::v1::ROLE_PARAM_STORE, 0, 1, "9.9.9"));
  refused(SHARD_CHANGE_ADD, 0, "s3", Code::kFailedPrecondition, "it is of version 9.9.9");
  stores_.push_back(Store("s4"));
  beats_[stores_.back()].mutable_heartbeat()->set_leaving_ms(1000);
  Beat(stores_.back());
  refused(SHARD_CHANGE_ADD, 0, "s4", Code::kFailedPrecondition, "its service stops");
  stores_.push_back(Store("s5"));
  Do(NodeDisconnected{stores_.back()});
  refused(SHARD_CHANGE_ADD, 0, "s5", Code::kFailedPrecondition, "it is not connected");
  EXPECT_TRUE(core_.Peek(id_)->changes().empty());

  Lead(9);  // of 10
  refused(SHARD_CHANGE_DRAIN, 0, "", Code::kFailedPrecondition, "at its end");
  caller_ = {.name = "eve"};
  refused(SHARD_CHANGE_DRAIN, 0, "", Code::kPermissionDenied, "");
}

TEST_F(ShardMoverTest, OneMoveIsUnderWayAtATime) {
  Running(1, 3);
  Lead(2);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 2).ok());
  absl::Status again = Move(SHARD_CHANGE_DRAIN, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(again)) << again;
  EXPECT_THAT(std::string(again.message()), HasSubstr("order 1 is under way: drain shard 2"));
  SaveLast(3, {1});
  again = Move(SHARD_CHANGE_DRAIN, 1);
  EXPECT_THAT(std::string(again.message()), HasSubstr("not all ready"));
  Forget(stores_[2]);
  PassAndFollow(absl::Seconds(1));
  Lead(4);
  EXPECT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok()) << LastReply().status;
  // As do a suspend and a shard that is handed over.
  Ask(For<job::v1::SuspendJobRequest>());
  ASSERT_TRUE(LastReply().status.ok());
  again = Move(SHARD_CHANGE_DRAIN, 0);
  EXPECT_THAT(std::string(again.message()), HasSubstr("it is being suspended"));
}

TEST_F(ShardMoverTest, AJobWithoutShardsOrThatDoesNotRunMovesNone) {
  Running(1, 0);
  EXPECT_THAT(std::string(Move(SHARD_CHANGE_ADD).message()),
              HasSubstr("it has no shards: kvstore 'local'"));
  Cancel(id_);
  PassAndFollow(absl::Seconds(1));
  EXPECT_THAT(std::string(Move(SHARD_CHANGE_ADD).message()), HasSubstr("has ended: CANCELLED"));
  workers_.clear();
  id_ = Submit(Spec(5, 1));
  EXPECT_THAT(std::string(Move(SHARD_CHANGE_ADD).message()), HasSubstr("it is PENDING"));
}

TEST_F(ShardMoverTest, AHostWithoutRoomIsRefused) {
  Running(1, 2);
  Lead(2);
  for (int i = 0; i < 2; ++i) {
    Shard(stores_[i], id_, i).mutable_load()->set_resident_bytes(3 << 20);
    Beat(stores_[i]);
  }
  stores_.push_back(Store("s2"));
  common::v1::NodeUsage& usage = *beats_[stores_[2]].mutable_heartbeat()->mutable_usage();
  usage.set_memory_total_bytes(8 << 20);
  usage.set_memory_used_bytes(7 << 20);
  Beat(stores_[2]);
  EXPECT_THAT(std::string(Move(SHARD_CHANGE_ADD).message()),
              HasSubstr("node s2: its host has 1.0 MiB of free memory"));
  *beats_[stores_[0]].mutable_heartbeat()->mutable_usage() = usage;
  Beat(stores_[0]);
  EXPECT_THAT(std::string(Move(SHARD_CHANGE_DRAIN, 1).message()),
              HasSubstr("node s0: its host has 1.0 MiB of free memory"));
  // One that has room is taken instead.
  stores_.push_back(Store("s3"));
  EXPECT_TRUE(Move(SHARD_CHANGE_ADD).ok()) << LastReply().status;
  Forget(stores_[3]);
  SaveLast(3, {1});
  EXPECT_THAT(Homes(), ElementsAre("s0", "s1", "s3"));
}

TEST_F(ShardMoverTest, AHostWithRoomForItsPartIsTaken) {
  Running(1, 2);
  Lead(2);
  for (int i = 0; i < 2; ++i) {
    Shard(stores_[i], id_, i).mutable_load()->set_resident_bytes(3 << 20);
    Beat(stores_[i]);
  }
  stores_.push_back(Store("s2"));
  common::v1::NodeUsage& usage = *beats_[stores_[2]].mutable_heartbeat()->mutable_usage();
  usage.set_memory_total_bytes(8 << 20);
  usage.set_memory_used_bytes(5 << 20);  // 2 MiB are enough for a third of 6
  Beat(stores_[2]);
  EXPECT_TRUE(Move(SHARD_CHANGE_ADD).ok()) << LastReply().status;
}

// The steps since the last manifest are lost by the death, not by the move, and it counts as ever. The lineage
// begins anyhow, so the move goes with it.
TEST_F(ShardMoverTest, AShardThatDiesInTheMiddleIsARestartAndTakesTheMoveAlong) {
  Running(1, 2);
  Lead(2);
  Save(2);
  stores_.push_back(Store("s2"));
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD).ok()) << LastReply().status;
  Freeze(5, {1});
  Restart(1);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).restarts(), 1);
  EXPECT_THAT(Homes(), ElementsAre("s0", "s1", "s2"));
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-2"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  ASSERT_EQ(starts_.back().orders_size(), 1);
  EXPECT_TRUE(starts_.back().orders(0).checkpoint());  // the order asks for nothing more
}

// The drained shard itself dies: nothing takes its place.
TEST_F(ShardMoverTest, ADrainedShardThatDiesNeedsNoHome) {
  Running(1, 2);
  Lead(2);
  Save(2);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Do(NodeDisconnected{stores_[1], /*goodbye=*/true});
  stores_.pop_back();
  PassAndFollow(absl::Seconds(3));
  EXPECT_THAT(Homes(), ElementsAre("s0"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// A shard whose lease lapsed comes back before its back-off is over: the old lineage goes on, with all of its
// shards, and so does the move.
TEST_F(ShardMoverTest, AShardThatIsBackInTimeLeavesTheMoveAsItWas) {
  Running(1, 2);
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Pass(absl::Seconds(5.2), {workers_[0], stores_[0]});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Beat(stores_[1]);
  Pass(absl::Seconds(3), All());
  EXPECT_EQ(Lineage(), 1);
  EXPECT_THAT(Homes(), ElementsAre("s0", "s1"));
  SaveLast(5, {1});
  EXPECT_THAT(Homes(), ElementsAre("s0"));
}

TEST_F(ShardMoverTest, ANodeThatIsGoneMeanwhileLeavesTheShardsAsTheyAre) {
  Running(1, 2);
  stores_.push_back(Store("s2"));
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD, 0, "s2").ok());
  Do(NodeDisconnected{stores_[2], /*goodbye=*/true});
  SaveLast(5, {1});
  EXPECT_EQ(Lineage(), 2);  // the one before is over all the same
  EXPECT_THAT(Homes(), ElementsAre("s0", "s1"));
  EXPECT_THAT(Messages("ShardsStay"), ElementsAre("order 1: node s2: it is not connected"));
  stores_.pop_back();
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

// Another coordinator on the journal of the first, with the nodes as they are.
class NextCoordinator final : public ShardMoverTest {
 public:
  void TestBody() override {}
  void GoOnFrom(ShardMoverTest& before) {
    id_ = before.id_;
    journal_ = before.journal_;
    ASSERT_TRUE(core_.Restore(journal_.state(), now_, absl::UnixEpoch()).ok());
    Do(Restored{});
    const auto back = [&](const std::vector<SessionId>& sessions, const std::string& letter,
                          common::v1::Role role, std::vector<SessionId>& mine) {
      for (size_t i = 0; i < sessions.size(); ++i) {
        const std::string name = absl::StrCat(letter, i);
        mine.push_back(Connect(name, role, journal_.state().nodes.at(name).incarnation));
        beats_[mine.back()] = before.beats_[sessions[i]];
        Beat(mine.back());
      }
    };
    back(before.workers_, "w", common::v1::ROLE_WORKER, workers_);
    back(before.stores_, "s", common::v1::ROLE_PARAM_STORE, stores_);
  }
};

class MoveRestartTest : public ShardMoverTest, public testing::WithParamInterface<const char*> {};

TEST_P(MoveRestartTest, AnotherCoordinatorGoesOnWithTheMove) {
  const std::string died = GetParam();
  Running(1, 2);
  stores_.push_back(Store("s2"));
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD, 0, "s2").ok());
  if (died != "ordered") Freeze(5, {1});
  if (died == "recorded") Files(5, {1});
  NextCoordinator next;
  next.GoOnFrom(*this);
  if (died == "ordered") next.Freeze(5, {1});
  if (died != "recorded") next.Files(5, {1});
  next.PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(next.Lineage(), 2);
  EXPECT_THAT(next.Homes(), ElementsAre("s0", "s1", "s2"));
  EXPECT_EQ(next.Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_TRUE(next.core_.Peek(id_)->AllShardsReady());
  EXPECT_EQ(next.Job(id_).restarts(), 0);
  EXPECT_EQ(next.Messages("ShardsMoved").size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(All, MoveRestartTest, testing::Values("ordered", "frozen", "recorded"));

// The time to save counts from the end of the lineage, not from the order: that may have waited for workers.
TEST_F(ShardMoverTest, AnOrderThatWaitedForWorkersHasItsTimeToSave) {
  Running(1, 2);
  Lead(2);
  Save(2);
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Pass(absl::Minutes(3), All());
  Freeze(5, {1});
  Pass(absl::Minutes(1), All());
  EXPECT_EQ(Lineage(), 1);
  Files(5, {1});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_THAT(Messages("LineageStarted"), ElementsAre("lineage 2 from checkpoint 1-5"));
}

// Nobody has to leave: a version that cannot be saved is waited for, and people are told.
TEST_F(ShardMoverTest, AVersionThatCannotBeSavedIsWaitedFor) {
  Running(1, 2);
  Lead(2);
  Save(2);
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Freeze(5, {1});
  Pass(absl::Seconds(10), All());
  EXPECT_THAT(Job(id_).message(), HasSubstr("saving step 5: the files of shard 0 on host host-s0"));
  Report(0, 1, 5, "shard-0.safetensors: No space left on device", {1});
  Pass(absl::Minutes(3), All());
  EXPECT_EQ(Lineage(), 1);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_THAT(Job(id_).message(), HasSubstr("cannot save step 5: No space left on device"));
  Files(5, {1});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_THAT(Homes(), ElementsAre("s0"));
  EXPECT_THAT(Messages("LineageStarted"), ElementsAre("lineage 2 from checkpoint 1-5"));
}

// The time of a shard that leaves counts from when it has to, not from the move's order.
TEST_F(ShardMoverTest, ANodeThatIsDrainedDuringAMoveHasItsTimeToSave) {
  Running(1, 3);
  Lead(2);
  Save(2);
  stores_.push_back(Store("s3"));
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 2).ok());
  Pass(absl::Minutes(3), All());
  ASSERT_TRUE(Drain("s1").ok());
  Pass(absl::Seconds(1), All());
  Freeze(5, {1});
  Pass(absl::Minutes(1), All());
  EXPECT_EQ(Lineage(), 1);
  Files(5, {1});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_THAT(Homes(), ElementsAre("s0", "s3"));
  EXPECT_THAT(Messages("LineageStarted"), ElementsAre("lineage 2 from checkpoint 1-5"));
}

// That no worker is there is no restart.
TEST_F(ShardMoverTest, AMoveWithoutAWorkerSpeaksOfNoRestart) {
  Running(1, 2);
  Lead(4);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Freeze(5, {1});
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Files(5, {1});
  EXPECT_THAT(Messages("LineageStarted"), ElementsAre("lineage 2 from checkpoint 1-5"));
}

// ---- what a move and the loss of a shard do to each other ----

class LostInMoveTest : public ShardMoverTest {
 public:
  // A job with `free` other stores, s2 and so on, whose shard 1 is to move to `node`.
  void MoveTo(const std::string& node, int free) {
    Running(1, 2);
    Lead(2);
    Save(2);
    for (int i = 0; i < free; ++i) stores_.push_back(Store(absl::StrCat("s", 2 + i)));
    ASSERT_TRUE(Move(SHARD_CHANGE_MOVE, 1, node).ok()) << LastReply().status;
  }
  void Lose(int shard) {
    Do(NodeDisconnected{stores_[static_cast<size_t>(shard)], /*goodbye=*/true});
    stores_.erase(stores_.begin() + shard);
    PassAndFollow(absl::Seconds(3));
  }
};

TEST_F(LostInMoveTest, TheShardThatMovesGoesWhereItWasToGo) {
  MoveTo("s2", 1);
  Lose(1);
  EXPECT_THAT(Homes(), ElementsAre("s0", "s2"));
  EXPECT_THAT(Messages("ShardsMoved"),
              ElementsAre("order 1: shard 1 moves from node s1 to node s2, 2 shards"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

TEST_F(LostInMoveTest, TheShardThatMovesGoesNowhereElseFirst) {
  MoveTo("s3", 2);
  Lose(1);
  EXPECT_THAT(Homes(), ElementsAre("s0", "s3"));
  EXPECT_THAT(Messages("ShardsMoved"),
              ElementsAre("order 1: shard 1 moves from node s1 to node s3, 2 shards"));
}

TEST_F(LostInMoveTest, AnotherShardLeavesTheTargetFreeIfItCan) {
  MoveTo("s2", 2);
  Lose(0);
  EXPECT_THAT(Homes(), ElementsAre("s3", "s2"));
  EXPECT_THAT(Messages("ShardsStay"), IsEmpty());
}

TEST_F(LostInMoveTest, AnotherShardThatHasNoOtherHomeTakesTheTarget) {
  MoveTo("s2", 1);
  Lose(0);
  EXPECT_THAT(Homes(), ElementsAre("s2", "s1"));
  EXPECT_THAT(Messages("ShardsStay"), ElementsAre("order 1: node s2: it has shard 0 already"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

TEST_F(LostInMoveTest, TheNodeOfADrainedShardIsTakenLast) {
  Running(1, 3);
  Lead(2);
  Save(2);
  stores_.push_back(Store("s3"));
  Worker("w9");
  Submit(Spec(1, 1));  // on s3, which has as many jobs as the others then
  ASSERT_FALSE(core_.nodes().Find("s3")->jobs().empty());
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Lose(0);
  EXPECT_THAT(Homes(), ElementsAre("s3", "s2"));
  EXPECT_EQ(Messages("ShardsMoved").size(), 1u);
}

TEST_F(LostInMoveTest, TheNodeOfADrainedShardIsTakenIfNoOtherIsFree) {
  Running(1, 3);
  Lead(2);
  Save(2);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok());
  Lose(0);
  EXPECT_THAT(Homes(), ElementsAre("s1", "s2"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// ---- nodes of the release before ----

class MoveVersionTest : public ShardMoverTest {
 public:
  void RunningOf(const std::string& version) {
    Come(version);
    id_ = Submit(Spec(1, 2));
    Follow();
    Follow();
    ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  }
  void Come(const std::string& version) {
    workers_ = {Connect("w0", common::v1::ROLE_WORKER, 0, 1, version)};
    stores_ = {Connect("s0", common::v1::ROLE_PARAM_STORE, 0, 1, version),
               Connect("s1", common::v1::ROLE_PARAM_STORE, 0, 1, version)};
  }
};

TEST_F(MoveVersionTest, StoresThatDoNotKnowMovesAreNamedAndTheJobGoesOn) {
  RunningOf("0.1.7");
  stores_.push_back(Connect("s2", common::v1::ROLE_PARAM_STORE, 0, 1, "0.1.7"));
  Lead(4);
  for (const auto& [change, node] : {std::pair(SHARD_CHANGE_ADD, ""),
                                     {SHARD_CHANGE_ADD, "s2"},
                                     {SHARD_CHANGE_DRAIN, ""},
                                     {SHARD_CHANGE_MOVE, "s2"}}) {
    const absl::Status status = Move(change, 0, node);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_EQ(status.message(), "node s0: it is of version 0.1.7, and shards move from 0.2 on");
  }
  EXPECT_TRUE(core_.Peek(id_)->changes().empty());
}

TEST_F(MoveVersionTest, AJobThatGoesOnWithOlderStoresKeepsItsShards) {
  RunningOf("0.2.0");
  Lead(2);
  Save(2);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok()) << LastReply().status;
  Pass(absl::Seconds(5.2));  // all leases lapse, and the back-off is not over
  Come("0.1.7");
  PassAndFollow(absl::Seconds(5));
  EXPECT_THAT(Homes(), ElementsAre("s0", "s1"));
  EXPECT_THAT(Messages("ShardsStay"),
              ElementsAre("order 1: node s0: it is of version 0.1.7, and shards move from 0.2 on"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// ---- jobs that stop running ----

// Its members are still there, with the number that they had.
TEST_F(ShardMoverTest, AResumeThatComesAtOnceSetsTheNumberOfShards) {
  Running(1, 2);
  stores_.push_back(Store("s2"));
  Lead(4);
  Ask(For<job::v1::SuspendJobRequest>());
  SaveLast(5, {1});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  auto resume = For<job::v1::ResumeJobRequest>();
  resume.set_num_shards(3);
  Ask(resume);
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  EXPECT_EQ(core_.Peek(id_)->resolved()->num_shards(), 3);
  Ask(For<job::v1::SuspendJobRequest>());  // before it has another gang
  Ask(For<job::v1::ResumeJobRequest>());
  EXPECT_EQ(core_.Peek(id_)->resolved()->num_shards(), 3);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).shards_size(), 3);
}

TEST_F(ShardMoverTest, ARetryHasTheMovedNumberOfShards) {
  Running(1, 2);
  stores_.push_back(Store("s2"));
  Lead(3);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD).ok());
  SaveLast(4, {1});
  PassAndFollow(absl::Seconds(1));
  Cancel(id_);
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
  Ask(For<job::v1::RetryJobRequest>());
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).shards_size(), 3);
}

TEST_F(ShardMoverTest, AMoveThatTheEndOvertakesIsTold) {
  for (const std::string how : {"cancel", "fail"}) {
    SCOPED_TRACE(how);
    Running(1, 2);
    Lead(4);
    ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok()) << LastReply().status;
    if (how == "cancel") Cancel(id_);
    if (how == "fail") {
      Lead(5).set_reason("NonFiniteLoss");
      Beat(stores_[0]);
    }
    PassAndFollow(absl::Seconds(2));
    EXPECT_TRUE(core_.Peek(id_)->ended());
    EXPECT_THAT(Messages("ShardsStay"), ElementsAre("order 1: the job ends first"));
    EXPECT_EQ(core_.Peek(id_)->changes().Move(), nullptr);
    for (const SessionId session : All()) Do(NodeDisconnected{session, /*goodbye=*/true});
    workers_.clear();
    stores_.clear();
  }
}

TEST_F(ShardMoverTest, AMoveThatTheLastStepOvertakesIsTold) {
  Running(1, 1);
  stores_.push_back(Store("s1"));
  Lead(8);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD).ok()) << LastReply().status;
  Lead(10).set_complete(true);
  Report(0, 1, 10, "", {1});
  node::v1::TaskState& task = Task(workers_[0], id_, 0);
  task.set_phase(node::v1::TASK_PHASE_FINISHED);
  task.set_weights_sha256(std::string(64, 'a'));
  node::v1::WrittenFiles& files = *task.mutable_files();
  files.set_lineage(1);
  files.set_step(10);
  common::v1::FileInfo& file = *files.add_files();
  file.set_name("weights.safetensors");
  file.set_size_bytes(100);
  file.set_sha256(std::string(32, 'h'));
  Beat(workers_[0]);
  ASSERT_FALSE(manifests_.empty());
  Written();
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_SUCCEEDED);
  EXPECT_THAT(Messages("ShardsStay"), ElementsAre("order 1: the job ends first"));
}

// ---- what is written down ----

TEST_F(ShardMoverTest, WhatAMoveDoesNotHaveIsRefusedAndNeverWrittenDown) {
  Running(1, 3);
  Lead(2);
  const auto refused = [this](ShardChange change, int shard, const std::string& node,
                              const std::string& why) {
    const absl::Status status = Move(change, shard, node);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  refused(SHARD_CHANGE_DRAIN, 1, "s0", "node: the chunks of a drained shard go to all others");
  refused(SHARD_CHANGE_ADD, 1, "", "shard: the one that is added has no number yet");
  refused(SHARD_CHANGE_MOVE, 1, std::string(1 << 20, 'n'),
          "node: got 1048576 bytes, want at most 63");
  auto request = For<job::v1::MoveShardRequest>();
  request.mutable_move()->set_change(SHARD_CHANGE_DRAIN);
  request.mutable_move()->set_shard(1);
  const std::string known = request.move().SerializeAsString();
  ASSERT_TRUE(request.mutable_move()->ParseFromString(known + "\xa2\x06\x03xyz"));  // field 100
  Ask(request);
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  EXPECT_EQ(core_.Peek(id_)->changes()[0].move->SerializeAsString(), known);
}

// The record was put back from a copy of before the move. The process has the number of after it.
TEST_F(ShardMoverTest, AProcessThatIsAboveAnOldRecordIsNotLeftAlone) {
  Running(1, 2);
  Lead(4);
  const MemoryJournal copy = journal_;
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 0).ok());
  SaveLast(5, {1});
  PassAndFollow(absl::Seconds(1));
  ASSERT_THAT(Homes(), ElementsAre("s1"));
  Forget(StoreOf("s0"));
  std::sort(stores_.begin(), stores_.end());
  journal_ = copy;
  NextCoordinator next;
  next.GoOnFrom(*this);
  next.PassAndFollow(absl::Seconds(3));
  EXPECT_THAT(next.EventTypes(id_), Contains("RecordIsOld"));
  EXPECT_GE(next.Lineage(), 3);
  EXPECT_EQ(next.Job(id_).state(), JOB_STATE_RUNNING);
}

TEST_F(ShardMoverTest, ASuspendDropsTheMoveAndTheNextGangHasTheMovedNumber) {
  Running(1, 2);
  stores_.push_back(Store("s2"));
  Lead(3);
  ASSERT_TRUE(Move(SHARD_CHANGE_ADD).ok());
  SaveLast(4, {1});
  PassAndFollow(absl::Seconds(1));
  Lead(5);
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 0).ok()) << LastReply().status;
  Ask(For<job::v1::SuspendJobRequest>());
  ASSERT_TRUE(LastReply().status.ok());
  SaveLast(6, {1, 2, 3});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  EXPECT_THAT(Messages("ShardsStay"), ElementsAre("order 2: the job gives its gang back first"));
  EXPECT_EQ(core_.Peek(id_)->resolved()->num_shards(), 3);
  PassAndFollow(absl::Seconds(2));
  Ask(For<job::v1::ResumeJobRequest>());
  ASSERT_TRUE(LastReply().status.ok());
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).shards_size(), 3);
}

// A drained node has no other one to go to: a person takes its shard away, and the node is free.
TEST_F(ShardMoverTest, AShardOfADrainedNodeCanBeTakenAway) {
  Running(1, 2);
  Lead(4);
  ASSERT_TRUE(Drain("s1").ok());
  Pass(absl::Seconds(1), All());
  EXPECT_THAT(Messages("OrderGiven"), IsEmpty());
  ASSERT_TRUE(Move(SHARD_CHANGE_DRAIN, 1).ok()) << LastReply().status;
  SaveLast(5, {1});
  EXPECT_THAT(Homes(), ElementsAre("s0"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

}  // namespace
}  // namespace capstan::coordinator::core
