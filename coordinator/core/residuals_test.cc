// Jobs with error feedback: what it has left out is in checkpoints, and lanes change their owners only
// through one (recovery.residuals: rollback). Or it is lost, and people are told (drop).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_SUSPENDED;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class ResidualsTest : public RecoveryTest {
 protected:
  static job::v1::JobSpec Feedback(int workers, const std::string& residuals = "rollback") {
    job::v1::JobSpec spec = Spec(workers, 1);
    spec.mutable_kvstore()->mutable_gradient_compression()->set_type("2bit");
    spec.mutable_recovery()->set_residuals(residuals);
    return spec;
  }
  node::v1::WrittenFiles& FilesOf(int worker) {
    return *Task(workers_[static_cast<size_t>(worker)], id_, worker).mutable_files();
  }
  void ReportResiduals(int worker, int64_t step, const std::string& error = "") {
    node::v1::WrittenFiles& files = FilesOf(worker);
    files.Clear();
    files.set_lineage(Lineage());
    files.set_step(step);
    files.set_error(error);
    if (error.empty()) {
      common::v1::FileInfo* const file = files.add_files();
      file->set_name(absl::StrCat("residuals-", worker, ".safetensors"));
      file->set_size_bytes(400);
      file->set_sha256(std::string(32, 'r'));
    }
    Beat(workers_[static_cast<size_t>(worker)]);
  }
  // A checkpoint of two workers.
  void SaveWithResiduals(int64_t step, const std::vector<int64_t>& orders = {}) {
    Report(0, Lineage(), step, "", orders);
    ReportResiduals(0, step);
    ReportResiduals(1, step);
    Written();
  }
  std::vector<int32_t> Owners() {
    const auto& owners = core_.Peek(id_)->view().lane_owners();
    return {owners.begin(), owners.end()};
  }
  std::vector<std::string> FileNames() const {
    std::vector<std::string> names;
    for (const common::v1::FileInfo& file : manifests_.back().files) names.push_back(file.name());
    return names;
  }
  void AtStep(int64_t step) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      Task(workers_[i], id_, static_cast<int>(i)).set_step(step);
    }
    Lead(step);
  }
  void StepsTake(double seconds) {
    Shard(stores_[0], id_, 0).mutable_lead()->set_samples_per_second(16 / seconds);
  }
  // The shard waits for these lanes of the step.
  void WaitFor(int64_t step, const std::vector<int32_t>& lanes) {
    node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
    waiting.Clear();
    waiting.set_step(step);
    for (const int32_t lane : lanes) waiting.add_lanes(lane);
    Shard(stores_[0], id_, 0).set_generation(core_.Peek(id_)->view().generation());
    Beat(stores_[0]);
  }
  std::string LastEvent(const std::string& type) {
    std::string message;
    const job::v1::Job job = Job(id_);
    for (const auto& event : job.events()) {
      if (event.type() == type) message = event.message();
    }
    return message;
  }
};

TEST_F(ResidualsTest, AManifestHasTheResidualsOfEveryOwner) {
  Running(2, 1, Feedback(2));
  AtStep(4);
  Report(0, 1, 4);
  EXPECT_THAT(manifests_, IsEmpty());
  ReportResiduals(1, 4);
  EXPECT_THAT(manifests_, IsEmpty());
  ReportResiduals(0, 4);
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_THAT(FileNames(), ElementsAre("residuals-0.safetensors", "residuals-1.safetensors",
                                       "shard-0.safetensors"));
  Written();
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointSaved"));
  Pass(absl::Seconds(1), All());
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kFilesTaken), Not(IsEmpty()));
}

