// Workers that are lost, join or are late; and what a person orders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUSPENDED;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- workers ----

TEST_F(RecoveryTest, WhenAllWorkersAreLostOthersGoOnInTheSameLineage) {
  Running(2, 1);
  Lead(4);
  Do(NodeDisconnected{workers_[0]});
  Do(NodeDisconnected{workers_[1]});
  const std::vector<SessionId> old = workers_;
  workers_ = {Worker("w0"), Worker("w1")};
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  PassAndFollow(absl::Seconds(4));
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.lineage(), 1);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_EQ(job.workers_size(), 4);
  EXPECT_EQ(job.progress().step(), 4);
}

TEST_F(RecoveryTest, AJoinerGetsItsShareOnceItHasWeights) {
  job::v1::JobSpec spec = Spec(2, 1);
  spec.mutable_resources()->set_min_workers(1);
  Running(1, 1, spec);  // four lanes, one worker
  workers_.push_back(Worker("w1"));
  const auto probes = Take(workers_[1], ConnectResponse::kProbe);
  ASSERT_THAT(probes, SizeIs(1));
  inbox_[workers_[1]].push_back(probes[0]);
  AnswerProbe(workers_[1]);
  EXPECT_EQ(Job(id_).generation(), 2);  // it may open streams, and owns nothing
  const auto starts = Take(workers_[1], ConnectResponse::kStartTask);
  ASSERT_THAT(starts, SizeIs(1));
  EXPECT_THAT(starts[0].start_task().view().lane_owners(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(starts[0].start_task().view().workers(), SizeIs(2));
  inbox_[workers_[1]].push_back(starts[0]);
  Follow();
  EXPECT_EQ(Job(id_).generation(), 3);
  EXPECT_EQ(Job(id_).events(Job(id_).events_size() - 1).message(),
            "generation 3: lanes 2,3 go from w0 to w1");
  // A third one is not wanted.
  const SessionId third = Worker("w2");
  EXPECT_THAT(Take(third, ConnectResponse::kProbe), IsEmpty());
}

TEST_F(RecoveryTest, AJoinerWithOtherDataIsRefusedAndHurtsNobody) {
  job::v1::JobSpec spec = Spec(2, 1);
  spec.mutable_resources()->set_min_workers(1);
  Running(1, 1, spec);
  const SessionId joiner = Worker("w1");
  AnswerProbe(joiner, "DataMissing");
  EXPECT_THAT(EventTypes(id_), Contains("JoinRefused"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).generation(), 1);
  Pass(absl::Seconds(5), {workers_[0], stores_[0], joiner});
  EXPECT_THAT(Take(joiner, ConnectResponse::kProbe), IsEmpty());
}

TEST_F(RecoveryTest, ALineageThatBeginsBeforeAJoinersDataAreKnownIsWithoutIt) {
  job::v1::JobSpec spec = Spec(2, 1);
  spec.mutable_resources()->set_min_workers(1);
  Running(1, 1, spec);
  Lead(4);
  Save(4);
  const SessionId joiner = Worker("w1");
  ASSERT_THAT(Job(id_).workers(), SizeIs(2));
  Restart(0);
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Lineage(), 2);
  EXPECT_THAT(starts_.back().view().workers(), SizeIs(1));
  EXPECT_THAT(starts_.back().view().lane_owners(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Take(joiner, ConnectResponse::kStartTask), IsEmpty());
  AnswerProbe(joiner, "DataMissing");
  EXPECT_THAT(EventTypes(id_), Contains("JoinRefused"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// Its service lives, so the new rank has the device of the old one.
TEST_F(RecoveryTest, TheDeviceOfARankThatCameBackIsGivenToNobodyElse) {
  Running(2, 1);
  node::v1::TaskState& task = Task(workers_[1], id_, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(-9);
  Beat(workers_[1]);
  PassAndFollow(absl::Seconds(3));
  ASSERT_THAT(Job(id_).workers(), SizeIs(3));
  EXPECT_EQ(core_.nodes().Find("w1")->slots[0], id_);
  const std::string other = Submit(Spec(1, 0));
  EXPECT_EQ(Job(other).state(), JOB_STATE_PENDING);
}

TEST_F(RecoveryTest, ALeaverHandsOverAtOnce) {
  Running(2, 1);
  Do(NodeDisconnected{workers_[0]});
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  EXPECT_EQ(Job(id_).generation(), 2);
}

TEST_F(RecoveryTest, WhoDiesNowAndThenIsBackAtOnceAndWhoDiesAgainAndAgainWaits) {
  Running(2, 1);
  const auto kill = [this](absl::Duration then) {
    Do(NodeDisconnected{workers_[1]});
    workers_[1] = Worker("w1");
    PassAndFollow(then);
    return Job(id_).workers_size();
  };
  for (int killed = 1; killed <= 4; ++killed) {
    PassAndFollow(absl::Seconds(40));
    Lead(killed);
    EXPECT_EQ(kill(absl::Seconds(1.5)), 2 + killed);
  }
  EXPECT_EQ(kill(absl::Seconds(1.5)), 6);  // 2 s
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).workers_size(), 7);
  EXPECT_EQ(kill(absl::Seconds(3)), 7);  // 4 s
}

TEST_F(RecoveryTest, ATaskThatFailsByChanceIsOneWorkerLess) {
  Running(2, 1);
  node::v1::TaskState& task = Task(workers_[1], id_, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("NcclTimeout");
  task.set_exit_code(1);
  Beat(workers_[1]);
  Pass(absl::Milliseconds(100), All());
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).generation(), 2);
}

TEST_F(RecoveryTest, TheTaskOfALocalJobGoesBackIntoTheQueue) {
  workers_ = {Worker("w0")};
  id_ = Submit(Spec(1, 0));
  Follow();
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  node::v1::TaskState& task = Task(workers_[0], id_, 0);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(-9);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING);
  EXPECT_EQ(Job(id_).reason(), "BackOff");
  EXPECT_TRUE(Job(id_).has_retry_at());
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).restarts(), 1);
}

