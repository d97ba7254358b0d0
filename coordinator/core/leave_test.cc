// Shards that leave on purpose: the version at hand is saved, the job goes on from it, and nothing
// counts as a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUSPENDED;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class LeaveTest : public RecoveryTest {
 protected:
  // Its service has got SIGTERM: every heartbeat says so from now on.
  void Leave(int shard, int ms = 60000) {
    beats_[stores_[static_cast<size_t>(shard)]].mutable_heartbeat()->set_leaving_ms(ms);
    Beat(stores_[static_cast<size_t>(shard)]);
  }
  // Ids of the suspends that the lead was given since the last look.
  std::set<int64_t> Suspends() {
    std::set<int64_t> ids;
    for (const auto& message : Take(stores_[0], ConnectResponse::kGiveOrders)) {
      for (const auto& order : message.give_orders().orders()) {
        if (order.suspend()) ids.insert(order.id());
      }
    }
    return ids;
  }
  // The lead has made `step` the last version, by these orders, and all shards have it on disk.
  void SaveLast(int64_t step, const std::vector<int64_t>& orders) {
    node::v1::LeadState& lead = *Shard(stores_[0], id_, 0).mutable_lead();
    lead.set_lineage(Lineage());
    lead.set_step(step);
    lead.set_suspended(true);
    for (const int64_t id : orders) {
      lead.add_applied_order_ids(id);
      lead.add_applied_order_steps(step - 1);
    }
    Beat(stores_[0]);
    for (size_t i = 0; i < stores_.size() && i < 2; ++i) {
      Report(static_cast<int>(i), Lineage(), step, "", orders);
    }
    Written();
  }
  // The process has ended, after its goodbye.
  void Gone(int shard) {
    Do(NodeDisconnected{stores_[static_cast<size_t>(shard)], /*goodbye=*/true});
    beats_[stores_[static_cast<size_t>(shard)]].mutable_heartbeat()->Clear();
  }
  bool Ended(int shard) {
    return !Take(stores_[static_cast<size_t>(shard)], ConnectResponse::kEndJob).empty();
  }
  absl::Status Drain(const std::string& node, bool drained = true) {
    Do(core::SetDrained{++calls_, node, drained});
    return LastReply().status;
  }
  int Count(const std::string& type) {
    const auto types = EventTypes(id_);
    return static_cast<int>(std::count(types.begin(), types.end(), type));
  }
};

// ---- a service stops ----

TEST_F(LeaveTest, TheVersionAtHandIsSavedAndTheShardThatIsBackGoesOnFromIt) {
  job::v1::JobSpec spec = Spec(2, 2);
  spec.mutable_recovery()->set_max_restarts(0);
  Running(2, 2, spec);
  Lead(4);
  Leave(1);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_THAT(EventTypes(id_), Contains("ShardLeaves"));
  EXPECT_THAT(Suspends(), ElementsAre(1));
  EXPECT_FALSE(Ended(1));  // it is needed until the version is saved
  Pass(absl::Seconds(2), All());
  EXPECT_EQ(EventTypes(id_).back(), "OrderGiven");
  EXPECT_EQ(Count("OrderGiven"), 1);

  SaveLast(5, {1});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(id_).reason(), "ShardLeft");
  EXPECT_EQ(Job(id_).message(), "shard 1 on host host-s1: its service stops");
  EXPECT_EQ(Lineage(), 1);  // no other shard takes its place yet
  EXPECT_TRUE(Ended(1));
  Forget(stores_[1]);
  Leave(1);
  Gone(1);
  Pass(absl::Seconds(20), {workers_[0], workers_[1], stores_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);

  stores_[1] = Store("s1");
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-5"));
  EXPECT_THAT(starts_.back().orders(), IsEmpty());  // the manifest has applied it
  EXPECT_EQ(Job(id_).progress().step(), 5);
  EXPECT_EQ(Job(id_).restarts(), 0);
  EXPECT_EQ(Saved(id_).restarts(), 0);
  EXPECT_THAT(EventTypes(id_), Not(Contains("ShardLost")));
  EXPECT_EQ(Count("ShardLeft"), 1);
  const job::v1::Job job = Job(id_);
  for (const auto& event : job.events()) {
    if (event.type() == "LineageStarted") {
      EXPECT_EQ(event.message(), "lineage 2 from checkpoint 1-5");
    }
  }
}

