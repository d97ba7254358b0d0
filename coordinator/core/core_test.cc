// The life of jobs: every path from submission to an end.
#include "coordinator/core/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_FAILED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUCCEEDED;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CoreTest : public ::testing::Test, public World {
 protected:
  // Workers w0.. and stores s0.. of one device each.
  void AddNodes(int workers, int stores) {
    for (int i = 0; i < workers; ++i) workers_.push_back(Worker(absl::StrCat("w", i)));
    for (int i = 0; i < stores; ++i) stores_.push_back(Store(absl::StrCat("s", i)));
  }
  std::vector<SessionId> All() const {
    std::vector<SessionId> all = workers_;
    all.insert(all.end(), stores_.begin(), stores_.end());
    return all;
  }
  // Submitted, gang assigned, data probed, lineage sent to the shards.
  std::string Probed(int workers, int shards) {
    AddNodes(workers, shards);
    const std::string id = Submit(Spec(workers, shards));
    for (const SessionId worker : workers_) AnswerProbe(worker);
    return id;
  }
  void ShardsReady(const std::string& id) {
    for (size_t i = 0; i < stores_.size(); ++i) {
      Shard(stores_[i], id, static_cast<int>(i)).set_ready(true);
      Beat(stores_[i]);
    }
  }
  std::string Running(int workers, int shards) {
    const std::string id = Probed(workers, shards);
    ShardsReady(id);
    for (size_t i = 0; i < workers_.size(); ++i) {
      Task(workers_[i], id, static_cast<int>(i)).set_phase(node::v1::TASK_PHASE_RUNNING);
      Beat(workers_[i]);
    }
    EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
    return id;
  }
  void Lead(const std::string& id, int64_t step, bool complete = false) {
    node::v1::LeadState& lead = *Shard(stores_[0], id, 0).mutable_lead();
    lead.set_lineage(1);
    lead.set_step(step);
    lead.set_loss(0.5);
    lead.set_samples_used(16 * step);
    lead.set_samples_per_second(160);
    lead.set_complete(complete);
    Beat(stores_[0]);
  }
  static void AddFile(node::v1::WrittenFiles* files, const std::string& name) {
    files->set_lineage(1);
    files->set_step(10);
    common::v1::FileInfo* file = files->add_files();
    file->set_name(name);
    file->set_size_bytes(100);
    file->set_sha256(std::string(32, 'h'));
  }
  // The last version is decided and written everywhere: the manifest is due.
  std::string Complete(int workers, int shards) {
    const std::string id = Running(workers, shards);
    Lead(id, 10, /*complete=*/true);
    for (size_t i = 0; i < stores_.size(); ++i) {
      AddFile(Shard(stores_[i], id, static_cast<int>(i)).mutable_files(),
              absl::StrCat("shard-", i, ".safetensors"));
      Beat(stores_[i]);
    }
    node::v1::TaskState& task = Task(workers_[0], id, 0);
    task.set_phase(node::v1::TASK_PHASE_FINISHED);
    AddFile(task.mutable_files(), "weights.safetensors");
    task.set_weights_sha256(std::string(64, 'a'));
    Beat(workers_[0]);
    return id;
  }

  std::vector<SessionId> workers_;
  std::vector<SessionId> stores_;
};

// ---- submitting ----

TEST_F(CoreTest, AJobIsDurableBeforeItsIdIsTold) {
  const std::string id = Submit(Spec(1, 1));
  EXPECT_THAT(id, testing::MatchesRegex("toy-[a-z0-9][a-z0-9][a-z0-9][a-z0-9][a-z0-9][a-z0-9]"));
  EXPECT_THAT(order_, ElementsAre("persist", "reply"));
  EXPECT_EQ(Saved(id).request_id(), "r1");
}

