// Workers that are lost, join or are late; and what a person orders.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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
using ::testing::HasSubstr;
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

// A job that lacks a worker does not look at all nodes with each heartbeat, and misses none.
TEST_F(RecoveryTest, WhoWasAboutToStopAndStaysJoins) {
  Running(2, 1);
  const SessionId third = Worker("w2");
  beats_[third].mutable_heartbeat()->set_leaving_ms(5000);
  Beat(third);
  Do(NodeDisconnected{workers_[1]});
  Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
  Beat(workers_[0]);
  EXPECT_THAT(Take(third, ConnectResponse::kProbe), IsEmpty());
  Beat(workers_[0]);
  beats_[third].mutable_heartbeat()->clear_leaving_ms();
  Beat(third);
  Beat(workers_[0]);
  EXPECT_THAT(Take(third, ConnectResponse::kProbe), SizeIs(1));
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
  EXPECT_EQ(core_.nodes().Find("w1")->slots()[0], id_);
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

// Exit code 0 is no signal.
TEST_F(RecoveryTest, ATaskThatEndsByItselfIsSaidToHaveDoneSo) {
  Running(2, 1);
  node::v1::TaskState& task = Task(workers_[1], id_, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(0);
  Beat(workers_[1]);
  EXPECT_EQ(Job(id_).workers(1).message(), "its task ended with exit code 0");
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

// Meanwhile no task gets lanes back.
class LateTest : public RecoveryTest {
 protected:
  LateTest() : RecoveryTest({.give_back = absl::Hours(1)}) {}
};

TEST_F(LateTest, ALateLaneIsIssuedAgainAndItsWaitDoubles) {
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
            "generation 2: lanes 2,3 go from w1 to w0");  // all that it has
  EXPECT_EQ(Job(id_).events(Job(id_).events_size() - 1).step(), 3);
  // Now w0 is late with it: it goes back after twice the time, since w1 is at this step again.
  for (const SessionId worker : workers_) {
    beats_[worker].mutable_heartbeat()->mutable_tasks(0)->set_generation(2);
    beats_[worker].mutable_heartbeat()->mutable_tasks(0)->set_step(3);
  }
  Pass(absl::Milliseconds(3500), All());
  EXPECT_EQ(Job(id_).generation(), 2);
  Pass(absl::Milliseconds(1000), All());
  EXPECT_EQ(Job(id_).generation(), 3);
}

CoreOptions TwoEvaluationBlocks() {
  CoreOptions options;
  options.resolve = [](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                       const std::string& job_id, const std::string& root) {
    auto resolved = ToyResolve(spec, dataset, job_id, root);
    if (resolved.ok()) resolved->set_evaluation_blocks(2);
    return resolved;
  };
  return options;
}

class LateBlocksTest : public RecoveryTest {
 protected:
  LateBlocksTest() : RecoveryTest(TwoEvaluationBlocks()) {}
};

// The owner of the lane that a block falls to computes it.
TEST_F(LateBlocksTest, ALateEvaluationBlockIsIssuedAgain) {
  Running(2, 1);
  Lead(3);
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(3);
  waiting.add_evaluation_blocks(1);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(2600), All());
  EXPECT_EQ(Job(id_).generation(), 2);
  EXPECT_THAT(EventTypes(id_), Contains("LaneReissued"));
}

// A shard has a part of each lane.
TEST_F(LateTest, LanesThatDifferentShardsLackAreAllIssuedAgain) {
  Running(3, 2);  // two lanes each
  Lead(3);
  for (int shard = 0; shard < 2; ++shard) {
    node::v1::Waiting& waiting =
        *Shard(stores_[static_cast<size_t>(shard)], id_, 0).mutable_waiting();
    waiting.set_step(3);
    waiting.add_lanes(shard == 0 ? 2 : 4);
    Beat(stores_[static_cast<size_t>(shard)]);
  }
  Pass(absl::Milliseconds(2600), All());
  EXPECT_EQ(Job(id_).generation(), 2);
  EXPECT_THAT(core_.Peek(id_)->lineages().Owners(), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST_F(LateTest, AShardThatLacksNothingHidesNoLateLane) {
  Running(2, 2);
  Lead(3);
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(3);
  waiting.add_lanes(3);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(2600), All());
  EXPECT_EQ(Job(id_).generation(), 2);
  EXPECT_THAT(core_.Peek(id_)->lineages().Owners(), ElementsAre(0, 0, 0, 0));
}

// Steps of other times: three times the middle one, 2 s.
TEST_F(LateTest, ALaneIsLateAfterThreeMedianSteps) {
  Running(2, 1);
  int64_t step = 0;
  for (const double seconds : {5.0, 2.0, 1.0, 9.0, 0.5}) {
    Shard(stores_[0], id_, 0).mutable_lead()->set_samples_per_second(16 / seconds);
    Lead(++step);
  }
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(step);
  waiting.add_lanes(3);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(5900), All());
  EXPECT_EQ(Job(id_).generation(), 1);
  Pass(absl::Milliseconds(700), All());
  EXPECT_EQ(Job(id_).generation(), 2);
}

// The step after next begins with the plain wait.
TEST_F(LateTest, TheNextStepBeginsWithTheFirstWait) {
  Running(2, 1);
  Lead(3);
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(3);
  waiting.add_lanes(3);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(2600), All());
  ASSERT_EQ(Job(id_).generation(), 2);
  for (const SessionId worker : workers_) {
    beats_[worker].mutable_heartbeat()->mutable_tasks(0)->set_generation(2);
    beats_[worker].mutable_heartbeat()->mutable_tasks(0)->set_step(4);
  }
  Lead(4);
  Shard(stores_[0], id_, 0).mutable_waiting()->set_step(4);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(2600), All());
  EXPECT_EQ(Job(id_).generation(), 3);
}