TEST_F(LeaveTest, ASpareTakesItsPlaceAtOnceAgainAndAgain) {
  Running(1, 2);
  int64_t step = 0;
  std::vector<int64_t> orders;  // that a snapshot has applied
  for (int i = 0; i < 4; ++i) {
    const SessionId spare = Store(absl::StrCat("spare", i));
    Lead(step += 1);
    Leave(1);
    orders.push_back(i + 1);
    EXPECT_THAT(Suspends(), ElementsAre(i + 1));
    SaveLast(++step, orders);
    EXPECT_EQ(Lineage(), i + 2);
    Beat(stores_[1]);
    EXPECT_TRUE(Ended(1));
    Forget(stores_[1]);
    Leave(1);
    EXPECT_TRUE(core_.nodes().Find(i == 0 ? "s1" : absl::StrCat("spare", i - 1))->jobs().empty());
    Gone(1);
    stores_[1] = spare;
    PassAndFollow(absl::Seconds(1));
    ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
    EXPECT_EQ(Job(id_).progress().step(), step);
  }
  EXPECT_EQ(Job(id_).restarts(), 0);
  EXPECT_EQ(Count("ShardLeft"), 4);
}

TEST_F(LeaveTest, TheLeadMayLeaveAndSoMayAllAtOnce) {
  Running(1, 2);
  Lead(4);
  Leave(0);
  Leave(1);
  EXPECT_THAT(Suspends(), ElementsAre(1));
  SaveLast(5, {1});
  EXPECT_TRUE(Ended(0));
  EXPECT_TRUE(Ended(1));
  EXPECT_EQ(Count("ShardLeft"), 2);
  for (const int shard : {0, 1}) {
    Forget(stores_[static_cast<size_t>(shard)]);
    Gone(shard);
    stores_[static_cast<size_t>(shard)] = Store(absl::StrCat("s", shard));
  }
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-5"));
  EXPECT_EQ(Job(id_).restarts(), 0);
}