TEST_F(ResidualsTest, ACheckpointWithoutTheResidualsOfALaneIsGivenUp) {
  Running(2, 1, Feedback(2));
  AtStep(4);
  Report(0, 1, 4);
  ReportResiduals(0, 4);
  ReportResiduals(1, 4, "no space left on /out");
  EXPECT_THAT(manifests_, IsEmpty());
  EXPECT_EQ(LastEvent("CheckpointFailed"),
            "step 4: worker w1 on host host-w1: no space left on /out");
  // The next one is whole.
  AtStep(6);
  SaveWithResiduals(6);
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_EQ(manifests_.back().step, 6);
  // A task that let a version go reports a newer one.
  AtStep(8);
  Report(0, 1, 8);
  ReportResiduals(0, 8);
  ReportResiduals(1, 9);
  EXPECT_EQ(LastEvent("CheckpointFailed"), "step 8: worker w1 on host host-w1: has let it go");
}

TEST_F(ResidualsTest, ALostOwnerCostsTheStepsSinceTheLastCheckpoint) {
  Running(2, 1, Feedback(2));
  AtStep(4);
  SaveWithResiduals(4);
  AtStep(6);
  Do(NodeDisconnected{workers_[1]});
  workers_[1] = Worker("w1");
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(id_).restarts(), 1);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 1, 1})) << "nobody takes its lanes over";
  Take(workers_[0], ConnectResponse::kViewChange);
  Pass(absl::Seconds(3), {workers_[0], stores_[0]});
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  const std::string base = absl::StrCat("/out/", id_, "/1-4");
  Follow();
  EXPECT_EQ(starts_.back().base_manifest(), base);
  Pass(absl::Seconds(1), {workers_[0], stores_[0]});
  const auto changes = Take(workers_[0], ConnectResponse::kViewChange);
  ASSERT_THAT(changes, Not(IsEmpty()));
  EXPECT_EQ(changes.back().view_change().base_manifest(), base);
  EXPECT_THAT(EventTypes(id_), Not(Contains("LaneReissued")));
}

// The lineage is the same while its owners are, so a lease that lapsed costs nothing.
TEST_F(ResidualsTest, AWorkerThatIsBackInTimeCostsNothing) {
  job::v1::JobSpec spec = Feedback(2);
  spec.mutable_recovery()->set_backoff_initial_seconds(30);
  Running(2, 1, spec);
  AtStep(4);
  Pass(absl::Seconds(8), {workers_[0], stores_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(id_).restarts(), 1);
  Beat(workers_[1]);
  Lead(5);
  PassAndFollow(absl::Seconds(1));
  EXPECT_THAT(EventTypes(id_), Contains("WorkerBack"));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).restarts(), 0);
  PassAndFollow(absl::Seconds(60));
  EXPECT_EQ(Lineage(), 1);
}