// A generation that is about something else does not begin the wait of a lane anew.
TEST_F(LateTest, AJoinerDoesNotPutOffWhatIsLate) {
  job::v1::JobSpec spec = Spec(3, 1);
  spec.mutable_resources()->set_min_workers(2);
  Running(2, 1, spec);
  Lead(3);
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(3);
  waiting.add_lanes(5);
  Beat(stores_[0]);
  Pass(absl::Milliseconds(1500), All());
  workers_.push_back(Worker("w2"));
  AnswerProbe(workers_[2]);
  ASSERT_EQ(Job(id_).generation(), 2);
  Pass(absl::Milliseconds(1000), All());
  EXPECT_THAT(EventTypes(id_), Contains("LaneReissued"));
}

// A lane that the lead measured as late moves at once, with all lanes of its worker.
TEST_F(LateTest, WhatTheLeadSaysIsLateIsIssuedAgainAtOnce) {
  Running(2, 1);
  Lead(3);
  node::v1::ShardState& lead = Shard(stores_[0], id_, 0);
  lead.set_generation(1);
  lead.mutable_waiting()->set_step(3);
  lead.mutable_waiting()->add_lanes(0);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id_).generation(), 1);
  lead.mutable_waiting()->add_late_lanes(0);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id_).generation(), 2);
  EXPECT_THAT(core_.Peek(id_)->lineages().Owners(), ElementsAre(1, 1, 1, 1));
  Beat(stores_[0]);  // it still speaks of the owners before that
  EXPECT_EQ(Job(id_).generation(), 2);
}

// Although another task says that it has written them.
TEST_F(RecoveryTest, OnlyTheOwnerOfLaneZeroReportsTheFinalFiles) {
  Running(2, 1);
  Lead(10).set_complete(true);
  Report(0, 1, 10);
  for (const int rank : {1, 0}) {
    EXPECT_THAT(manifests_, IsEmpty()) << rank;
    node::v1::TaskState& task = Task(workers_[static_cast<size_t>(rank)], id_, rank);
    task.mutable_files()->set_lineage(1);
    task.mutable_files()->set_step(10);
    common::v1::FileInfo* file = task.mutable_files()->add_files();
    file->set_name("weights.safetensors");
    file->set_sha256(std::string(32, 'w'));
    task.set_weights_sha256(std::string(64, rank == 0 ? 'a' : 'f'));
    Beat(workers_[static_cast<size_t>(rank)]);
  }
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_EQ(manifests_[0].weights_sha256, std::string(64, 'a'));
}

TEST_F(RecoveryTest, ASkippedStepIsAnEventAndStaysInTheCount) {
  Running(1, 1);
  Lead(4);
  node::v1::LeadState& lead = Lead(6);
  lead.set_skipped_steps(1);
  lead.set_last_skipped_step(5);
  Beat(stores_[0]);
  Beat(stores_[0]);
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.progress().skipped_steps(), 1);
  EXPECT_EQ(job.events(job.events_size() - 1).type(), "StepSkipped");
  EXPECT_EQ(
      job.events(job.events_size() - 1).message(),
      "step 5: loss or gradient was not finite, the weights stayed as they were; 1 skipped in "
      "all");
  EXPECT_EQ(Saved(id_).progress().progress().skipped_steps(), 1);
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