// As if an update stops the next shard before the first one is back.
TEST_F(LeaveTest, WhoeverLeavesWhileTheJobWaitsGoesAtOnce) {
  Running(1, 2);
  Lead(4);
  Leave(1);
  SaveLast(5, {1});
  Gone(1);
  Forget(stores_[0]);
  Shard(stores_[0], id_, 0).set_ready(true);
  EXPECT_FALSE(Ended(0));
  Leave(0);
  EXPECT_TRUE(Ended(0));
  EXPECT_EQ(Count("ShardLeft"), 2);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(LeaveTest, WhatHasNotBegunIsNotWaitedFor) {
  Running(1, 2);
  Lead(4);
  Save(4);
  Restart(1);
  Pass(absl::Seconds(2), {workers_[0], stores_[0], stores_[1]});
  ASSERT_EQ(Lineage(), 2);
  Shard(stores_[0], id_, 0).Clear();
  Shard(stores_[0], id_, 0);
  node::v1::ShardState& state = *beats_[stores_[0]].mutable_heartbeat()->mutable_shards(0);
  state.set_job_id(id_);
  state.set_lineage(2);  // loads
  Leave(0);
  EXPECT_TRUE(Ended(0));
  EXPECT_EQ(Job(id_).reason(), "ShardLeft");
  EXPECT_EQ(Job(id_).restarts(), 1);  // that of the shard that was lost
  EXPECT_EQ(Count("OrderGiven"), 0);
}

TEST_F(LeaveTest, BeforeItsFirstViewTheJobGetsAnotherGang) {
  workers_.push_back(Worker("w0"));
  stores_.push_back(Store("s0"));
  id_ = Submit(Spec(1, 1));
  ASSERT_EQ(Job(id_).state(), JOB_STATE_STARTING);
  Leave(0);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING);
  EXPECT_THAT(Job(id_).message(), HasSubstr("needs 1 param_store, 0 are there"));
  stores_.push_back(Store("s1"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_STARTING);
  EXPECT_EQ(Job(id_).shards(0).node(), "s1");
}

// No task makes the version that would be saved.
TEST_F(LeaveTest, WithoutAWorkerItIsNotWaitedForAndStillNoRestart) {
  Running(1, 2);
  Lead(4);
  Save(4);
  Lead(6);
  Leave(1);
  EXPECT_FALSE(Ended(1));
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  Pass(absl::Milliseconds(600), {stores_[0], stores_[1]});
  EXPECT_TRUE(Ended(1));
  EXPECT_EQ(Job(id_).reason(), "ShardLeft");
  Gone(1);
  workers_[0] = Worker("w0");
  stores_[1] = Store("s1");
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  EXPECT_EQ(Job(id_).restarts(), 0);
  // The order, which was not carried out, is a checkpoint now.
  ASSERT_THAT(starts_.back().orders(), SizeIs(1));
  EXPECT_TRUE(starts_.back().orders(0).checkpoint());
}

TEST_F(LeaveTest, WhereTheWorkersWentBeforeItGoesAtOnce) {
  Running(1, 2);
  Lead(4);
  Save(4);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  Pass(absl::Milliseconds(600), stores_);
  // A drained one stays: nothing would be saved by that.
  Store("s2");
  ASSERT_TRUE(Drain("s0").ok());
  Pass(absl::Milliseconds(600), stores_);
  EXPECT_FALSE(Ended(0));
  Leave(1);
  Pass(absl::Milliseconds(600), stores_);
  EXPECT_TRUE(Ended(1));
}

class GoodbyeTest : public LeaveTest, public testing::WithParamInterface<const char*> {};

// Its time was over, or it was killed before: the steps are lost, and it was said beforehand.
TEST_P(GoodbyeTest, IsNoRestartHoweverItEnds) {
  const std::string how = GetParam();
  Running(1, 2);
  Lead(4);
  Save(4);
  Lead(6);
  if (how != "goodbye alone") Leave(1);
  if (how == "silence") {
    Pass(absl::Seconds(6), {workers_[0], stores_[0]});
  } else {
    Do(NodeDisconnected{stores_[1], /*goodbye=*/how != "another process"});
  }
  beats_[stores_[1]].Clear();
  stores_[1] = Store("s1");
  EXPECT_EQ(Job(id_).reason(), "ShardLeft");
  PassAndFollow(absl::Seconds(1));  // no back-off
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  EXPECT_EQ(Job(id_).restarts(), 0);
  EXPECT_THAT(EventTypes(id_), Not(Contains("ShardLost")));
}

INSTANTIATE_TEST_SUITE_P(All, GoodbyeTest,
                         testing::Values("goodbye", "another process", "silence", "goodbye alone"));

TEST_F(LeaveTest, AJobThatMayNotLoseAShardIsNotEndedByOneThatLeaves) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->add_never_retry_on("ShardLost");
  Running(1, 1, spec);
  Leave(0);
  Gone(0);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
}