TEST_F(CoreTest, TheSameRequestIsTheSameJob) {
  job::v1::JobSpec spec = Spec(1, 1);
  (*spec.mutable_labels())["a"] = "1";
  (*spec.mutable_labels())["b"] = "2";
  const std::string id = Submit(spec, "req");
  EXPECT_EQ(Submit(spec, "req"), id);
  EXPECT_TRUE(std::get<job::v1::SubmitJobResponse>(LastReply().response).existed());
  EXPECT_THAT(core_.ListJobs(10, {}), SizeIs(1));

  spec.mutable_resources()->set_num_workers(2);
  EXPECT_EQ(Submit(spec, "req"), "");
  EXPECT_TRUE(absl::IsAlreadyExists(LastReply().status));
  EXPECT_THAT(LastReply().status.message(), HasSubstr(id));
}

// The limit counts what was asked for, not what lies in front of it.
TEST_F(CoreTest, AListIsFilteredBeforeItIsCut) {
  caller_.name = "ann";
  job::v1::JobSpec labelled = Spec(1, 1);
  (*labelled.mutable_labels())["team"] = "vision";
  (*labelled.mutable_labels())["tier"] = "1";
  const std::string oldest = Submit(labelled);
  caller_.name = "bob";
  (*labelled.mutable_labels())["team"] = "speech";
  Submit(labelled);
  const std::string newest = Submit(Spec(1, 1));
  const auto ids = [this](const JobFilter& filter) {
    std::vector<std::string> out;
    for (const job::v1::Job& job : core_.ListJobs(1, filter)) out.push_back(job.job_id());
    return out;
  };
  EXPECT_THAT(ids({}), ElementsAre(newest));
  EXPECT_THAT(ids({.owner = "ann"}), ElementsAre(oldest));
  EXPECT_THAT(ids({.labels = {{"team", "vision"}, {"tier", "1"}}}), ElementsAre(oldest));
  EXPECT_THAT(ids({.labels = {{"team", "vision"}, {"tier", "2"}}}), IsEmpty());
  EXPECT_THAT(ids({.states = {JOB_STATE_PENDING}, .owner = "ann"}), ElementsAre(oldest));
  EXPECT_THAT(ids({.states = {JOB_STATE_RUNNING}, .owner = "ann"}), IsEmpty());
  EXPECT_THAT(ids({.owner = "an"}), IsEmpty());
}

TEST_F(CoreTest, WhatCannotBeIsRefused) {
  EXPECT_EQ(Submit(Spec(1, 1), "no spaces"), "");
  EXPECT_THAT(LastReply().status.message(), HasSubstr("request_id"));
  for (const char* name : {"../x", "-rf", "-"}) EXPECT_EQ(Submit(Spec(1, 1, name)), "") << name;
  EXPECT_TRUE(absl::IsInvalidArgument(LastReply().status));
  job::v1::JobSpec spec = Spec(1, 1);
  spec.set_version(2);
  EXPECT_EQ(Submit(spec), "");
  EXPECT_EQ(LastReply().status.message(), "version: want 1");
  spec = Spec(1, 1);
  spec.set_description(std::string(129 * 1024, 'x'));
  EXPECT_EQ(Submit(spec), "");
  EXPECT_THAT(LastReply().status.message(), HasSubstr("at most 131072"));
  EXPECT_THAT(core_.ListJobs(10, {}), IsEmpty());
  EXPECT_EQ(journal_.records(), 0);
}

TEST(QuotaTest, AFullQueueRefusesAndAnEndedJobMakesRoom) {
  CoreOptions options;
  options.max_queued_jobs = 2;
  options.max_ended_jobs = 1;
  World world(options);
  const std::string first = world.Submit(World::Spec(1, 1), "one");
  const std::string second = world.Submit(World::Spec(1, 1), "two");
  EXPECT_EQ(world.Submit(World::Spec(1, 1), "three"), "");
  EXPECT_TRUE(absl::IsResourceExhausted(world.LastReply().status));
  EXPECT_EQ(world.Submit(World::Spec(1, 1), "one"), first);  // a repetition needs no room
  world.Cancel(first);
  EXPECT_NE(world.Submit(World::Spec(1, 1), "three"), "");
  world.Cancel(second);  // two have ended, one is remembered
  EXPECT_TRUE(absl::IsNotFound(world.core_.GetJob(first).status()));
  EXPECT_TRUE(world.core_.GetJob(second).ok());
}