// That it has taken effect in the new history, too, is all that is new.
TEST_F(RecoveryTest, AnOrderThatIsAppliedAtItsStepAgainIsJournaledForItsLineage) {
  Running(1, 1);
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_learning_rate(0.25);
  Ask(update);
  for (const int64_t lineage : {1, 2}) {
    ASSERT_EQ(Lineage(), lineage);
    node::v1::LeadState& lead = Lead(0);
    lead.add_applied_order_ids(1);
    lead.add_applied_order_steps(0);
    Beat(stores_[0]);
    EXPECT_EQ(Saved(id_).orders(0).lineage(), lineage);
    Restart(0);
    PassAndFollow(absl::Seconds(2));
  }
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
  update.set_max_staleness(2);
  Ask(update);
  EXPECT_TRUE(absl::IsFailedPrecondition(LastReply().status));
  EXPECT_EQ(LastReply().status.message(),
            absl::StrCat("max_staleness: job ", id_,
                         " trains with kvstore 'dist_sync', want 'dist_async'"));
  update.clear_max_staleness();
  update.set_max_restarts(1001);
  Ask(update);
  EXPECT_TRUE(absl::IsInvalidArgument(LastReply().status));
  Ask(For<job::v1::ResumeJobRequest>());
  EXPECT_TRUE(absl::IsFailedPrecondition(LastReply().status));
  Ask(For<job::v1::RetryJobRequest>());
  EXPECT_TRUE(absl::IsFailedPrecondition(LastReply().status));
}

TEST_F(RecoveryTest, AJobThatHasEndedIsNeitherSuspendedNorUpdated) {
  Running(1, 1);
  Cancel(id_);
  PassAndFollow(absl::Seconds(2));
  const std::string ended = absl::StrCat("job ", id_, " has ended: CANCELLED");
  Ask(For<job::v1::SuspendJobRequest>());
  EXPECT_EQ(LastReply().status, absl::FailedPreconditionError(ended));
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_checkpoint(true);
  Ask(update);
  EXPECT_EQ(LastReply().status, absl::FailedPreconditionError(ended));
  EXPECT_THAT(EventTypes(id_), Not(Contains("OrderGiven")));
}

// Its tasks have not ended yet, so its state is the old one still.
TEST_F(RecoveryTest, AJobThatIsBeingCancelledSaysSoAndNotThatItHasEnded) {
  Running(1, 1);
  Cancel(id_);
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  const auto cancelled =
      absl::FailedPreconditionError(absl::StrCat("job ", id_, " is being cancelled"));
  Ask(For<job::v1::SuspendJobRequest>());
  EXPECT_EQ(LastReply().status, cancelled);
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_checkpoint(true);
  Ask(update);
  EXPECT_EQ(LastReply().status, cancelled);
  Ask(For<job::v1::ResumeJobRequest>());
  EXPECT_EQ(LastReply().status, cancelled);
  EXPECT_THAT(EventTypes(id_), Not(Contains("OrderGiven")));
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
                core_.nodes().Find(name)->incarnation());
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
  for (int i = 1; i < CoreOptions().max_changes; ++i) Ask(update);
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
  EXPECT_EQ(core_.nodes().Find("w0")->slots()[0], "");
  EXPECT_TRUE(Saved(id_).wound_down());

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
  EXPECT_EQ(job.resolved().spec().training().global_batch_size(), 16);  // and so is the batch
  EXPECT_EQ(job.workers_size(), 2);
  EXPECT_FALSE(Saved(id_).wound_down());
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  EXPECT_THAT(starts_.back().orders(), IsEmpty());
  EXPECT_EQ(job.restarts(), 0);
}

// The batch that a resumed job writes into its spec is one of those that its step accumulates.
TEST_F(RecoveryTest, AResumedJobKeepsTheBatchesOfItsStep) {
  job::v1::JobSpec spec = Spec(3, 2);
  spec.mutable_training()->set_accumulate_steps(4);
  spec.mutable_training()->set_batch_size_per_worker(1);
  Running(3, 2, spec);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Save(4, /*orders=*/{1});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  PassAndFollow(absl::Seconds(2));
  auto resume = For<job::v1::ResumeJobRequest>();
  resume.set_num_workers(2);
  Ask(resume);
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.resolved().global_batch(), 16);  // of a step, as before
  EXPECT_EQ(job.resolved().spec().training().global_batch_size(), 4);
  EXPECT_EQ(job.resolved().spec().training().accumulate_steps(), 4);
}