TEST_F(RecoveryTest, ALateLaneIsIssuedAgainAndItsWaitDoubles) {
  Running(2, 1);
  Lead(3);
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(3);
  waiting.add_lanes(3);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(1900), All());
  EXPECT_EQ(Job(id_).generation(), 1);
  Pass(absl::Milliseconds(700), All());
  EXPECT_EQ(Job(id_).generation(), 2);
  EXPECT_THAT(EventTypes(id_), Contains("LaneReissued"));
  EXPECT_EQ(Job(id_).events(Job(id_).events_size() - 1).message(),
            "generation 2: lanes 3 go from w1 to w0");
  EXPECT_EQ(Job(id_).events(Job(id_).events_size() - 1).step(), 3);
  // Now w0 is late with it: it goes back after twice the time.
  for (const SessionId worker : workers_) {
    beats_[worker].mutable_heartbeat()->mutable_tasks(0)->set_generation(2);
  }
  Pass(absl::Milliseconds(3500), All());
  EXPECT_EQ(Job(id_).generation(), 2);
  Pass(absl::Milliseconds(1000), All());
  EXPECT_EQ(Job(id_).generation(), 3);
}

TEST_F(RecoveryTest, AWorkerLostAfterTheEndIsOnlyNews) {
  Running(1, 1);
  Lead(10).set_complete(true);
  Report(0, 1, 10);
  node::v1::TaskState& task = Task(workers_[0], id_, 0);
  task.mutable_files()->set_lineage(1);
  task.mutable_files()->set_step(10);
  common::v1::FileInfo* file = task.mutable_files()->add_files();
  file->set_name("weights.safetensors");
  file->set_sha256(std::string(32, 'w'));
  task.set_weights_sha256(std::string(64, 'a'));
  Beat(workers_[0]);
  ASSERT_THAT(manifests_, SizeIs(1));
  Written(absl::UnavailableError("no space"));
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(-9);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  Pass(absl::Milliseconds(1100), All());
  ASSERT_THAT(manifests_, SizeIs(2));
  Written();
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_SUCCEEDED);
}