TEST_F(ResidualsTest, WithoutAWorkerTheJobWaitsForOneAndGoesBack) {
  Running(1, 1, Feedback(1));
  AtStep(4);
  Report(0, 1, 4);
  ReportResiduals(0, 4);
  Written();
  AtStep(6);
  Do(NodeDisconnected{workers_[0]});
  workers_.clear();
  Pass(absl::Seconds(10), {stores_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Lineage(), 1);
  workers_.push_back(Worker("w0"));
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{1, 1}));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// The worker may come back, and then the lineage goes on only if it still has its shards.
TEST_F(ResidualsTest, NoShardIsReplacedBeforeThereIsAWorker) {
  job::v1::JobSpec spec = Feedback(1);
  spec.mutable_recovery()->set_backoff_initial_seconds(5);
  Running(1, 1, spec);
  stores_.push_back(Store("s1"));
  AtStep(4);
  Report(0, 1, 4);
  ReportResiduals(0, 4);
  Written();
  AtStep(6);
  Pass(absl::Seconds(8), stores_);
  ASSERT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  Do(NodeDisconnected{stores_[0]});
  stores_[0] = Store("s0");
  Pass(absl::Seconds(10), stores_);
  EXPECT_EQ(Lineage(), 1);
  Beat(workers_[0]);
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// Nobody has to leave for a move of shards, so it waits until its version is saved. A worker whose node is
// drained meanwhile has the time of a drain.
TEST_F(ResidualsTest, AWorkerDrainedDuringAMoveOfShardsLeavesInTime) {
  job::v1::JobSpec spec = Feedback(2);
  spec.mutable_resources()->set_min_workers(1);
  Running(2, 1, spec);
  AtStep(2);
  SaveWithResiduals(2);
  FilesOf(0).Clear();
  FilesOf(1).Clear();
  stores_.push_back(Store("s1"));
  AtStep(3);
  auto request = For<job::v1::MoveShardRequest>();
  request.mutable_move()->set_change(job::v1::SHARD_CHANGE_ADD);
  Ask(request);
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  node::v1::LeadState& lead = Lead(4);
  lead.set_suspended(true);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(3);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {1});
  ReportResiduals(0, 4);
  ReportResiduals(1, 4, "no space left on /out");
  PassAndFollow(absl::Seconds(150));
  EXPECT_EQ(Lineage(), 1) << "the move has no limit";
  EXPECT_THAT(Job(id_).message(),
              HasSubstr("cannot save step 4: no space left on /out (worker w1"));
  Do(core::SetDrained{++calls_, "w1", true});
  PassAndFollow(absl::Seconds(100));
  EXPECT_EQ(Lineage(), 1);
  PassAndFollow(absl::Seconds(30));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(Job(id_).restarts(), 0);
  EXPECT_EQ(Job(id_).shards_size(), 2) << "it takes the move along";
}

// The version that a suspend ordered is decided, and its residuals went with the only worker.
TEST_F(ResidualsTest, ASuspendWhoseResidualsAreLostIsRepeated) {
  Running(1, 1, Feedback(1));
  AtStep(3);
  Ask(For<job::v1::SuspendJobRequest>());
  node::v1::LeadState& lead = Lead(4);
  lead.set_suspended(true);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(3);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {1});
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  workers_.clear();
  Pass(absl::Seconds(2), {stores_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  workers_.push_back(Worker("w0"));
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  ASSERT_THAT(starts_.back().orders(), SizeIs(1));
  EXPECT_EQ(starts_.back().orders(0).step(), 3);
}

// A worker that joins gets lanes, but only with their residuals.
TEST_F(ResidualsTest, LanesMoveToAJoinerThroughACheckpoint) {
  job::v1::JobSpec spec = Feedback(2);
  spec.mutable_resources()->set_min_workers(1);
  Running(1, 1, spec);
  AtStep(3);
  workers_.push_back(Worker("w1"));
  AnswerProbe(workers_[1]);
  Follow();
  AtStep(3);
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(LastEvent("LanesMove"),
            "worker w1 on host host-w1: gets lanes; the next version is saved first");
  int64_t order = 0;
  for (const auto& message : Take(stores_[0], ConnectResponse::kGiveOrders)) {
    for (const auto& given : message.give_orders().orders()) {
      if (given.suspend()) order = given.id();
    }
  }
  ASSERT_EQ(order, 1);
  node::v1::LeadState& lead = Lead(4);
  lead.set_suspended(true);
  lead.add_applied_order_ids(order);
  lead.add_applied_order_steps(3);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {order});
  EXPECT_THAT(manifests_, IsEmpty());
  ReportResiduals(0, 4);
  Written();
  FilesOf(0).Clear();
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 3) << "above generation 2, with which it joined";
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id_).restarts(), 0);
  AtStep(6);
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(Lineage(), 3) << "there is nothing left to move";
}

