// Checkpoints of a running job, and the lineages that follow a lost shard.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// ---- checkpoints of a running job ----

TEST_F(RecoveryTest, AVersionIsACheckpointOnceAllShardsHaveIt) {
  Running(2, 2);
  Lead(4);
  Report(0, 1, 4);
  EXPECT_THAT(manifests_, IsEmpty());
  Report(1, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_EQ(manifests_[0].folder, absl::StrCat("/out/", id_, "/1-4"));
  EXPECT_EQ(manifests_[0].samples_used, 64);
  EXPECT_THAT(manifests_[0].files, SizeIs(2));
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kFilesTaken), IsEmpty());
  Written();
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  ASSERT_THAT(Job(id_).checkpoints(), SizeIs(1));
  EXPECT_EQ(Job(id_).checkpoints(0).id(), "1-4");
  const auto taken = Take(stores_[1], ConnectResponse::kFilesTaken);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].files_taken().step(), 4);
  // Told again while it is reported again, and no second manifest is made of it.
  Pass(absl::Milliseconds(1050), All());
  EXPECT_THAT(Take(stores_[1], ConnectResponse::kFilesTaken), SizeIs(2));
  EXPECT_THAT(manifests_, SizeIs(1));
}

TEST_F(RecoveryTest, AnAbandonedCheckpointIsSaidAndTheNextClearsIt) {
  Running(1, 2);
  Lead(4);
  Report(0, 1, 4);
  Report(1, 1, 4, "no space left on device");
  EXPECT_THAT(manifests_, IsEmpty());
  EXPECT_THAT(Job(id_).conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointFailed"));
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kFilesTaken), SizeIs(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  Save(5);
  EXPECT_THAT(Job(id_).conditions(), IsEmpty());
}

TEST_F(RecoveryTest, AStrictJobFailsWithItsCheckpoint) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_checkpoint()->set_strict(true);
  Running(1, 1, spec);
  Lead(4);
  Report(0, 1, 4, "no space left on device");
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_THAT(Job(id_).message(), HasSubstr("shard 0 on host host-s0: no space left on device"));
}

TEST_F(RecoveryTest, OnlyTheNewestAndTheBestAreKept) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_checkpoint()->set_keep_latest(2);
  spec.mutable_checkpoint()->set_keep_best(1);
  Running(1, 1, spec);
  common::v1::EpochRecord* epoch = Lead(5).add_epochs();
  epoch->set_epoch(1);
  epoch->set_validation_accuracy(0.75);
  Lead(5);
  for (const int64_t step : {4, 5, 6, 7, 8}) Save(step);
  std::vector<std::string> kept;
  const job::v1::Job job = Job(id_);
  for (const auto& saved : job.checkpoints()) kept.push_back(saved.id());
  EXPECT_THAT(kept, ElementsAre("1-8", "1-7", "1-5"));
  EXPECT_EQ(job.checkpoints(0).committed_at().seconds(),
            absl::ToUnixSeconds(absl::FromUnixSeconds(1000) + now_));
  EXPECT_TRUE(job.checkpoints(2).best());
  EXPECT_EQ(job.checkpoints(2).metric(), 0.75);
  EXPECT_THAT(sweeps_.back().keep, ElementsAre("1-5", "1-7", "1-8"));
  EXPECT_EQ(sweeps_.back().step, 8);
}

// `capstan checkpoint export JOB@best` would send it.
TEST_F(RecoveryTest, ADamagedCheckpointIsNoLongerTheBest) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_checkpoint()->set_keep_best(1);
  Running(1, 1, spec);
  common::v1::EpochRecord* epoch = Lead(5).add_epochs();
  epoch->set_epoch(1);
  epoch->set_validation_accuracy(0.75);
  Lead(5);
  for (const int64_t step : {4, 5}) Save(step);
  ASSERT_EQ(Job(id_).checkpoints(0).id(), "1-5");
  ASSERT_TRUE(Job(id_).checkpoints(0).best());
  Restart(0);
  Pass(absl::Seconds(2), All());
  ASSERT_EQ(Lineage(), 2);
  RefuseBase(2, "1-5");
  const job::v1::Job job = Job(id_);
  for (const auto& saved : job.checkpoints()) EXPECT_FALSE(saved.best()) << saved.id();
}