// ---- orders ----

TEST_F(RecoveryTest, AnOrderIsDurableThenGivenThenJournaledWithItsStep) {
  Running(1, 1);
  order_.clear();
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_learning_rate(0.25);
  Ask(update);
  ASSERT_TRUE(LastReply().status.ok());
  EXPECT_THAT(std::get<job::v1::UpdateJobResponse>(LastReply().response).order_ids(),
              ElementsAre(1));
  ASSERT_THAT(order_, SizeIs(3));
  EXPECT_EQ(order_[0], "persist");
  auto given = Take(stores_[0], ConnectResponse::kGiveOrders);
  ASSERT_THAT(given, SizeIs(1));
  EXPECT_FALSE(given[0].give_orders().orders(0).has_step());
  Pass(absl::Milliseconds(1050), All());
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kGiveOrders), SizeIs(2));

  node::v1::LeadState& lead = Lead(7);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(6);
  Beat(stores_[0]);
  EXPECT_THAT(EventTypes(id_), Contains("OrderApplied"));
  Pass(absl::Seconds(2), All());
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kGiveOrders), IsEmpty());

  // A new lineage begins before it: it takes effect at the same step again.
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  ASSERT_EQ(starts_.back().orders_size(), 1);
  EXPECT_EQ(starts_.back().orders(0).step(), 6);
  EXPECT_EQ(starts_.back().orders(0).learning_rate(), 0.25);
}

TEST_F(RecoveryTest, WhatAManifestHasAppliedIsNotGivenAgain) {
  Running(1, 1);
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_checkpoint(true);
  Ask(update);
  Lead(4);
  Save(4, /*orders=*/{1});
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_THAT(starts_.back().orders(), IsEmpty());
}

TEST_F(RecoveryTest, BadUpdatesAreRefused) {
  Running(1, 1);
  auto update = For<job::v1::UpdateJobRequest>();
  Ask(update);
  EXPECT_TRUE(absl::IsInvalidArgument(LastReply().status));
  update.set_learning_rate(-1);
  Ask(update);
  EXPECT_TRUE(absl::IsInvalidArgument(LastReply().status));
  update.clear_learning_rate();
  update.set_max_restarts(1001);
  Ask(update);
  EXPECT_TRUE(absl::IsInvalidArgument(LastReply().status));
  Ask(For<job::v1::ResumeJobRequest>());
  EXPECT_TRUE(absl::IsFailedPrecondition(LastReply().status));
  Ask(For<job::v1::RetryJobRequest>());
  EXPECT_TRUE(absl::IsFailedPrecondition(LastReply().status));
}

// It would take what they report for what it told them last: of another resolved spec, perhaps.
TEST_F(RecoveryTest, AResumedJobWaitsForNodesToLetGoOfTheirFormerParts) {
  Running(1, 1);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Beat(stores_[0]);
  Save(4, /*orders=*/{1});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  for (const SessionId session : All()) Do(NodeDisconnected{session});  // before they are told
  Pass(absl::Seconds(12));
  auto resume = For<job::v1::ResumeJobRequest>();
  resume.set_num_workers(1);
  Ask(resume);
  for (const SessionId before : {stores_[0], workers_[0]}) {
    const bool store = before == stores_[0];
    const std::string name = store ? "s0" : "w0";
    const SessionId session =
        Connect(name, store ? common::v1::ROLE_PARAM_STORE : common::v1::ROLE_WORKER,
                core_.nodes().Find(name)->incarnation);
    EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING) << name;  // what it holds is not known yet
    beats_[session] = beats_[before];
    Beat(session);
    EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING) << name;
    EXPECT_THAT(Take(session, store ? ConnectResponse::kEndJob : ConnectResponse::kStopTask),
                SizeIs(1));
    Forget(session);
    Beat(session);
  }
  EXPECT_EQ(Job(id_).state(), JOB_STATE_STARTING);
}

