// What follows a fault or a person's order: checkpoints, new lineages, joiners, late lanes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/core.h"
#include "coordinator/core/test_world.h"

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

class RecoveryTest : public ::testing::Test, public World {
 protected:
  std::string Running(int workers, int shards, job::v1::JobSpec spec) {
    for (int i = 0; i < workers; ++i) workers_.push_back(Worker(absl::StrCat("w", i)));
    for (int i = 0; i < shards; ++i) stores_.push_back(Store(absl::StrCat("s", i)));
    id_ = Submit(spec);
    for (const SessionId worker : workers_) AnswerProbe(worker);
    Follow();
    EXPECT_EQ(Job(id_).state(), JOB_STATE_RUNNING);
    return id_;
  }
  std::string Running(int workers, int shards) {
    return Running(workers, shards, Spec(workers, shards));
  }
  // Nodes do what they were last told: the newest lineage and generation are theirs.
  void Follow() {
    for (size_t i = 0; i < stores_.size(); ++i) {
      for (const ConnectResponse& message : Take(stores_[i], ConnectResponse::kStartLineage)) {
        starts_.push_back(message.start_lineage());
        Shard(stores_[i], id_, message.start_lineage().shard()).Clear();
        node::v1::ShardState* state = beats_[stores_[i]].mutable_heartbeat()->mutable_shards(0);
        state->set_job_id(id_);
        state->set_shard(message.start_lineage().shard());
        state->set_lineage(message.start_lineage().view().lineage());
        state->set_ready(true);
      }
      Beat(stores_[i]);
    }
    for (const SessionId worker : workers_) {
      AnswerProbe(worker);
      for (const ConnectResponse& message : Take(worker, ConnectResponse::kStartTask)) {
        node::v1::TaskState& task = Task(worker, id_, message.start_task().rank());
        task.set_lineage(message.start_task().view().lineage());
        task.set_generation(message.start_task().view().generation());
        task.set_phase(node::v1::TASK_PHASE_RUNNING);
      }
      for (const ConnectResponse& message : Take(worker, ConnectResponse::kViewChange)) {
        for (auto& task : *beats_[worker].mutable_heartbeat()->mutable_tasks()) {
          task.set_lineage(message.view_change().view().lineage());
          task.set_generation(message.view_change().view().generation());
        }
      }
      for (const ConnectResponse& message : Take(worker, ConnectResponse::kStopTask)) {
        (void)message;
        Forget(worker);
      }
      Beat(worker);
    }
    for (const SessionId store : stores_) {
      for (const ConnectResponse& message : Take(store, ConnectResponse::kEndJob)) {
        (void)message;
        Forget(store);
        Beat(store);
      }
    }
  }
  void PassAndFollow(absl::Duration duration) {
    for (absl::Duration at; at < duration; at += absl::Milliseconds(500)) {
      Pass(absl::Milliseconds(500), All());
      Follow();
    }
  }
  std::vector<SessionId> All() const {
    std::vector<SessionId> all = workers_;
    all.insert(all.end(), stores_.begin(), stores_.end());
    return all;
  }
  int64_t Lineage() { return Job(id_).lineage(); }
  node::v1::LeadState& Lead(int64_t step) {
    node::v1::LeadState& lead = *Shard(stores_[0], id_, 0).mutable_lead();
    lead.set_lineage(Lineage());
    lead.set_step(step);
    Beat(stores_[0]);
    return *Shard(stores_[0], id_, 0).mutable_lead();
  }
  void Report(int shard, int64_t lineage, int64_t step, const std::string& error = "",
              const std::vector<int64_t>& orders = {}) {
    node::v1::WrittenFiles& files = *Shard(stores_[shard], id_, shard).mutable_files();
    files.Clear();
    files.set_lineage(lineage);
    files.set_step(step);
    files.set_error(error);
    if (error.empty()) {
      common::v1::FileInfo* file = files.add_files();
      file->set_name(absl::StrCat("shard-", shard, ".safetensors"));
      file->set_size_bytes(100);
      file->set_sha256(std::string(32, 'h'));
    }
    node::v1::LeadSnapshot snapshot;
    snapshot.set_step(step);
    snapshot.set_samples_used(16 * step);
    for (const int64_t order : orders) snapshot.add_applied_orders()->set_id(order);
    if (shard == 0) files.set_lead_snapshot(snapshot.SerializeAsString());
    Beat(stores_[shard]);
  }
  void Written(absl::Status status = absl::OkStatus()) {
    Do(ManifestWritten{id_, manifests_.back().lineage, manifests_.back().step, status});
  }
  void Save(int64_t step, const std::vector<int64_t>& orders = {}) {
    for (size_t i = 0; i < stores_.size(); ++i) {
      Report(static_cast<int>(i), Lineage(), step, "", orders);
    }
    Written();
    for (const SessionId store : stores_) Shard(store, id_, 0).clear_files();
  }
  // Its process dies and another one has its name.
  void Restart(int shard) {
    Do(NodeDisconnected{stores_[shard]});
    stores_[shard] = Store(absl::StrCat("s", shard));
  }
  void Ask(decltype(Control::request) request) { Do(Control{++calls_, std::move(request)}); }
  template <typename Request>
  Request For() {
    Request request;
    request.set_job_id(id_);
    return request;
  }

  std::string id_;
  std::vector<SessionId> workers_;
  std::vector<SessionId> stores_;
  std::vector<node::v1::StartLineage> starts_;
};

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
  EXPECT_TRUE(job.checkpoints(2).best());
  EXPECT_EQ(job.checkpoints(2).metric(), 0.75);
  EXPECT_THAT(sweeps_.back().keep, ElementsAre("1-5", "1-7", "1-8"));
  EXPECT_EQ(sweeps_.back().step, 8);
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
  node::v1::ShardState& state = Shard(stores_[0], id_, 0);
  state.set_lineage(2);
  state.set_reason("CheckpointCorrupt");
  state.set_message("1-4/shard-0.safetensors: SHA-256 is not that of the manifest");
  Beat(stores_[0]);
  EXPECT_THAT(EventTypes(id_), Contains("CheckpointRefused"));
  Pass(absl::Milliseconds(100), {workers_[0]});
  EXPECT_EQ(Lineage(), 3);
  EXPECT_EQ(Job(id_).restarts(), 1);  // that was one restart
  const auto starts = Take(stores_[0], ConnectResponse::kStartLineage);
  ASSERT_THAT(starts, Not(IsEmpty()));
  EXPECT_EQ(starts[0].start_lineage().base_manifest(), absl::StrCat("/out/", id_, "/1-2"));
  // All are damaged: nothing is loaded, and nothing is thrown away.
  state.set_lineage(3);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id_).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id_).reason(), "CheckpointCorrupt");
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

TEST_F(RecoveryTest, ALeaverHandsOverAtOnce) {
  Running(2, 1);
  Do(NodeDisconnected{workers_[0]});
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  EXPECT_EQ(Job(id_).generation(), 2);
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