// Likewise of a round, whose learning rate only the job file says.
TEST_F(RecoveryTest, AResumedJobKeepsTheBatchesOfItsRound) {
  job::v1::JobSpec spec = Spec(3, 2);
  spec.mutable_kvstore()->set_local_steps(4);
  spec.mutable_training()->set_batch_size_per_worker(1);
  Running(3, 2, spec);
  auto update = For<job::v1::UpdateJobRequest>();
  update.set_learning_rate(0.5);
  Ask(update);
  EXPECT_EQ(LastReply().status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(LastReply().status.message(), HasSubstr("has kvstore.local_steps 4"));
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Save(4, /*orders=*/{1});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  PassAndFollow(absl::Seconds(2));
  auto resume = For<job::v1::ResumeJobRequest>();
  resume.set_num_workers(2);
  Ask(resume);
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.resolved().global_batch(), 16);
  EXPECT_EQ(job.resolved().spec().training().global_batch_size(), 4);
}

TEST_F(RecoveryTest, WhatATaskSaysOfItselfCountsAlsoWhileItsJobRests) {
  Running(1, 1);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Save(4, /*orders=*/{1});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
  node::v1::TaskState& task = Task(workers_[0], id_, 0);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("DataMissing");
  Beat(workers_[0]);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "DataMissing");
}

// Nothing was computed yet: numbers are those of the job file, or of the resume.
TEST_F(RecoveryTest, AJobThatNeverStartedIsResumedWithTheNumbersThatWereGiven) {
  id_ = Submit(Spec(2, 3));
  for (const int shards : {0, 5}) {
    Ask(For<job::v1::SuspendJobRequest>());
    ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
    EXPECT_EQ(std::get<job::v1::SuspendJobResponse>(LastReply().response).state(),
              JOB_STATE_SUSPENDED);
    auto resume = For<job::v1::ResumeJobRequest>();
    if (shards > 0) resume.set_num_shards(shards);
    Ask(resume);
    ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
    EXPECT_EQ(Job(id_).spec().resources().num_workers(), 2);
    EXPECT_EQ(Job(id_).spec().resources().num_shards(), shards > 0 ? shards : 3);
  }
}

TEST_F(RecoveryTest, AnOrderForAJobThatIsNotThereNamesIt) {
  id_ = "toy-none";
  Ask(For<job::v1::SuspendJobRequest>());
  EXPECT_EQ(LastReply().status, absl::NotFoundError("no job toy-none"));
}