TEST(QuotaTest, AnEndedJobThatIsNotGoneYetKeepsNoYoungerOnes) {
  CoreOptions options;
  options.max_ended_jobs = 2;
  World world(options);
  const SessionId worker = world.Worker("w0");
  const std::string stuck = world.Submit(World::Spec(1, 0));
  world.AnswerProbe(worker);
  world.Task(worker, stuck, 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  world.Beat(worker);
  world.Cancel(stuck);
  world.Pass(absl::Minutes(5), {worker});  // its task is reported for ever
  ASSERT_EQ(world.Job(stuck).state(), JOB_STATE_CANCELLED);
  for (int i = 0; i < 5; ++i) world.Cancel(world.Submit(World::Spec(5, 0)));
  EXPECT_TRUE(world.core_.GetJob(stuck).ok());
  EXPECT_EQ(world.journal_.state().jobs.size(), 2u);
}

// ---- the gang ----

TEST_F(CoreTest, AGangStartsAllOrNone) {
  const std::string id = Submit(Spec(2, 1));
  EXPECT_EQ(Job(id).reason(), "WaitingForSlots");
  EXPECT_EQ(
      Job(id).message(),
      "needs 2 workers with 1 free device each, 0 are there; needs 1 param_store, 0 are there");
  AddNodes(0, 1);
  EXPECT_EQ(Job(id).message(), "needs 2 workers with 1 free device each, 0 are there");
  node::v1::Register reg;
  reg.set_name("w0");
  reg.set_role(common::v1::ROLE_WORKER);
  reg.add_devices()->set_name("cpu");
  workers_.push_back(++sessions_);
  int told = 0;  // to people who watch it
  for (const Effect& effect : Do(NodeConnected{workers_[0], reg})) {
    if (std::holds_alternative<JobChanged>(effect)) ++told;
  }
  EXPECT_EQ(told, 1);
  EXPECT_EQ(Job(id).state(), JOB_STATE_PENDING);
  EXPECT_EQ(Job(id).message(), "needs 2 workers with 1 free device each, 1 is there");
  EXPECT_FALSE(Job(id).has_retry_at());  // it waits for a node, not for a time
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kProbe), IsEmpty());

  const SessionId late = Worker("w9");
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kProbe), SizeIs(1));
  EXPECT_THAT(Take(late, ConnectResponse::kProbe), SizeIs(1));
  EXPECT_THAT(EventTypes(id), ElementsAre("Submitted", "Admitted"));
}

TEST_F(CoreTest, FirstComeFirstServedButAnImpossibleJobHoldsUpNobody) {
  const std::string first = Running(1, 1);
  const std::string impossible = Submit(Spec(5, 1));
  const std::string second = Submit(Spec(1, 1));
  const std::string third = Submit(Spec(1, 0));
  EXPECT_EQ(Job(second).state(), JOB_STATE_PENDING);
  EXPECT_EQ(Job(impossible).message(),
            absl::StrCat("needs 5 workers with 1 free device each, 0 of 1 are free (", first,
                         " has it)"));
  EXPECT_THAT(Job(second).message(), HasSubstr("(place 2 in the queue)"));
  EXPECT_THAT(Job(third).message(), HasSubstr("behind job " + second + " (place 3 in the queue)"));

  Cancel(first);
  Forget(workers_[0]);
  Beat(workers_[0]);  // its task is gone: the slot is free
  EXPECT_EQ(Job(first).state(), JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(second).state(), JOB_STATE_STARTING);
  EXPECT_EQ(Job(third).state(), JOB_STATE_PENDING);
}