TEST_F(RecoveryTest, AManifestThatCannotBeWrittenIsGivenUp) {
  Running(1, 2);
  Lead(4);
  Report(0, 1, 4);
  Report(1, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  Written(absl::UnavailableError("no space left on device"));
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_THAT(job.conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  EXPECT_EQ(job.events(job.events_size() - 1).type(), "CheckpointFailed");
  EXPECT_EQ(job.events(job.events_size() - 1).message(), "step 4: no space left on device");
  const auto taken = Take(stores_[1], ConnectResponse::kFilesTaken);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].files_taken().step(), 4);
  Pass(absl::Seconds(2), All());  // its files are reported still
  EXPECT_THAT(manifests_, SizeIs(1));
  EXPECT_THAT(Job(id_).checkpoints(), IsEmpty());
}

// As after a restart of the coordinator, which forgets that a version was given up.
TEST_F(RecoveryTest, AVersionThatOneShardHasLetGoHoldsUpNoLaterOne) {
  Running(1, 2);
  Lead(5);
  Report(1, 1, 4);
  EXPECT_THAT(Job(id_).conditions(), IsEmpty());
  Report(0, 1, 5);
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.events(job.events_size() - 1).type(), "CheckpointFailed");
  EXPECT_EQ(job.events(job.events_size() - 1).message(),
            "step 4: shard 0 on host host-s0: has let it go");
  const auto taken = Take(stores_[1], ConnectResponse::kFilesTaken);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].files_taken().step(), 4);
  Report(1, 1, 5);
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_EQ(manifests_[0].step, 5);
}

// No job could go on from such a checkpoint.
TEST_F(RecoveryTest, ALeadSnapshotThatIsNoneEndsTheJob) {
  Running(1, 1);
  Lead(4);
  node::v1::WrittenFiles& files = *Shard(stores_[0], id_, 0).mutable_files();
  files.set_lineage(1);
  files.set_step(4);
  common::v1::FileInfo* file = files.add_files();
  file->set_name("shard-0.safetensors");
  file->set_size_bytes(100);
  file->set_sha256(std::string(32, 'h'));
  files.set_lead_snapshot("no snapshot");
  Beat(stores_[0]);
  EXPECT_THAT(manifests_, IsEmpty());
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "InternalError");
  EXPECT_EQ(Job(id_).message(), "the lead's snapshot is none");
}

CoreOptions StepsPerEpoch(int64_t steps) {
  CoreOptions options;
  options.resolve = [steps](const job::v1::JobSpec& spec, const common::v1::DatasetInfo& dataset,
                            const std::string& job_id, const std::string& root) {
    auto resolved = ToyResolve(spec, dataset, job_id, root);
    if (resolved.ok()) resolved->set_steps_per_epoch(steps);
    return resolved;
  };
  return options;
}

class OneStepEpochsTest : public RecoveryTest {
 protected:
  OneStepEpochsTest() : RecoveryTest(StepsPerEpoch(1)) {}
};

// Of a loss the smallest is the best.
TEST_F(OneStepEpochsTest, TheBestMayBeThatOfTheSmallestLoss) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_evaluation()->set_metric("loss");
  spec.mutable_checkpoint()->set_keep_latest(1);
  spec.mutable_checkpoint()->set_keep_best(1);
  Running(1, 1, spec);
  const double losses[] = {0.5, 0.25, 0.75};
  for (int32_t i = 0; i < 3; ++i) {
    common::v1::EpochRecord* epoch = Lead(4 + i).add_epochs();
    epoch->set_epoch(4 + i);
    epoch->set_validation_loss(losses[i]);
    epoch->set_validation_accuracy(losses[i]);
    Lead(4 + i);
    Save(4 + i);
  }
  const job::v1::Job job = Job(id_);
  ASSERT_THAT(job.checkpoints(), SizeIs(2));
  EXPECT_EQ(job.checkpoints(0).step(), 6);
  EXPECT_EQ(job.checkpoints(0).metric(), 0.75);
  EXPECT_FALSE(job.checkpoints(0).best());
  EXPECT_EQ(job.checkpoints(1).step(), 5);
  EXPECT_EQ(job.checkpoints(1).metric(), 0.25);
  EXPECT_TRUE(job.checkpoints(1).best());
  EXPECT_TRUE(job.checkpoints(1).smaller_is_better());
}