// min_workers of the job file holds for fewer and for more workers.
TEST_F(RecoveryTest, AResumedJobIsAsElasticAsItWasSubmitted) {
  job::v1::JobSpec spec = Spec(3, 1);
  spec.mutable_resources()->set_min_workers(1);
  Running(3, 1, spec);
  int order = 0;
  for (const int workers : {1, 3, 2}) {
    Ask(For<job::v1::SuspendJobRequest>());
    std::vector<int64_t> orders;
    for (++order; static_cast<int>(orders.size()) < order;) {
      orders.push_back(static_cast<int64_t>(orders.size()) + 1);
    }
    Lead(2 + order).set_suspended(true);
    Beat(stores_[0]);
    Save(2 + order, orders);
    ASSERT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
    PassAndFollow(absl::Seconds(2));
    auto resume = For<job::v1::ResumeJobRequest>();
    resume.set_num_workers(workers);
    Ask(resume);
    ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
    EXPECT_EQ(Job(id_).resolved().spec().resources().min_workers(), 1) << workers;
    PassAndFollow(absl::Seconds(2));
    ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  }
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

TEST_F(RecoveryTest, WhoJoinsIsOfTheVersionOfTheOthers) {
  Running(2, 1);
  Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
  const SessionId newer = Connect("w2", common::v1::ROLE_WORKER, 0, 1, "9.0.0");
  Pass(absl::Seconds(2), {workers_[0], stores_[0], newer});
  EXPECT_THAT(Take(newer, ConnectResponse::kProbe), IsEmpty());
  const SessionId same = Worker("w3");
  EXPECT_THAT(Take(same, ConnectResponse::kProbe), SizeIs(1));
  // Nor takes a param_store the place of one of another version.
  Do(NodeDisconnected{stores_[0], /*goodbye=*/true});
  const SessionId store = Connect("s1", common::v1::ROLE_PARAM_STORE, 0, 1, "9.0.0");
  Pass(absl::Seconds(10), {workers_[0], newer, same, store});
  EXPECT_THAT(Take(store, ConnectResponse::kStartLineage), IsEmpty());
  EXPECT_THAT(Job(id_).message(), HasSubstr("param_store s1 is of version 9.0.0, the job's others "
                                            "are of none"));
  const SessionId fitting = Store("s2");
  Pass(absl::Seconds(1), {workers_[0], newer, same, store, fitting});
  EXPECT_THAT(Take(fitting, ConnectResponse::kStartLineage), Not(IsEmpty()));
}

TEST_F(RecoveryTest, OfTheLostWorkersTheLastSixteenAreRemembered) {
  Running(2, 1);
  for (int i = 0; i < 25; ++i) {
    Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
    workers_[1] = Worker(absl::StrCat("x", i));
    PassAndFollow(absl::Seconds(1));
  }
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  ASSERT_THAT(job.workers(), SizeIs(2 + 16));
  EXPECT_EQ(job.workers_left_out(), 25 - 16);
  EXPECT_EQ(job.workers(0).index(), 0);
  EXPECT_EQ(job.workers(1).index(), 10);
  EXPECT_EQ(job.workers(1).node(), "x8");
  EXPECT_EQ(job.workers(17).index(), 26);
  EXPECT_THAT(Saved(id_).ranks(), SizeIs(2 + 16));
  EXPECT_TRUE(core_.Peek(id_)->tasks()[9].node.empty());

  // Another coordinator knows the same, and finds the living one by its rank.
  World next;
  next.journal_ = journal_;
  ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Do(Restored{});
  ASSERT_THAT(next.Job(id_).workers(), SizeIs(2 + 16));
  EXPECT_EQ(next.Job(id_).workers_left_out(), 25 - 16);
  const Node* const node = next.core_.nodes().Find("x24");
  ASSERT_NE(node, nullptr);
  const SessionId session = next.Connect("x24", common::v1::ROLE_WORKER, node->incarnation());
  node::v1::TaskState& task = next.Task(session, id_, 26);
  task.set_phase(node::v1::TASK_PHASE_RUNNING);
  next.Beat(session);
  EXPECT_TRUE(next.Take(session, ConnectResponse::kStopTask).empty());
  EXPECT_EQ(next.Job(id_).workers(17).state(), "RUNNING");
}

// Such a worker gets no lanes. Told once, again after it has kept up; numbers that cannot be say
// nothing.
TEST_F(RecoveryTest, AWorkerThatTakesWeightsTooSlowlyIsNamed) {
  Running(2, 1);
  const std::string id = id_;
  const auto told = [&] {
    const auto types = EventTypes(id);
    return std::count(types.begin(), types.end(), "WorkerBehind");
  };
  node::v1::LeadState& lead = *Shard(stores_[0], id, 0).mutable_lead();
  lead.set_lineage(1);
  lead.set_step(1);
  node::v1::SlowReader& reader = *lead.add_slow_readers();
  lead.add_slow_readers()->set_rank(77);
  lead.mutable_slow_readers(1)->set_missed_versions(1000);
  reader.set_rank(1);
  for (const int64_t missed : {1, 9}) {
    reader.set_missed_versions(missed);
    Beat(stores_[0]);
    EXPECT_EQ(told(), 0) << missed;
  }
  for (const int64_t missed : {10, 11, 50}) {
    reader.set_missed_versions(missed);
    Beat(stores_[0]);
    EXPECT_EQ(told(), 1) << missed;
  }
  EXPECT_THAT(Job(id).events(Job(id).events_size() - 1).message(),
              HasSubstr("needs longer than a step to take the weights; 10 versions were left out"));
  lead.clear_slow_readers();
  Beat(stores_[0]);
  lead.add_slow_readers()->set_rank(1);
  lead.mutable_slow_readers(0)->set_missed_versions(12);
  Beat(stores_[0]);
  EXPECT_EQ(told(), 2);
}

}  // namespace
}  // namespace capstan::coordinator::core