TEST_F(ResidualsTest, ADrainedWorkerLeavesThroughACheckpoint) {
  job::v1::JobSpec spec = Feedback(2);
  spec.mutable_resources()->set_min_workers(1);
  Running(2, 1, spec);
  AtStep(3);
  Do(core::SetDrained{++calls_, "w1", true});
  ASSERT_TRUE(LastReply().status.ok());
  PassAndFollow(absl::Seconds(1));
  EXPECT_EQ(LastEvent("LanesMove"),
            "worker w1 on host host-w1: its node is drained; the next version is saved first");
  EXPECT_THAT(EventTypes(id_), Not(Contains("WorkerDrained")));
  node::v1::LeadState& lead = Lead(4);
  lead.set_suspended(true);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(3);
  Beat(stores_[0]);
  SaveWithResiduals(4, {1});
  FilesOf(0).Clear();
  EXPECT_THAT(EventTypes(id_), Contains("WorkerDrained"));
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(Job(id_).restarts(), 0);
}

TEST_F(ResidualsTest, AnOwnerMayWriteItsFileOverGrpc) {
  job::v1::JobSpec spec = Feedback(3);
  Running(3, 1, spec);
  const auto names = [this](int rank) {
    const auto& task = core_.Peek(id_)->tasks()[static_cast<size_t>(rank)];
    return core_.GrantFiles(id_, {.shard = false, .index = rank, .incarnation = task.incarnation})
        ->may_write;
  };
  EXPECT_THAT(names(0), ElementsAre("weights.safetensors", "residuals-0.safetensors"));
  EXPECT_THAT(names(2), ElementsAre("residuals-2.safetensors"));
}

// Its residuals of the version before the last are gone, and nobody waits for them.
TEST_F(ResidualsTest, AnOwnerThatIsLostAtTheEndHoldsNothingUp) {
  Running(2, 1, Feedback(2));
  AtStep(9);
  Report(0, 1, 9);
  ReportResiduals(0, 9);
  node::v1::LeadState& lead = Lead(10);
  lead.set_complete(true);
  Beat(stores_[0]);
  Do(NodeDisconnected{workers_[1]});
  workers_[1] = Worker("w1");
  PassAndFollow(absl::Seconds(2));
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(Lineage(), 1);
  EXPECT_THAT(manifests_, IsEmpty()) << "of version 9";
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kFilesTaken), Not(IsEmpty()));
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kFilesTaken), Not(IsEmpty()));
  Report(0, 1, 10);
  node::v1::WrittenFiles& files = FilesOf(0);
  files.Clear();
  files.set_lineage(1);
  files.set_step(10);
  common::v1::FileInfo* const file = files.add_files();
  file->set_name("weights.safetensors");
  file->set_size_bytes(100);
  file->set_sha256(std::string(32, 'w'));
  Task(workers_[0], id_, 0).set_weights_sha256(std::string(64, 'a'));
  Beat(workers_[0]);
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_EQ(manifests_[0].step, 10);
}

TEST_F(ResidualsTest, ASuspendWaitsForTheResiduals) {
  Running(2, 1, Feedback(2));
  AtStep(3);
  Ask(For<job::v1::SuspendJobRequest>());
  node::v1::LeadState& lead = Lead(4);
  lead.set_suspended(true);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(3);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {1});
  ReportResiduals(0, 4);
  ReportResiduals(1, 4, "no space left on /out");
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING) << "the task tries again";
  ReportResiduals(1, 4);
  Written();
  EXPECT_EQ(Job(id_).state(), JOB_STATE_SUSPENDED);
}