TEST_F(OneStepEpochsTest, EveryCheckpointHasTheMetricOfItsStep) {
  Running(1, 1);
  common::v1::EpochRecord* epoch = Lead(4).add_epochs();
  epoch->set_epoch(4);
  epoch->set_validation_accuracy(0.5);
  Lead(4);
  Save(4);
  ASSERT_THAT(Job(id_).checkpoints(), SizeIs(1));
  EXPECT_EQ(Job(id_).checkpoints(0).metric(), 0.5);
}

class EpochlessTest : public RecoveryTest {
 protected:
  EpochlessTest() : RecoveryTest(StepsPerEpoch(0)) {}
};

// Nor does the coordinator, with all its other jobs, end by a division.
TEST_F(EpochlessTest, AJobWithoutEpochsHasNoMetricAndGoesOn) {
  Running(1, 1);
  Lead(4);
  Save(4);
  ASSERT_THAT(Job(id_).checkpoints(), SizeIs(1));
  EXPECT_FALSE(Job(id_).checkpoints(0).has_metric());
  EXPECT_EQ(Job(id_).progress().epoch(), 1);
  Restart(0);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// ---- a shard is lost ----

TEST_F(RecoveryTest, AShardThatLostItsMemoryCostsTheStepsSinceTheManifest) {
  Running(2, 2);
  Lead(4);
  Save(4);
  Lead(6);
  const size_t begun = starts_.size();
  Restart(1);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(id_).reason(), "ShardLost");
  const job::v1::Event lost = Job(id_).events(Job(id_).events_size() - 1);
  EXPECT_EQ(lost.type(), "ShardLost");
  EXPECT_EQ(lost.message(), "shard 1 on host host-s1: its service has started anew");
  EXPECT_EQ(Lineage(), 1);  // backs off first
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).generation(), 2);
  EXPECT_EQ(Job(id_).restarts(), 1);
  EXPECT_EQ(Job(id_).progress().step(), 4);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  ASSERT_GT(starts_.size(), begun);
  for (size_t i = begun; i < starts_.size(); ++i) {
    EXPECT_EQ(starts_[i].base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  }
  // The tasks live on: they were told by a view, not started anew.
  EXPECT_EQ(Task(workers_[0], id_, 0).lineage(), 2);
  EXPECT_THAT(Job(id_).workers(), SizeIs(2));
}

TEST_F(RecoveryTest, WithoutAManifestItBeginsAgain) {
  Running(1, 1);
  Lead(3);
  Restart(0);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(starts_.back().base_manifest(), "");
  EXPECT_EQ(Job(id_).progress().step(), 0);
}

TEST_F(RecoveryTest, TwoShardsAtOnceAreOneRestart) {
  Running(2, 3);
  Restart(1);
  Restart(2);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).restarts(), 1);
}

TEST_F(RecoveryTest, AnyFreeParamStoreWillDo) {
  Running(1, 1);
  const SessionId other = Store("other");
  Pass(absl::Seconds(7), {workers_[0], other});  // its lease lapses
  EXPECT_EQ(Job(id_).shards(0).node(), "other");
  const auto starts = Take(other, ConnectResponse::kStartLineage);
  ASSERT_THAT(starts, Not(IsEmpty()));
  EXPECT_EQ(starts[0].start_lineage().view().shards(0).address(), "unix:/other");
  // The old process comes back: it has no business here.
  Beat(stores_[0]);
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kEndJob), SizeIs(1));
}

TEST_F(RecoveryTest, AShardThatComesBackWithItsMemoryCostsNothing) {
  Running(1, 1);
  Lead(3);
  Pass(absl::Seconds(6), {workers_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_GT(core_.NextDeadline(), now_);  // it does not spin while it waits
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Lineage(), 1);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(RecoveryTest, ARecoveryThatIsOverHasNoTimeThatRuns) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->set_backoff_initial_seconds(0.25);
  Running(1, 1, spec);
  Beat(stores_[0]);
  Pass(CoreOptions().lease, {workers_[0]});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(core_.NextDeadline(), now_ + absl::Milliseconds(250));
  Beat(stores_[0]);
  ASSERT_THAT(EventTypes(id_), Contains("ShardBack"));
  EXPECT_EQ(core_.NextDeadline(), now_ + CoreOptions().resend);
}

TEST_F(RecoveryTest, NoLineageBeginsWhileALinkIsInFlight) {
  Running(1, 2);
  Lead(4);
  Report(0, 1, 4);
  Report(1, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  Restart(1);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Lineage(), 1);
  Written();
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
}

// Its disk hangs: the manifest is neither written nor refused.
TEST_F(RecoveryTest, AManifestThatNeverComesHoldsUpNoCancel) {
  Running(1, 2);
  Lead(4);
  Report(0, 1, 4);
  Report(1, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  Cancel(id_);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), Not(IsEmpty()));
  Forget(workers_[0]);
  PassAndFollow(absl::Seconds(110));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);  // what is on disk decides
  EXPECT_THAT(Job(id_).message(), HasSubstr("its manifest"));
  PassAndFollow(absl::Seconds(15));
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
  Written();  // late
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
}