// All that one call asks for, or nothing of it.
TEST_F(RecoveryTest, OrdersAboveTheLimitAreRefusedWhole) {
  Running(1, 1);
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_checkpoint(true);
  for (int i = 1; i < CoreOptions().max_orders; ++i) Ask(update);
  EXPECT_TRUE(LastReply().status.ok());
  update.set_learning_rate(0.5);
  update.set_max_restarts(7);
  Ask(update);
  EXPECT_TRUE(absl::IsResourceExhausted(LastReply().status)) << LastReply().status;
  EXPECT_THAT(EventTypes(id_), Not(Contains("Updated")));
  update.clear_learning_rate();
  Ask(update);
  EXPECT_TRUE(LastReply().status.ok());
  Ask(For<job::v1::SuspendJobRequest>());
  EXPECT_TRUE(LastReply().status.ok()) << LastReply().status;
}

TEST_F(RecoveryTest, SuspendedAndResumedWithOtherNumbers) {
  Running(3, 2);
  Ask(For<job::v1::SuspendJobRequest>());
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  const auto given = Take(stores_[0], ConnectResponse::kGiveOrders);
  ASSERT_THAT(given, SizeIs(1));
  EXPECT_TRUE(given[0].give_orders().orders(0).suspend());
  Lead(4).set_suspended(true);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);  // not before its manifest
  Save(4, /*orders=*/{1});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  PassAndFollow(absl::Seconds(2));
  EXPECT_THAT(Job(id_).workers(), IsEmpty());
  EXPECT_EQ(core_.nodes().Find("w0")->slots[0], "");

  auto resume = For<job::v1::ResumeJobRequest>();
  resume.set_num_shards(9);  // of 8 chunks
  Ask(resume);
  EXPECT_TRUE(absl::IsInvalidArgument(LastReply().status));
  resume.set_num_shards(1);
  resume.set_num_workers(2);
  Ask(resume);
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  EXPECT_EQ(Job(id_).state(), JOB_STATE_STARTING);
  PassAndFollow(absl::Seconds(1));
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.lineage(), 2);
  EXPECT_EQ(job.resolved().lanes(), 6);  // as before, or the bits would be others
  EXPECT_EQ(job.workers_size(), 2);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  EXPECT_THAT(starts_.back().orders(), IsEmpty());
  EXPECT_EQ(job.restarts(), 0);
}

TEST_F(RecoveryTest, ASuspendThatWasAnsweredSuspendsNoLaterHistory) {
  Running(1, 1);
  Lead(2);
  Save(2);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Save(4, /*orders=*/{1});
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  Ask(For<job::v1::ResumeJobRequest>());
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  AnswerProbe(workers_[0]);
  ASSERT_EQ(Lineage(), 2);
  Take(stores_[0], ConnectResponse::kStartLineage);
  RefuseBase(2, "1-4");
  PassAndFollow(absl::Milliseconds(500));
  ASSERT_EQ(Lineage(), 3);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-2"));
  ASSERT_THAT(starts_.back().orders(), SizeIs(1));  // beyond 1-2
  EXPECT_FALSE(starts_.back().orders(0).suspend());
  EXPECT_TRUE(starts_.back().orders(0).checkpoint());
}

TEST_F(RecoveryTest, AFailedJobIsRetriedFromItsLastManifest) {
  Running(1, 1);
  Lead(4);
  Save(4);
  node::v1::LeadState& lead = Lead(6);
  lead.set_reason("NonFiniteLoss");
  Beat(stores_[0]);
  ASSERT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  PassAndFollow(absl::Seconds(1));
  Ask(For<job::v1::RetryJobRequest>());
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  EXPECT_EQ(std::get<job::v1::RetryJobResponse>(LastReply().response).from(),
            absl::StrCat("file:///out/", id_, "/1-4"));
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
}

}  // namespace
}  // namespace capstan::coordinator::core