// Thousands may wait: a submit must not look at each of them, nor every heartbeat of every node.
TEST_F(CoreTest, ALongQueueIsGoneThroughNowAndThen) {
  const std::string first = Running(1, 0);
  const std::string next = Submit(Spec(1, 0));
  for (int i = 0; i < 200; ++i) Submit(Spec(1, 0));
  int changed = 0;
  for (const Effect& effect : Do(core::Submit{++calls_, "last", Spec(1, 0)})) {
    if (std::holds_alternative<JobChanged>(effect)) ++changed;
  }
  EXPECT_EQ(changed, 1);
  const std::string last = std::get<job::v1::SubmitJobResponse>(LastReply().response).job_id();
  EXPECT_EQ(Job(last).message(), "more than 100 jobs are before it in the queue");

  Cancel(first);
  Forget(workers_[0]);
  Beat(workers_[0]);  // its slot is free; the last pass was a moment ago
  EXPECT_EQ(Job(next).state(), JOB_STATE_PENDING);
  const std::string late = Submit(Spec(1, 0));  // overtakes no other job
  EXPECT_EQ(Job(late).state(), JOB_STATE_PENDING);
  EXPECT_LE(core_.NextDeadline(), now_ + absl::Milliseconds(100));
  Pass(absl::Milliseconds(100), workers_);
  EXPECT_EQ(Job(next).state(), JOB_STATE_STARTING);
  EXPECT_EQ(Job(late).state(), JOB_STATE_PENDING);
}

// Each heartbeat is about one job. If it looks at all others, it takes fifty times as long here.
TEST(LoadTest, AHeartbeatCostsTheSameHoweverManyJobsRun) {
  const auto cost = [](int jobs) {
    World world;
    std::vector<std::pair<SessionId, node::v1::TaskState*>> tasks;
    for (int i = 0; i < jobs; ++i) {
      const SessionId worker = world.Worker(absl::StrCat("w", i));
      const std::string id = world.Submit(World::Spec(1, 0));
      world.AnswerProbe(worker);
      node::v1::TaskState& task = world.Task(worker, id, 0);
      task.set_phase(node::v1::TASK_PHASE_RUNNING);
      world.Beat(worker);
      tasks.emplace_back(worker, &task);
    }
    const std::clock_t start = std::clock();
    for (int beat = 1; beat <= 2000; ++beat) {
      const auto& [worker, task] = tasks[static_cast<size_t>(beat) % tasks.size()];
      task->set_step(beat);
      world.Beat(worker);
    }
    return static_cast<double>(std::clock() - start);
  };
  const double few = std::min(cost(10), cost(10));
  EXPECT_LT(std::min(cost(500), cost(500)), 5 * few);
}

TEST_F(CoreTest, ASlotIsHeldUntilTheTaskIsGone) {
  const std::string first = Running(1, 0);
  const std::string second = Submit(Spec(1, 0));
  Task(workers_[0], first, 0).set_phase(node::v1::TASK_PHASE_FAILED);
  Task(workers_[0], first, 0).set_reason("NonFiniteLoss");
  Beat(workers_[0]);
  EXPECT_EQ(Job(first).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(second).state(), JOB_STATE_PENDING);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  Forget(workers_[0]);
  Beat(workers_[0]);
  EXPECT_EQ(Job(second).state(), JOB_STATE_STARTING);
}

TEST_F(CoreTest, AGangLostBeforeItHasAViewGoesBackToTheQueue) {
  AddNodes(2, 1);
  const std::string id = Submit(Spec(2, 1));
  AnswerProbe(workers_[0]);
  Pass(absl::Seconds(6), {workers_[0], stores_[0]});
  EXPECT_EQ(Job(id).state(), JOB_STATE_PENDING);
  EXPECT_THAT(Job(id).message(), HasSubstr("1 is there"));
  EXPECT_THAT(EventTypes(id), Contains("GangLost"));
  EXPECT_THAT(Job(id).workers(), IsEmpty());
  EXPECT_THAT(Job(id).shards(), IsEmpty());

  // An answer to the old gang's probe is not taken for one of the new gang.
  const SessionId late = Worker("w9");
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
  node::v1::ConnectRequest old;
  old.mutable_probe_result()->set_probe_id(1);
  old.mutable_probe_result()->set_job_id(id);
  old.mutable_probe_result()->set_reason("DataMissing");
  Do(NodeMessage{late, old});
  AnswerProbe(workers_[0]);
  AnswerProbe(late);
  EXPECT_TRUE(Job(id).has_resolved());
}