TEST_F(RecoveryTest, AManifestThatNeverComesEndsByTheLimitsOfTheJob) {
  Running(1, 2);
  Lead(4);
  Report(0, 1, 4);
  Report(1, 1, 4);
  Restart(1);
  PassAndFollow(absl::Seconds(280));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  PassAndFollow(absl::Seconds(40));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "ShardLost");
}

TEST_F(RecoveryTest, TheVersionOfASuspendIsOwedAlsoWhereItsErrorIsHeardBeforeTheLead) {
  Running(1, 2);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(3);
  Report(1, 1, 4, "no space left on device");
  EXPECT_THAT(Job(id_).conditions(), IsEmpty());  // not known yet whether it is given up
  node::v1::LeadState& lead = *Shard(stores_[0], id_, 0).mutable_lead();
  lead.set_step(4);
  lead.set_suspended(true);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {1});
  EXPECT_THAT(Job(id_).conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  Report(1, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  Written();
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_SUSPENDED);
}

// Nothing else can suspend this job.
TEST_F(RecoveryTest, TheManifestOfASuspendIsTriedAgain) {
  Running(1, 2);
  Ask(For<job::v1::SuspendJobRequest>());
  Lead(4).set_suspended(true);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {1});
  Report(1, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  Written(absl::UnavailableError("no space left on device"));
  Pass(absl::Milliseconds(900), All());
  EXPECT_THAT(manifests_, SizeIs(1));  // a second later
  EXPECT_THAT(Job(id_).conditions(), IsEmpty());
  Pass(absl::Milliseconds(200), All());
  ASSERT_THAT(manifests_, SizeIs(2));
  EXPECT_EQ(manifests_[1].folder, manifests_[0].folder);
  Written();
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_SUSPENDED);
  ASSERT_EQ(Saved(id_).manifests_size(), 1);
  EXPECT_THAT(Saved(id_).manifests(0).saved().files(), SizeIs(2));  // each of them once
  EXPECT_EQ(Saved(id_).manifests(0).saved().size_bytes(), 200);
}

TEST_F(RecoveryTest, FilesOfAnOldLineageNeverCommitAndTheNewestIsByLineage) {
  Running(1, 2);
  Lead(8);
  Report(0, 1, 8);  // the other one's is not there when shard 1 dies
  Restart(1);
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Lineage(), 2);
  Report(0, 1, 8);
  Report(1, 1, 8);
  EXPECT_THAT(manifests_, IsEmpty());
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kFilesTaken), Not(IsEmpty()));  // let it go
  Lead(2);
  Save(2);
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/2-2"));
}

TEST_F(RecoveryTest, ADamagedManifestIsRefusedAndAnOlderOneTaken) {
  Running(1, 1);
  Lead(2);
  Save(2);
  Lead(4);
  Save(4);
  Restart(0);
  Pass(absl::Seconds(2), All());
  ASSERT_EQ(Lineage(), 2);
  Take(stores_[0], ConnectResponse::kStartLineage);
  RefuseBase(2, "1-4");
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointRefused"));
  Pass(absl::Milliseconds(100), {workers_[0]});
  EXPECT_EQ(Lineage(), 3);
  EXPECT_EQ(Job(id_).restarts(), 1);  // that was one restart
  const auto starts = Take(stores_[0], ConnectResponse::kStartLineage);
  ASSERT_THAT(starts, Not(IsEmpty()));
  EXPECT_EQ(starts[0].start_lineage().base_manifest(), absl::StrCat("/out/", id_, "/1-2"));
  // All are damaged: nothing is loaded, and nothing is thrown away.
  RefuseBase(3, "1-2");
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "CheckpointCorrupt");
}