TEST_F(LeaveTest, AShardThatLeavesTakesNoOtherJob) {
  stores_.push_back(Store("s0"));
  workers_.push_back(Worker("w0"));
  Leave(0);
  id_ = Submit(Spec(1, 1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING);
}

TEST_F(LeaveTest, AJobThatEndsIsNotDisturbed) {
  Running(1, 2);
  Lead(10).set_complete(true);
  Beat(stores_[0]);
  Leave(1);
  EXPECT_EQ(Count("OrderGiven"), 0);
  EXPECT_FALSE(Ended(1));
}

// ---- a worker stops ----

TEST_F(LeaveTest, AWorkerThatStopsIsNoRestartOfALocalJob) {
  job::v1::JobSpec spec = Spec(1, 0);
  spec.mutable_recovery()->set_max_restarts(0);
  Running(1, 0, spec);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING);
  workers_[0] = Worker("w0");
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(LeaveTest, NorOfAJobThatWaitsInVainForAnother) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_limits()->set_stall_timeout_seconds(30);
  Running(1, 1, spec);
  Lead(4);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  Pass(absl::Seconds(31), {stores_[0]});
  EXPECT_EQ(Job(id_).reason(), "GangLost");
  EXPECT_EQ(Job(id_).restarts(), 0);
}

// ---- no member is left ----

class UpgradeTest : public LeaveTest {
 protected:
  // A job of one worker and two shards that has saved step 5; its shards have gone.
  void ShardsGone() {
    Running(1, 2);
    Lead(4);
    Leave(0);
    Leave(1);
    SaveLast(5, {1});
    Gone(0);
    Gone(1);
  }
  void WorkerGone() {
    Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
    ASSERT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  }
  SessionId WorkerOf(const std::string& version, const std::string& name) {
    return Connect(name, common::v1::ROLE_WORKER, 0, 1, version);
  }
  SessionId StoreOf(const std::string& version, const std::string& name) {
    return Connect(name, common::v1::ROLE_PARAM_STORE, 0, 1, version);
  }
};

TEST_F(UpgradeTest, AnOldSpareAndAnUpgradedShardDoNotServeOneJob) {
  ShardsGone();
  WorkerGone();
  const SessionId spare = StoreOf("0.9.0", "spare");
  workers_[0] = WorkerOf("0.10.0", "w0");
  stores_[1] = StoreOf("0.10.0", "s1");
  Pass(absl::Seconds(5), {spare, workers_[0], stores_[1]});
  EXPECT_EQ(Lineage(), 1);
  EXPECT_THAT(Take(spare, ConnectResponse::kStartLineage), IsEmpty());
  Pass(absl::Seconds(5), {spare, workers_[0], stores_[1]});
  EXPECT_THAT(Job(id_).message(),
              HasSubstr("(param_store s1 is of version 0.10.0, param_store spare "
                        "is of 0.9.0: all of a job must have one version)"));
  // The last missing one: nothing else is waited for.
  stores_[0] = StoreOf("0.10.0", "s0");
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).shards(0).node(), "s0");
  EXPECT_EQ(Job(id_).shards(1).node(), "s1");
  EXPECT_EQ(Job(id_).restarts(), 0);
}

// Nodes stand in the order of their names: a worker may come before every param_store.
TEST_F(UpgradeTest, AWorkerOfAnotherVersionIsNamedWhateverItsName) {
  ShardsGone();
  WorkerGone();
  const std::vector<SessionId> heard = {WorkerOf("0.10.0", "a0"), StoreOf("0.9.0", "s0"),
                                        StoreOf("0.9.0", "s1")};
  Pass(absl::Seconds(10), heard);
  EXPECT_EQ(Lineage(), 1);
  EXPECT_THAT(Job(id_).message(), HasSubstr("(param_store s0 is of version 0.9.0, worker a0 is of "
                                            "0.10.0: all of a job must have one version)"));
}

TEST_F(UpgradeTest, AVersionNeedsEnoughShardsAndAWorker) {
  ShardsGone();
  WorkerGone();
  std::vector<SessionId> heard = {
      StoreOf("0.11.0", "s0"),  StoreOf("0.11.0", "s1"),  // without a worker
      WorkerOf("0.10.0", "w1"), StoreOf("0.10.0", "s2"),  // with one shard
      WorkerOf("0.9.0", "w2"),  StoreOf("0.9.0", "s3")};
  Pass(absl::Seconds(2), heard);
  EXPECT_EQ(Lineage(), 1);
  heard.push_back(StoreOf("0.9.0", "s4"));
  Pass(absl::Seconds(1), heard);
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).shards(0).node(), "s3");
  EXPECT_EQ(Job(id_).shards(1).node(), "s4");
}