// What the gang before it had shown is nothing that this one has done.
TEST_F(CoreTest, ANewGangHasATimeOfItsOwnToStart) {
  AddNodes(2, 1);
  job::v1::JobSpec spec = Spec(2, 1);
  spec.mutable_limits()->set_stall_timeout_seconds(30);
  const std::string id = Submit(spec);
  AnswerProbe(workers_[0]);
  Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
  ASSERT_EQ(Job(id).state(), JOB_STATE_PENDING);
  const SessionId late = Worker("w9");
  ASSERT_EQ(Job(id).state(), JOB_STATE_STARTING);
  const std::vector<SessionId> heard = {workers_[0], stores_[0], late};
  Pass(absl::Seconds(20), heard);
  AnswerProbe(late);  // one of two, as before
  Pass(absl::Seconds(20), heard);
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
  Pass(absl::Seconds(11), heard);
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "Stalled");
}

// ---- the data ----

TEST_F(CoreTest, MissingDataNamesWhoHasThem) {
  AddNodes(2, 1);
  const std::string id = Submit(Spec(2, 1));
  AnswerProbe(workers_[1], "DataMissing");
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);  // the other one may know more
  AnswerProbe(workers_[0]);
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "DataMissing");
  EXPECT_EQ(Job(id).message(),
            "worker w1 on host host-w1: /data: no such folder; it is there on host host-w0");
}

TEST_F(CoreTest, DataThatDifferAndDataThatDoNotFitFail) {
  AddNodes(2, 1);
  const std::string differ = Submit(Spec(2, 1));
  AnswerProbe(workers_[0]);
  AnswerProbe(workers_[1], "", /*classes=*/9);
  EXPECT_EQ(Job(differ).reason(), "DataMissing");
  EXPECT_THAT(Job(differ).message(), HasSubstr("10 classes on host host-w0"));

  // As many samples, from other numbers of files.
  const std::string batches = Submit(Spec(2, 1));
  AnswerProbe(workers_[0], "", 10, /*batches=*/2);
  AnswerProbe(workers_[1], "", 10, /*batches=*/3);
  EXPECT_EQ(Job(batches).reason(), "DataMissing");
  EXPECT_THAT(Job(batches).message(), HasSubstr("2 of 5 batches on host host-w0"));
  EXPECT_THAT(Job(batches).message(), HasSubstr("3 of 5 batches on host host-w1"));

  const std::string unfit = Submit(Spec(2, 1));
  AnswerProbe(workers_[0], "", 9);
  AnswerProbe(workers_[1], "", 9);
  EXPECT_EQ(Job(unfit).reason(), "InvalidSpec");
  EXPECT_EQ(Job(unfit).message(), "model.num_classes: 10, data has 9");
}

// ---- start ----

TEST_F(CoreTest, ShardsAreToldBeforeWorkersAndTheViewIsDurableBeforeBoth) {
  AddNodes(2, 2);
  const std::string id = Submit(Spec(2, 2));
  AnswerProbe(workers_[0]);
  order_.clear();
  AnswerProbe(workers_[1]);
  const std::string lineage = absl::StrCat(static_cast<int>(ConnectResponse::kStartLineage));
  EXPECT_THAT(order_, ElementsAre("persist", absl::StrCat("send:", stores_[0], ":", lineage),
                                  absl::StrCat("send:", stores_[1], ":", lineage)));
  const auto sent = Take(stores_[1], ConnectResponse::kStartLineage);
  const node::v1::StartLineage& start = sent.at(0).start_lineage();
  EXPECT_EQ(start.shard(), 1);
  EXPECT_EQ(start.view().lineage(), 1);
  EXPECT_EQ(start.view().generation(), 1);
  EXPECT_THAT(start.view().lane_owners(), ElementsAre(0, 0, 1, 1));
  EXPECT_EQ(start.view().shards(1).address(), "unix:/s1");
  EXPECT_EQ(start.view().shards(0).chunk_count() + start.view().shards(1).chunk_count(), 8);
  EXPECT_GT(start.view().shards(1).incarnation(), 0);
  EXPECT_THAT(start.spec_digest(), SizeIs(32));
  EXPECT_EQ(start.base_manifest(), "");
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStartTask), IsEmpty());

  Shard(stores_[0], id, 0).set_ready(true);
  Beat(stores_[0]);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStartTask), IsEmpty());  // one is not ready
  Shard(stores_[1], id, 1).set_ready(true);
  Beat(stores_[1]);
  const auto tasks = Take(workers_[1], ConnectResponse::kStartTask);
  ASSERT_THAT(tasks, SizeIs(1));
  EXPECT_EQ(tasks[0].start_task().rank(), 1);
  EXPECT_THAT(tasks[0].start_task().devices(), ElementsAre(0));
  EXPECT_EQ(tasks[0].start_task().resolved_spec(), start.resolved_spec());
}