// A job that lost all its workers runs again when the new one does.
TEST_F(RecoveryTest, AJobRunsNoSoonerThanATaskOfIt) {
  Running(1, 1);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  workers_ = {Worker("w9")};
  for (int i = 0; i < 4; ++i) {
    AnswerProbe(workers_[0]);
    Pass(absl::Milliseconds(200), All());
    EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  }
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStartTask), Not(IsEmpty()));
  Task(workers_[0], id_, 1).set_phase(node::v1::TASK_PHASE_RUNNING);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

TEST_F(RecoveryTest, AShardStartsUntilItIsReady) {
  Running(1, 1);
  EXPECT_EQ(Job(id_).shards(0).state(), "RUNNING");
  Shard(stores_[0], id_, 0).set_ready(false);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id_).shards(0).state(), "STARTING");
}

TEST_F(RecoveryTest, WhatALeadDoesNotMeasureAnyMoreIsNotShown) {
  Running(1, 1);
  Lead(1).set_accuracy(0.5);
  Lead(2);
  EXPECT_EQ(Job(id_).progress().accuracy(), 0.5);
  Lead(2).clear_accuracy();
  Lead(3);
  EXPECT_FALSE(Job(id_).progress().has_accuracy());
}

// The next lineage waits for a shard; heartbeats say the same again and again meanwhile.
TEST_F(RecoveryTest, AManifestIsRefusedOnce) {
  Running(1, 2);
  Lead(2);
  Save(2);
  Lead(4);
  Save(4);
  Restart(0);
  Pass(absl::Seconds(2), All());
  ASSERT_EQ(Lineage(), 2);
  Do(NodeDisconnected{stores_[1], /*goodbye=*/true});
  stores_.pop_back();
  RefuseBase(2, "1-4");
  for (int i = 0; i < 3; ++i) Beat(stores_[0]);
  const std::vector<std::string> types = EventTypes(id_);
  EXPECT_LE(std::count(types.begin(), types.end(), "CheckpointRefused"), 1);
}

TEST_F(RecoveryTest, RestartsAreCountedAndBackOff) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->set_max_restarts(2);
  spec.mutable_recovery()->set_backoff_initial_seconds(4);
  Running(1, 1, spec);
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Lineage(), 1);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 2);
  Restart(0);
  PassAndFollow(absl::Seconds(7));
  EXPECT_EQ(Lineage(), 2);
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 3);
  Restart(0);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "MaxRestartsExceeded");
  EXPECT_THAT(Job(id_).message(), HasSubstr("its service has started anew"));
}

TEST_F(RecoveryTest, AShardLostDuringTheStartBeginsItAgain) {
  workers_ = {Worker("w0")};
  stores_ = {Store("s0")};
  id_ = Submit(Spec(1, 1));
  AnswerProbe(workers_[0]);
  ASSERT_EQ(Lineage(), 1);
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// The cluster is away for longer than the job may stand still: it waits for another gang, and goes
// on from its last checkpoint. Nothing of that is the job's fault.
TEST_F(RecoveryTest, AJobWhoseClusterIsAwayGoesOnWhenItIsBack) {
  job::v1::JobSpec spec = Spec(2, 2);
  spec.mutable_recovery()->set_max_restarts(1);
  spec.mutable_limits()->set_active_deadline_seconds(1000);
  Running(2, 2, spec);
  Lead(4);
  Save(4);
  Lead(6);
  for (const SessionId session : All()) Do(NodeDisconnected{session});
  Pass(absl::Seconds(290));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Pass(absl::Seconds(30));
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_PENDING);
  EXPECT_EQ(Job(id_).reason(), "GangLost");
  EXPECT_THAT(Job(id_).shards(), IsEmpty());
  EXPECT_THAT(EventTypes(id_), Contains("GangLost"));
  Pass(absl::Hours(2));  // in the queue its deadline does not run
  EXPECT_EQ(Job(id_).reason(), "GangLost");
  workers_ = {Worker("w0"), Worker("w1")};
  stores_ = {Store("s0"), Store("s1")};
  PassAndFollow(absl::Seconds(3));
  const job::v1::Job job = Job(id_);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.lineage(), 2);
  EXPECT_EQ(job.progress().step(), 4);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  // Before it some 310 s had run.
  PassAndFollow(absl::Seconds(250));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  Lead(5);
  PassAndFollow(absl::Seconds(250));
  Lead(6);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  PassAndFollow(absl::Seconds(230));
  EXPECT_EQ(Job(id_).reason(), "DeadlineExceeded");
}