TEST_F(UpgradeTest, OfTwoVersionsThatWouldDoTheNewerOneIsTaken) {
  ShardsGone();
  std::vector<SessionId> heard = {workers_[0]};
  for (const char* version : {"0.9.0", "0.10.0"}) {
    const bool older = version == absl::string_view("0.9.0");
    heard.push_back(WorkerOf(version, older ? "w2" : "w1"));
    heard.push_back(StoreOf(version, older ? "s0" : "s2"));
    heard.push_back(StoreOf(version, older ? "s1" : "s3"));
  }
  Pass(absl::Seconds(2), heard);  // w0 is there, of another version than they all
  WorkerGone();
  Pass(absl::Seconds(1), heard);
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).shards(0).node(), "s2");
  EXPECT_EQ(Job(id_).shards(1).node(), "s3");
}

// ---- with orders of people ----

TEST_F(LeaveTest, APersonsSuspendIsCarriedOutByTheSameVersion) {
  Running(1, 2);
  Lead(4);
  Leave(1);
  Ask(For<job::v1::SuspendJobRequest>());
  ASSERT_TRUE(LastReply().status.ok());
  EXPECT_EQ(Count("OrderGiven"), 2);  // it is not taken for the coordinator's own
  SaveLast(5, {1});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  EXPECT_TRUE(Ended(1));
  Forget(stores_[0]);
  Beat(stores_[0]);
  Forget(stores_[1]);
  Gone(1);
  Forget(workers_[0]);
  Beat(workers_[0]);
  stores_[1] = Store("s1");
  Ask(For<job::v1::ResumeJobRequest>());
  ASSERT_TRUE(LastReply().status.ok());
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-5"));
}

TEST_F(LeaveTest, AHandOverThatALossOvertakesIsACheckpointInTheNextHistory) {
  Running(1, 2);
  Lead(4);
  Save(4);
  Leave(1);
  node::v1::LeadState& lead = *Shard(stores_[0], id_, 0).mutable_lead();
  lead.set_step(6);
  lead.set_suspended(true);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(5);
  Beat(stores_[0]);
  Restart(0);  // before it has written its files
  EXPECT_EQ(Job(id_).restarts(), 1);
  Pass(absl::Seconds(2), All());
  EXPECT_TRUE(Ended(1));
  Gone(1);
  stores_[1] = Store("s1");
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  ASSERT_THAT(starts_.back().orders(), SizeIs(1));
  EXPECT_TRUE(starts_.back().orders(0).checkpoint());
  EXPECT_EQ(starts_.back().orders(0).step(), 5);
}

// ---- the coordinator starts anew meanwhile ----