TEST_F(CoreTest, OrdersAreRepeatedUntilTheyShowAndNotFaster) {
  const std::string id = Probed(1, 1);
  Take(stores_[0], ConnectResponse::kStartLineage);
  for (int i = 0; i < 20; ++i) Beat(stores_[0]);  // many heartbeats at one time: nothing more
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kStartLineage), IsEmpty());
  Pass(absl::Milliseconds(2100), All());
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kStartLineage), SizeIs(4));  // every 500 ms
  ShardsReady(id);
  Take(workers_[0], ConnectResponse::kStartTask);
  Pass(absl::Milliseconds(1100), All());
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kStartLineage), IsEmpty());
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStartTask), SizeIs(2));
  Task(workers_[0], id, 0).set_phase(node::v1::TASK_PHASE_STARTING);
  Beat(workers_[0]);
  Pass(absl::Seconds(2), All());
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStartTask), IsEmpty());
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
}

TEST_F(CoreTest, RepeatedReportsChangeNothing) {
  const std::string id = Running(2, 2);
  Lead(id, 3);
  const int64_t records = journal_.records();
  const std::string before = Job(id).SerializeAsString();
  for (int i = 0; i < 3; ++i) {
    for (const SessionId session : All()) {
      const Effects effects =
          core_.Step({absl::UnixEpoch(), NodeMessage{session, beats_[session]}}, now_);
      EXPECT_THAT(effects, IsEmpty());
    }
  }
  // A report of an older time, delivered late.
  Shard(stores_[0], id, 0).mutable_lead()->set_step(1);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id).progress().step(), 3);
  EXPECT_EQ(Job(id).SerializeAsString(), before);
  EXPECT_EQ(journal_.records(), records);
}

TEST_F(CoreTest, TheFirstDecidedStepIsRunning) {
  const std::string id = Probed(2, 1);
  ShardsReady(id);
  Lead(id, 1);  // a heartbeat of the tasks may come later
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
}

// ---- progress and success ----

TEST_F(CoreTest, ProgressComesFromTheLead) {
  const std::string id = Running(2, 1);
  common::v1::EpochRecord* epoch = Shard(stores_[0], id, 0).mutable_lead()->add_epochs();
  epoch->set_epoch(1);
  epoch->set_validation_accuracy(0.75);
  Lead(id, 6);
  const job::v1::Job job = Job(id);
  EXPECT_EQ(job.progress().step(), 6);
  EXPECT_EQ(job.progress().epoch(), 2);  // steps 5 to 9 are the second epoch
  EXPECT_EQ(job.progress().total_steps(), 10);
  EXPECT_EQ(job.progress().loss(), 0.5);
  EXPECT_EQ(job.progress().samples_per_second(), 160);
  EXPECT_DOUBLE_EQ(job.progress().eta_seconds(), 4 * 16 / 160.0);
  EXPECT_EQ(job.samples_used(), 96);
  ASSERT_THAT(job.epochs(), SizeIs(1));
  EXPECT_EQ(job.epochs(0).validation_accuracy(), 0.75);
}