// The fourth shard in a week is not the fourth in a row.
TEST_F(RecoveryTest, RestartsAreForgivenOnceTheJobIsBeyondThem) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->set_max_restarts(1);
  spec.mutable_limits()->set_stall_timeout_seconds(0);
  Running(1, 1, spec);
  Lead(2);
  for (int fault = 1; fault <= 3; ++fault) {
    Restart(0);
    PassAndFollow(absl::Seconds(3));
    ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING) << fault;
    EXPECT_EQ(Job(id_).restarts(), 1);
    Lead(1 + fault);  // the same step: it may be what makes the job fail
    PassAndFollow(absl::Minutes(11));
    EXPECT_EQ(Job(id_).restarts(), 1);
    Lead(2 + fault);
    PassAndFollow(absl::Minutes(9));
    EXPECT_EQ(Job(id_).restarts(), 1);
    PassAndFollow(absl::Minutes(2));
    EXPECT_EQ(Job(id_).restarts(), 0);
    EXPECT_EQ(Saved(id_).restarts(), 0);
  }
  EXPECT_THAT(EventTypes(id_), Contains("RestartsForgiven"));
  Restart(0);
  PassAndFollow(absl::Seconds(3));
  Restart(0);
  EXPECT_EQ(Job(id_).reason(), "MaxRestartsExceeded");
}

// How long the job had stood still before the fault does not count against its recovery.
TEST_F(RecoveryTest, ALostShardHasTheWholeTimeToBeReplaced) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->set_backoff_initial_seconds(0);
  spec.mutable_limits()->set_stall_timeout_seconds(30);
  Running(1, 1, spec);
  Lead(4);
  Pass(absl::Seconds(20), All());
  Do(NodeDisconnected{stores_[0], /*goodbye=*/true});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Pass(absl::Seconds(20), {workers_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Pass(absl::Seconds(11), {workers_[0]});
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_PENDING);
  EXPECT_EQ(Job(id_).reason(), "GangLost");
}

TEST_F(RecoveryTest, AndSoHasOneThatFellSilent) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->set_backoff_initial_seconds(0);
  spec.mutable_limits()->set_stall_timeout_seconds(30);
  Running(1, 1, spec);
  Lead(4);
  Pass(absl::Seconds(20), All());
  Pass(absl::Seconds(6), {workers_[0]});
  ASSERT_EQ(Job(id_).reason(), "ShardLost");
  Pass(absl::Seconds(20), {workers_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Pass(absl::Seconds(11), {workers_[0]});
  EXPECT_EQ(Job(id_).reason(), "GangLost");
}

// Another process than the one that the job knows by this name says that it holds what the first
// one held: it is told to let go of it.
TEST_F(RecoveryTest, WhoHasTheNameOfAMemberIsNotTheMember) {
  Running(2, 1);
  Do(NodeDisconnected{workers_[0]});
  workers_[0] = Worker("w0");
  Task(workers_[0], id_, 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  Beat(workers_[0]);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  EXPECT_EQ(Job(id_).workers(0).state(), "FAILED");
  Restart(0);
  Shard(stores_[0], id_, 0).set_ready(true);
  Beat(stores_[0]);
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kEndJob), SizeIs(1));
  EXPECT_EQ(Job(id_).shards(0).state(), "FAILED");
  Forget(workers_[0]);
  Forget(stores_[0]);
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

TEST_F(RecoveryTest, AShardThatGoesAfterTheEndIsNoLoss) {
  Running(1, 1);
  Lead(6).set_reason("NonFiniteLoss");
  Beat(stores_[0]);
  ASSERT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  Do(NodeDisconnected{stores_[0], /*goodbye=*/true});
  EXPECT_EQ(Job(id_).reason(), "NonFiniteLoss");
  EXPECT_THAT(EventTypes(id_), Not(Contains("ShardLost")));
  EXPECT_EQ(Job(id_).shards(0).message(), "");
}

TEST_F(RecoveryTest, AShardThatGoesWhileTheJobIsCancelledIsNoLoss) {
  Running(1, 1);
  Cancel(id_);
  Do(NodeDisconnected{stores_[0], /*goodbye=*/true});
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RUNNING);  // its task is waited for
  EXPECT_THAT(EventTypes(id_), Not(Contains("ShardLost")));
  Forget(workers_[0]);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(id_).restarts(), 0);
}

}  // namespace
}  // namespace capstan::coordinator::core