TEST_F(ResidualsTest, ABaseWhoseResidualsAreDamagedIsRefused) {
  Running(2, 1, Feedback(2));
  AtStep(4);
  SaveWithResiduals(4);
  AtStep(8);
  SaveWithResiduals(8);
  FilesOf(0).Clear();
  FilesOf(1).Clear();
  Do(NodeDisconnected{stores_[0]});
  stores_[0] = Store("s0");
  PassAndFollow(absl::Seconds(3));
  ASSERT_EQ(Lineage(), 2);
  node::v1::TaskState& task = Task(workers_[1], id_, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("CheckpointCorrupt");
  task.set_message("1-8/residuals-1.safetensors: SHA-256 is not that of the manifest");
  task.set_refuses_base(true);
  Beat(workers_[1]);
  EXPECT_THAT(LastEvent("CheckpointRefused"), HasSubstr("1-8: worker w1 on host host-w1"));
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
  EXPECT_EQ(Lineage(), 3);
  // The other one has read the same base, and says so late.
  node::v1::TaskState& late = Task(workers_[0], id_, 0);
  late.set_lineage(2);
  late.set_phase(node::v1::TASK_PHASE_FAILED);
  late.set_reason("CheckpointCorrupt");
  late.set_message("1-8/residuals-1.safetensors: SHA-256 is not that of the manifest");
  late.set_refuses_base(true);
  Beat(workers_[0]);
  EXPECT_THAT(LastEvent("CheckpointRefused"), HasSubstr("1-8: worker w1 on host host-w1"));
  EXPECT_NE(Job(id_).state(), JOB_STATE_FAILED);
}

// Nobody else can compute its lanes. If it hangs for long, the job goes back to a checkpoint without it.
TEST_F(ResidualsTest, LanesOfALateWorkerStayUntilItHangs) {
  Running(2, 1, Feedback(2));
  StepsTake(1);
  AtStep(4);
  node::v1::Waiting& waiting = *Shard(stores_[0], id_, 0).mutable_waiting();
  waiting.set_step(4);
  waiting.add_lanes(2);
  waiting.add_late_lanes(2);
  Shard(stores_[0], id_, 0).set_generation(1);
  PassAndFollow(absl::Seconds(25));
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(Lineage(), 1);
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(LastEvent("WorkerLost"),
            "worker w1 on host host-w1: step 4 has waited for lane 2 of it for 30s");
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(Job(id_).restarts(), 1);
}

// Data are read, kernels are built: it may take longer than any step after it.
TEST_F(ResidualsTest, NobodyIsLostForTheFirstStepOfALineage) {
  Running(2, 1, Feedback(2));
  WaitFor(0, {0, 1, 2, 3});
  PassAndFollow(absl::Seconds(100));
  EXPECT_THAT(EventTypes(id_), Not(Contains("WorkerLost")));
  EXPECT_EQ(Job(id_).restarts(), 0);
  StepsTake(100);
  AtStep(1);
  WaitFor(1, {2, 3});
  PassAndFollow(absl::Seconds(200));
  EXPECT_THAT(EventTypes(id_), Not(Contains("WorkerLost"))) << "twice as long as the first step";
  EXPECT_EQ(Lineage(), 1);
}

// The step began long before the coordinator did, which has seen no step at all.
TEST_F(ResidualsTest, AnotherCoordinatorLosesNobodyForTheFirstStepThatItSees) {
  Running(2, 1, Feedback(2));
  WaitFor(0, {0, 1, 2, 3});
  World next;
  next.journal_ = journal_;
  ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Do(Restored{});
  std::vector<SessionId> all;
  const auto connect = [&](const std::string& name, common::v1::Role role, SessionId before) {
    all.push_back(next.Connect(name, role, core_.nodes().Find(name)->incarnation()));
    next.beats_[all.back()] = beats_[before];
    next.Beat(all.back());
  };
  connect("w0", common::v1::ROLE_WORKER, workers_[0]);
  connect("w1", common::v1::ROLE_WORKER, workers_[1]);
  connect("s0", common::v1::ROLE_PARAM_STORE, stores_[0]);
  next.Pass(absl::Seconds(100), all);
  EXPECT_THAT(next.EventTypes(id_), Not(Contains("WorkerLost")));
  EXPECT_EQ(next.Job(id_).restarts(), 0);
  EXPECT_EQ(next.Job(id_).state(), JOB_STATE_RUNNING);
}

TEST_F(ResidualsTest, NobodyIsLostThatNobodyElseCanStandInFor) {
  Running(1, 1, Feedback(1));
  StepsTake(1);
  AtStep(4);
  WaitFor(4, {0, 1});
  PassAndFollow(absl::Seconds(100));
  EXPECT_THAT(EventTypes(id_), Not(Contains("WorkerLost")));
  EXPECT_EQ(Lineage(), 1);
}

// In a short last step of an epoch a lane may have no sample, so steps are known before it is read.
TEST_F(ResidualsTest, ATaskThatReadsItsResidualsIsNotHung) {
  Running(2, 1, Feedback(2));
  StepsTake(1);
  AtStep(4);
  Task(workers_[1], id_, 1).set_reads_residuals(true);
  WaitFor(4, {2, 3});
  PassAndFollow(absl::Seconds(100));
  EXPECT_THAT(EventTypes(id_), Not(Contains("WorkerLost")));
  Task(workers_[1], id_, 1).set_reads_residuals(false);
  PassAndFollow(absl::Seconds(5));
  EXPECT_THAT(EventTypes(id_), Contains("WorkerLost"));
}

// A task without the training data says DataMissing, too. The checkpoint is as good as before.
TEST_F(ResidualsTest, MissingTrainingDataDoNotRefuseTheBase) {
  Running(2, 1, Feedback(2));
  AtStep(4);
  SaveWithResiduals(4);
  FilesOf(0).Clear();
  FilesOf(1).Clear();
  Do(NodeDisconnected{stores_[0]});
  stores_[0] = Store("s0");
  PassAndFollow(absl::Seconds(3));
  ASSERT_EQ(Lineage(), 2);
  node::v1::TaskState& task = Task(workers_[1], id_, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("CheckpointCorrupt");
  task.set_message("/data/train.npz: ends early");
  Beat(workers_[1]);
  EXPECT_THAT(EventTypes(id_), Not(Contains("CheckpointRefused")));
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-4"));
}

TEST_F(ResidualsTest, OnlyAnOwnerRefusesTheBase) {
  job::v1::JobSpec spec = Feedback(2);
  Running(2, 1, spec);
  AtStep(4);
  SaveWithResiduals(4);
  FilesOf(0).Clear();
  FilesOf(1).Clear();
  Do(NodeDisconnected{workers_[1]});
  workers_[1] = Worker("w1");
  Pass(absl::Seconds(3), {workers_[0], stores_[0]});
  Follow();
  PassAndFollow(absl::Seconds(1));
  ASSERT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  ASSERT_THAT(core_.Peek(id_)->tasks(), SizeIs(3));
  node::v1::TaskState& joiner = Task(workers_[1], id_, 2);
  joiner.set_lineage(Lineage());
  joiner.set_phase(node::v1::TASK_PHASE_FAILED);
  joiner.set_reason("CheckpointCorrupt");
  joiner.set_message("1-4/residuals-1.safetensors: SHA-256 is not that of the manifest");
  joiner.set_refuses_base(true);
  Beat(workers_[1]);
  EXPECT_THAT(EventTypes(id_), Not(Contains("CheckpointRefused")));
}

// Its probe is looked at before it gets lanes, also if nobody else is left.
TEST_F(ResidualsTest, AJoinerWithOtherDataGetsNoLanes) {
  Running(1, 1, Feedback(1));
  AtStep(4);
  Report(0, 1, 4);
  ReportResiduals(0, 4);
  Written();
  Do(NodeDisconnected{workers_[0]});
  workers_.clear();
  Pass(absl::Seconds(10), {stores_[0]});
  const SessionId other = Worker("w1");
  Pass(absl::Seconds(1), {stores_[0], other});
  AnswerProbe(other, "", /*classes=*/3);
  EXPECT_THAT(EventTypes(id_), Contains("JoinRefused"));
  EXPECT_EQ(Lineage(), 1);
  EXPECT_THAT(Take(other, ConnectResponse::kStartTask), IsEmpty());
  Do(NodeDisconnected{other});
  workers_.push_back(Worker("w0"));
  PassAndFollow(absl::Seconds(10));
  EXPECT_EQ(Lineage(), 2);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// All contributions to the last step were there before the lease of an owner lapsed.
TEST_F(ResidualsTest, AJobWhoseLastStepIsDecidedDoesNotGoBack) {
  job::v1::JobSpec spec = Feedback(2);
  spec.mutable_recovery()->set_backoff_initial_seconds(30);
  Running(2, 1, spec);
  AtStep(9);
  Pass(absl::Seconds(8), {workers_[0], stores_[0]});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(id_).restarts(), 1);
  node::v1::LeadState& lead = Lead(10);
  lead.set_complete(true);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id_).restarts(), 0);
  Pass(absl::Seconds(60), {workers_[0], stores_[0]});
  EXPECT_EQ(Lineage(), 1);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
}