TEST_F(CoreTest, SucceededMeansThatTheManifestIsThere) {
  const std::string id = Complete(2, 2);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  ASSERT_THAT(manifests_, SizeIs(1));
  const WriteManifest& write = manifests_[0];
  EXPECT_EQ(write.folder, absl::StrCat("/out/", id, "/1-10"));
  EXPECT_EQ(write.optimizer, "sgd");
  EXPECT_EQ(write.samples_used, 160);
  EXPECT_THAT(write.spec_digest_hex, SizeIs(64));
  std::vector<std::string> names;
  for (const common::v1::FileInfo& file : write.files) names.push_back(file.name());
  EXPECT_THAT(names,
              ElementsAre("shard-0.safetensors", "shard-1.safetensors", "weights.safetensors"));

  for (const SessionId session : All()) Beat(session);
  EXPECT_THAT(manifests_, SizeIs(1));  // one in flight
  Do(ManifestWritten{id, 1, 10, absl::OkStatus()});
  const job::v1::Job job = Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.weights_sha256(), std::string(64, 'a'));
  EXPECT_EQ(job.checkpoint_uri(), absl::StrCat("file:///out/", id, "/1-10"));
  EXPECT_EQ(job.workers(0).state(), "FINISHED");
  EXPECT_EQ(job.shards(1).state(), "FINISHED");
  EXPECT_THAT(EventTypes(id), ElementsAre("Submitted", "Admitted", "Resolved", "Started",
                                          "CheckpointSaved", "Succeeded"));
  // What was stopped because the job had ended did not fail.
  Task(workers_[0], id, 0).set_phase(node::v1::TASK_PHASE_FAILED);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id).workers(0).state(), "FINISHED");
  Task(workers_[0], id, 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id).workers(0).state(), "FINISHED");
  EXPECT_EQ(Saved(id).state(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(Saved(id).checkpoint_uri(), job.checkpoint_uri());

  // Each member is told what it may forget, until no member reports anything.
  EXPECT_THAT(Take(stores_[1], ConnectResponse::kFilesTaken), SizeIs(1));
  EXPECT_THAT(Take(stores_[1], ConnectResponse::kEndJob), SizeIs(1));
  EXPECT_THAT(Take(workers_[1], ConnectResponse::kStopTask), SizeIs(1));
  Pass(absl::Seconds(1), All());
  EXPECT_THAT(Take(stores_[1], ConnectResponse::kEndJob), SizeIs(2));
  for (const SessionId session : All()) Forget(session);
  for (const SessionId session : All()) Beat(session);
  Take(stores_[1], ConnectResponse::kEndJob);
  Take(workers_[1], ConnectResponse::kStopTask);
  Pass(absl::Seconds(2), All());
  EXPECT_THAT(Take(stores_[1], ConnectResponse::kEndJob), IsEmpty());
  EXPECT_THAT(Take(workers_[1], ConnectResponse::kStopTask), IsEmpty());
  EXPECT_NE(Submit(Spec(2, 2)), "");
  EXPECT_EQ(core_.ListJobs(1, {})[0].state(), JOB_STATE_STARTING);  // the slots are free
}

TEST_F(CoreTest, ALocalJobIsItsOwnLead) {
  AddNodes(1, 0);
  const std::string id = Submit(Spec(1, 0));
  AnswerProbe(workers_[0]);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStartTask), SizeIs(1));
  node::v1::TaskState& task = Task(workers_[0], id, 0);
  task.set_phase(node::v1::TASK_PHASE_RUNNING);
  task.mutable_lead()->set_lineage(1);
  task.mutable_lead()->set_step(10);
  task.mutable_lead()->set_complete(true);
  AddFile(task.mutable_files(), "shard-0.safetensors");
  AddFile(task.mutable_files(), "weights.safetensors");
  task.set_weights_sha256(std::string(64, 'b'));
  Beat(workers_[0]);
  ASSERT_THAT(manifests_, SizeIs(1));
  EXPECT_THAT(manifests_[0].files, SizeIs(2));
  Do(ManifestWritten{id, 1, 10, absl::OkStatus()});
  EXPECT_EQ(Job(id).state(), JOB_STATE_SUCCEEDED);
}