TEST_F(LeaveTest, AnotherCoordinatorGoesOnWithTheHandOver) {
  Running(1, 2);
  Lead(4);
  Leave(1);
  ASSERT_TRUE(Saved(id_).orders(0).hand_over());

  World next;
  next.journal_ = journal_;
  ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Do(Restored{});
  const SessionId worker =
      next.Connect("w0", common::v1::ROLE_WORKER, core_.nodes().Find("w0")->incarnation());
  std::vector<SessionId> stores;
  for (size_t i = 0; i < 2; ++i) {
    const std::string name = absl::StrCat("s", i);
    stores.push_back(
        next.Connect(name, common::v1::ROLE_PARAM_STORE, core_.nodes().Find(name)->incarnation()));
    next.beats_[stores[i]] = beats_[stores_[i]];
  }
  next.beats_[worker] = beats_[workers_[0]];
  node::v1::ShardState& state = next.Shard(stores[0], id_, 0);
  state.mutable_lead()->set_step(5);
  state.mutable_lead()->set_suspended(true);
  state.mutable_lead()->add_applied_order_ids(1);
  state.mutable_lead()->add_applied_order_steps(4);
  node::v1::LeadSnapshot snapshot;
  snapshot.set_step(5);
  snapshot.add_applied_orders()->set_id(1);
  for (size_t i = 0; i < 2; ++i) {
    node::v1::WrittenFiles& files =
        *next.Shard(stores[i], id_, static_cast<int>(i)).mutable_files();
    files.set_lineage(1);
    files.set_step(5);
    common::v1::FileInfo& file = *files.add_files();
    file.set_name(absl::StrCat("shard-", i, ".safetensors"));
    file.set_size_bytes(100);
    file.set_sha256(std::string(32, 'h'));
    if (i == 0) files.set_lead_snapshot(snapshot.SerializeAsString());
  }
  next.Beat(worker);
  next.Beat(stores[0]);
  next.Beat(stores[1]);
  ASSERT_THAT(next.manifests_, SizeIs(1));
  next.Do(ManifestWritten{id_, 1, 5, absl::OkStatus()});
  EXPECT_EQ(next.Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(next.Job(id_).reason(), "ShardLeft");
  EXPECT_FALSE(next.Take(stores[1], ConnectResponse::kEndJob).empty());
  EXPECT_EQ(next.Job(id_).restarts(), 0);
}

// ---- a node is drained ----

TEST_F(LeaveTest, ADrainedNodeHandsOverWhereAnotherOneIsFree) {
  Running(1, 2);
  Lead(4);
  ASSERT_TRUE(Drain("s1").ok());
  Pass(absl::Seconds(2), All());
  EXPECT_EQ(Count("OrderGiven"), 0);  // there is none yet
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  const SessionId spare = Store("s2");
  Pass(absl::Seconds(1), All());
  EXPECT_THAT(Suspends(), ElementsAre(1));
  SaveLast(5, {1});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).shards(1).node(), "s2");
  Beat(stores_[1]);
  EXPECT_TRUE(Ended(1));
  Forget(stores_[1]);
  Beat(stores_[1]);
  EXPECT_TRUE(core_.nodes().Find("s1")->jobs().empty());
  stores_[1] = spare;
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(LeaveTest, WhoIsUndrainedMeanwhileStaysInTheNextLineage) {
  Running(1, 2);
  Lead(4);
  Store("s2");
  ASSERT_TRUE(Drain("s1").ok());
  Pass(absl::Seconds(1), All());
  EXPECT_THAT(Suspends(), ElementsAre(1));
  ASSERT_TRUE(Drain("s1", false).ok());
  SaveLast(5, {1});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).shards(1).node(), "s1");
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Count("ShardLeft"), 0);
}

TEST_F(LeaveTest, ADrainDoesNotStopAJobWhoseDiskIsFull) {
  Running(1, 2);
  std::vector<SessionId> heard = All();
  heard.push_back(Store("s2"));
  Lead(4);
  Report(0, 1, 4);
  Report(1, 1, 4, "no space left on device");
  ASSERT_THAT(Job(id_).conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  ASSERT_TRUE(Drain("s1").ok());
  Pass(absl::Seconds(2), heard);
  EXPECT_EQ(Count("OrderGiven"), 0);
  Save(5);
  Pass(absl::Seconds(1), heard);
  EXPECT_EQ(Count("OrderGiven"), 1);
  // It fills up again: the job is not held up for ever.
  node::v1::LeadState& lead = *Shard(stores_[0], id_, 0).mutable_lead();
  lead.set_step(7);
  lead.set_suspended(true);
  Beat(stores_[0]);
  Pass(absl::Minutes(1), heard);
  EXPECT_EQ(Lineage(), 1);
  Pass(absl::Seconds(61), heard);
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).shards(1).node(), "s2");
  EXPECT_EQ(Job(id_).restarts(), 0);
}

}  // namespace
}  // namespace capstan::coordinator::core