// The version that is saved for a joiner is the last of its lineage. If it cannot be saved, the job goes
// back after a while, and stays with the workers that it has.
TEST_F(ResidualsTest, ALaneMoveThatCannotBeSavedDoesNotHoldTheJob) {
  job::v1::JobSpec spec = Feedback(2);
  spec.mutable_resources()->set_min_workers(1);
  Running(1, 1, spec);
  AtStep(2);
  Report(0, 1, 2);
  ReportResiduals(0, 2);
  Written();
  FilesOf(0).Clear();
  AtStep(3);
  workers_.push_back(Worker("w1"));
  AnswerProbe(workers_[1]);
  Follow();
  AtStep(3);
  PassAndFollow(absl::Seconds(1));
  ASSERT_THAT(EventTypes(id_), Contains("LanesMove"));
  node::v1::LeadState& lead = Lead(4);
  lead.set_suspended(true);
  lead.add_applied_order_ids(1);
  lead.add_applied_order_steps(3);
  Beat(stores_[0]);
  Report(0, 1, 4, "", {1});
  ReportResiduals(0, 4, "no space left on /out");
  PassAndFollow(absl::Seconds(60));
  EXPECT_EQ(Lineage(), 1) << "it tries again";
  FilesOf(0).Clear();
  ReportResiduals(0, 4, "no space left on /out");
  Pass(absl::Seconds(70), All());
  Follow();
  EXPECT_GT(Lineage(), 1);
  EXPECT_EQ(starts_.back().base_manifest(), absl::StrCat("/out/", id_, "/1-2"));
  EXPECT_EQ(Job(id_).restarts(), 0);
  EXPECT_EQ(Owners(), (std::vector<int32_t>{0, 0, 1, 1})) << "the joiner reads that one";
}