TEST_F(CoreTest, AFileThatIsNotWhatItWasEndsAsCheckpointCorrupt) {
  const std::string id = Complete(1, 1);
  for (int attempt = 1; attempt <= 5; ++attempt) {
    ASSERT_THAT(manifests_, SizeIs(attempt));
    EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
    Do(ManifestWritten{id, 1, 10, absl::DataLossError("shard-0.safetensors: 99 bytes, want 100")});
    Pass(absl::Seconds(1), All());  // and no later
  }
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "CheckpointCorrupt");
  EXPECT_THAT(Job(id).message(), HasSubstr("99 bytes, want 100"));
}

// ---- cancel ----

TEST_F(CoreTest, CancelBeforeTasksRunIsAtOnce) {
  const std::string pending = Submit(Spec(9, 1));
  Cancel(pending);
  EXPECT_EQ(Job(pending).state(), JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(pending).finished_at().seconds(),
            absl::ToUnixSeconds(absl::FromUnixSeconds(1000) + now_));

  AddNodes(2, 1);
  const std::string probing = Submit(Spec(2, 1));
  Cancel(probing);
  EXPECT_EQ(Job(probing).state(), JOB_STATE_CANCELLED);

  const std::string starting = Submit(Spec(2, 1));  // the slots are free again
  AnswerProbe(workers_[0]);
  AnswerProbe(workers_[1]);
  Cancel(starting);
  EXPECT_EQ(Job(starting).state(), JOB_STATE_CANCELLED);
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kEndJob), SizeIs(1));

  Cancel(starting);
  EXPECT_EQ(std::get<job::v1::CancelJobResponse>(LastReply().response).state(),
            JOB_STATE_CANCELLED);
  Cancel("no-such-job");
  EXPECT_TRUE(absl::IsNotFound(LastReply().status));
}

TEST_F(CoreTest, CancelWaitsForItsTasks) {
  const std::string id = Running(2, 1);
  order_.clear();
  Cancel(id);
  EXPECT_EQ(order_[0], "persist");
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Job(id).message(),
            "cancelling: waits for worker w0 on host host-w0, worker w1 on host host-w1");
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  Task(workers_[0], id, 0).set_phase(node::v1::TASK_PHASE_FAILED);
  Task(workers_[0], id, 0).set_exit_code(-15);
  Beat(workers_[0]);
  Forget(workers_[0]);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  Pass(absl::Seconds(6), {workers_[0], stores_[0]});  // the other host is gone for good
  EXPECT_EQ(Job(id).state(), JOB_STATE_CANCELLED);
  EXPECT_EQ(Job(id).workers(0).exit_code(), -15);
  EXPECT_EQ(Job(id).generation(), 1);  // no other task took over
}

TEST_F(CoreTest, CancelDoesNotWaitForEver) {
  const std::string id = Running(1, 1);
  Cancel(id);
  Pass(absl::Seconds(41), All());  // the node lives and goes on to report the task
  EXPECT_EQ(Job(id).state(), JOB_STATE_CANCELLED);
  EXPECT_THAT(Job(id).message(), HasSubstr("still reported"));
  const std::string next = Submit(Spec(1, 1));
  EXPECT_EQ(Job(next).state(), JOB_STATE_PENDING);  // the device is still in use
}

TEST_F(CoreTest, ATaskThatWasJustOrderedIsWaitedFor) {
  const std::string id = Probed(1, 1);
  ShardsReady(id);  // StartTask is on its way
  Cancel(id);
  Beat(workers_[0]);  // left before it arrived
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  Pass(absl::Milliseconds(2500), All());
  EXPECT_EQ(Job(id).state(), JOB_STATE_CANCELLED);
}

TEST_F(CoreTest, WhatIsOnDiskBeatsACancel) {
  const std::string id = Complete(1, 1);
  Cancel(id);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  Do(ManifestWritten{id, 1, 10, absl::OkStatus()});
  EXPECT_EQ(Job(id).state(), JOB_STATE_SUCCEEDED);
}

}  // namespace
}  // namespace capstan::coordinator::core