TEST_F(ResidualsTest, WhatIsDroppedIsTold) {
  Running(2, 1, Feedback(2, "drop"));
  Task(workers_[1], id_, 1).set_residual_norm(0.25);
  Task(workers_[0], id_, 0).set_residual_norm(0.5);
  AtStep(4);
  Beat(workers_[0]);
  Beat(workers_[1]);
  Report(0, 1, 4);
  ASSERT_THAT(manifests_, SizeIs(1)) << "without residuals";
  Written();
  Do(NodeDisconnected{workers_[1]});
  workers_[1] = Worker("w1");
  Pass(absl::Seconds(2), {workers_[0], stores_[0]});
  EXPECT_EQ(Lineage(), 1);
  EXPECT_EQ(LastEvent("ResidualsLost"),
            "lanes 2,3 of w1 begin without what 2bit had left out of their gradients; the norm of "
            "all that w1 had was 0.25");
  Do(NodeDisconnected{stores_[0]});
  stores_[0] = Store("s0");
  PassAndFollow(absl::Seconds(3));
  EXPECT_EQ(LastEvent("ResidualsLost"),
            "a new lineage begins, and what 2bit had left out of the gradients is "
            "lost; its norm was 0.5");
}

}  // namespace
}  // namespace capstan::coordinator::core
