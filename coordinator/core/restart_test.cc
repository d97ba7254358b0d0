// A second core goes on from what the first one made durable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_CANCELLED;
using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using common::v1::JOB_STATE_SUCCEEDED;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

// The coordinator with its nodes; Restart() takes the coordinator away and begins another one, of
// which the nodes know nothing yet.
class RestartTest : public ::testing::Test {
 protected:
  RestartTest() : world_(std::make_unique<World>()) {}

  World& w() { return *world_; }

  void AddNodes(int workers, int stores) {
    for (int i = 0; i < workers; ++i) workers_.push_back(w().Worker(absl::StrCat("w", i)));
    for (int i = 0; i < stores; ++i) stores_.push_back(w().Store(absl::StrCat("s", i)));
  }
  std::string Running(int workers, int shards) {
    const std::string id = w().Submit(World::Spec(workers, shards), "the-request");
    for (const SessionId session : workers_) w().AnswerProbe(session);
    for (int i = 0; i < shards; ++i) {
      w().Shard(stores_[i], id, i).set_ready(true);
      w().Beat(stores_[i]);
    }
    for (int i = 0; i < workers; ++i) {
      w().Task(workers_[i], id, i).set_phase(node::v1::TASK_PHASE_RUNNING);
      w().Beat(workers_[i]);
    }
    return id;
  }
  void Lead(const std::string& id, int64_t step, bool complete = false) {
    node::v1::LeadState* lead = w().Shard(stores_[0], id, 0).mutable_lead();
    lead->set_lineage(1);
    lead->set_step(step);
    lead->set_samples_used(16 * step);
    lead->set_complete(complete);
    w().Beat(stores_[0]);
  }
  static void AddFile(node::v1::WrittenFiles* files, const std::string& name) {
    files->set_lineage(1);
    files->set_step(10);
    common::v1::FileInfo* file = files->add_files();
    file->set_name(name);
    file->set_size_bytes(4);
    file->set_sha256(std::string(32, 'x'));
  }
  // All that the nodes report of a job that is done.
  void Finish(const std::string& id) {
    Lead(id, 10, /*complete=*/true);
    for (size_t i = 0; i < stores_.size(); ++i) {
      node::v1::ShardState& shard = w().Shard(stores_[i], id, static_cast<int>(i));
      AddFile(shard.mutable_files(), absl::StrCat("shard-", i, ".safetensors"));
      w().Beat(stores_[i]);
    }
    node::v1::TaskState& task = w().Task(workers_[0], id, 0);
    task.set_phase(node::v1::TASK_PHASE_FINISHED);
    AddFile(task.mutable_files(), "weights.safetensors");
    task.set_weights_sha256(std::string(64, 'a'));
    w().Beat(workers_[0]);
  }

  // `silent`: nodes that do not come back.
  void Restart(const std::set<SessionId>& silent = {}, Restored restored = {}) {
    auto next = std::make_unique<World>();
    // Another boot of the machine: its monotonic clock begins anew.
    next->now_ = absl::Seconds(3);
    next->journal_ = w().journal_;
    next->calls_ = w().calls_;
    ASSERT_TRUE(
        next->core_.Restore(next->journal_.state(), next->now_, absl::FromUnixSeconds(2000)).ok());
    std::vector<std::pair<SessionId*, std::string>> back;
    for (size_t i = 0; i < workers_.size(); ++i) back.push_back({&workers_[i], "w"});
    const size_t num_workers = back.size();
    for (size_t i = 0; i < stores_.size(); ++i) back.push_back({&stores_[i], "s"});
    auto before = std::move(world_);
    world_ = std::move(next);
    w().Do(std::move(restored));
    w().Pass(absl::Milliseconds(700));
    for (size_t i = 0; i < back.size(); ++i) {
      SessionId& session = *back[i].first;
      if (silent.count(session) > 0) {
        session = 0;
        continue;
      }
      const bool worker = i < num_workers;
      const std::string name = absl::StrCat(back[i].second, worker ? i : i - num_workers);
      const int64_t incarnation =
          before->journal_.state().nodes.at(name).incarnation;  // as it was told
      const auto beats = before->beats_[session];
      session = w().Connect(name, worker ? common::v1::ROLE_WORKER : common::v1::ROLE_PARAM_STORE,
                            incarnation);
      EXPECT_EQ(w().Take(session, ConnectResponse::kRegistered)[0].registered().incarnation(),
                incarnation);
      w().beats_[session] = beats;
      w().Beat(session);
    }
  }
  std::vector<SessionId> All() {
    std::vector<SessionId> all;
    for (const SessionId session : workers_) {
      if (session != 0) all.push_back(session);
    }
    for (const SessionId session : stores_) {
      if (session != 0) all.push_back(session);
    }
    return all;
  }
  int Sent(ConnectResponse::MessageCase kind) {
    int count = 0;
    for (const SessionId session : All()) {
      count += static_cast<int>(w().Take(session, kind).size());
    }
    return count;
  }

  std::unique_ptr<World> world_;
  std::vector<SessionId> workers_;
  std::vector<SessionId> stores_;
};

TEST_F(RestartTest, ARunningJobGoesOnAndNobodyIsStartedAgain) {
  AddNodes(2, 2);
  const std::string id = Running(2, 2);
  Lead(id, 3);
  const job::v1::Job before = w().Job(id);
  ASSERT_EQ(before.state(), JOB_STATE_RUNNING);
  Restart();

  job::v1::Job job = w().Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.generation(), 1);
  EXPECT_EQ(job.progress().step(), 3);
  EXPECT_EQ(job.samples_used(), 48);
  EXPECT_EQ(job.spec().SerializeAsString(), before.spec().SerializeAsString());
  EXPECT_EQ(job.resolved().SerializeAsString(), before.resolved().SerializeAsString());
  EXPECT_EQ(job.submitted_at().seconds(), before.submitted_at().seconds());
  EXPECT_THAT(w().EventTypes(id), ElementsAre("Submitted", "Admitted", "Resolved", "Started"));
  w().Pass(absl::Seconds(20), All());
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(Sent(ConnectResponse::kStartTask), 0);
  EXPECT_EQ(Sent(ConnectResponse::kStartLineage), 0);
  EXPECT_EQ(Sent(ConnectResponse::kStopTask), 0);
  EXPECT_EQ(Sent(ConnectResponse::kEndJob), 0);

  Finish(id);
  ASSERT_THAT(w().manifests_, SizeIs(1));
  EXPECT_EQ(w().manifests_[0].samples_used, 160);
  w().Do(ManifestWritten{id, 1, 10, absl::OkStatus()});
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(w().Saved(id).state(), JOB_STATE_SUCCEEDED);

  // It stays listed, and what still runs of it is wound down by the next coordinator.
  Restart();
  job = w().Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.weights_sha256(), std::string(64, 'a'));
  EXPECT_EQ(job.checkpoint_uri(), absl::StrCat("file:///out/", id, "/1-10"));
  // The tasks of an ended job are not reported again, and it did not cancel them.
  EXPECT_EQ(job.workers(0).state(), "FINISHED");
  EXPECT_EQ(job.workers(1).state(), "FINISHED");
  w().Pass(absl::Seconds(1), All());
  EXPECT_GT(Sent(ConnectResponse::kStopTask), 0);
  EXPECT_GT(Sent(ConnectResponse::kEndJob), 0);
  for (const SessionId session : All()) w().Forget(session);
  w().Pass(absl::Seconds(1), All());
  EXPECT_TRUE(w().Saved(id).wound_down());
}

TEST_F(RestartTest, EveryAcceptedSubmitIsThereAndTheSameRequestIsTheSameJob) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(w().Submit(World::Spec(1, 1), absl::StrCat("q", i)));
  w().Cancel(ids[3]);
  Restart();
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(w().Job(ids[i]).state(), i == 3 ? JOB_STATE_CANCELLED : JOB_STATE_PENDING);
    EXPECT_EQ(w().Submit(World::Spec(1, 1), absl::StrCat("q", i)), ids[i]);
    EXPECT_TRUE(std::get<job::v1::SubmitJobResponse>(w().LastReply().response).existed());
  }
  EXPECT_EQ(w().Submit(World::Spec(2, 1), "q0"), "");
  EXPECT_TRUE(absl::IsAlreadyExists(w().LastReply().status));
  // The queue keeps its order, and new jobs stand behind.
  const std::string last = w().Submit(World::Spec(1, 1), "q5");
  AddNodes(1, 1);
  EXPECT_EQ(w().Job(ids[0]).state(), JOB_STATE_STARTING);
  EXPECT_THAT(w().Job(last).message(), HasSubstr("(place 4 in "));
}

TEST_F(RestartTest, AJobIsItsOwnersAndStaysSo) {
  const Caller ann{.name = "ann"};  // nothing else is said of her
  const Caller bob{.name = "bob"};
  const auto ask = [this](const Caller& caller, const std::string& id) {
    std::vector<absl::StatusCode> codes;
    CallId call = 1000;
    const auto told = [&](auto event) {
      w().Do(std::move(event));
      codes.push_back(w().replies_[call].status.code());
    };
    job::v1::SuspendJobRequest suspend;
    job::v1::ResumeJobRequest resume;
    job::v1::UpdateJobRequest update;
    job::v1::RetryJobRequest retry;
    update.set_max_restarts(1);
    suspend.set_job_id(id);
    resume.set_job_id(id);
    update.set_job_id(id);
    retry.set_job_id(id);
    told(Control{++call, suspend, caller});
    told(Control{++call, resume, caller});
    told(Control{++call, update, caller});
    told(Cancel{++call, id, caller});
    told(Control{++call, retry, caller});
    return codes;
  };
  using Code = absl::StatusCode;
  w().caller_ = ann;
  const std::string id = w().Submit(World::Spec(1, 1), "q");
  Restart();
  EXPECT_EQ(w().Job(id).owner(), "ann");
  EXPECT_THAT(ask(bob, id), Each(Code::kPermissionDenied));
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_PENDING);
  EXPECT_THAT(ask(ann, id), Each(Code::kOk));
  EXPECT_THAT(ask({.name = "root", .any_job = true}, id), Each(Code::kOk));

  // Her request id is hers alone: another person does not even learn the id of her job.
  w().caller_ = bob;
  EXPECT_EQ(w().Submit(World::Spec(1, 1), "q"), "");
  EXPECT_THAT(w().LastReply().status.message(), Not(HasSubstr(id)));
  // A job without an owner, from a Unix socket, does not belong to a caller from the network.
  w().caller_ = {};
  const std::string nobodys = w().Submit(World::Spec(1, 1), "p");
  EXPECT_THAT(ask({}, nobodys), Each(Code::kPermissionDenied));  // closed unless it is said
  EXPECT_THAT(ask({.name = "", .any_job = true}, nobodys), Each(Code::kOk));
}

TEST_F(RestartTest, AStartGoesOnWhereItWas) {
  AddNodes(2, 1);
  // Probed and not resolved; resolved and not told; told and not answered.
  const std::string id = w().Submit(World::Spec(2, 1));
  w().AnswerProbe(workers_[0]);
  Restart();
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_STARTING);
  w().Pass(absl::Seconds(6), All());
  for (const SessionId session : workers_) w().AnswerProbe(session);
  ASSERT_EQ(w().Job(id).generation(), 1);
  Restart();
  w().Pass(absl::Seconds(1), All());
  ASSERT_GT(w().Take(stores_[0], ConnectResponse::kStartLineage).size(), 0u);
  w().Shard(stores_[0], id, 0).set_ready(true);
  w().Beat(stores_[0]);
  Restart();
  w().Pass(absl::Seconds(1), All());
  EXPECT_THAT(w().Take(stores_[0], ConnectResponse::kStartLineage), IsEmpty());
  for (int i = 0; i < 2; ++i) {
    EXPECT_GT(w().Take(workers_[i], ConnectResponse::kStartTask).size(), 0u);
    w().Task(workers_[i], id, i).set_phase(node::v1::TASK_PHASE_RUNNING);
    w().Beat(workers_[i]);
  }
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
}

TEST_F(RestartTest, NothingExpiresForALeaseAndThenTheSilentAreLost) {
  AddNodes(2, 1);
  const std::string id = Running(2, 1);
  Restart({workers_[1]});
  w().Pass(absl::Seconds(4), All());
  EXPECT_EQ(w().Job(id).generation(), 1);
  w().Pass(absl::Seconds(2), All());
  EXPECT_EQ(w().Job(id).generation(), 2);
  EXPECT_THAT(w().EventTypes(id), Contains("WorkerLost"));
  EXPECT_EQ(w().Saved(id).view().generation(), 2);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
}

TEST_F(RestartTest, AnotherProcessWithTheNameIsALoss) {
  AddNodes(2, 1);
  const std::string id = Running(2, 1);
  const SessionId gone = workers_[1];
  Restart({gone});
  w().Worker("w1");  // began anew while no coordinator was there: its task is gone
  w().Pass(absl::Milliseconds(100), All());
  EXPECT_EQ(w().Job(id).generation(), 2);
  EXPECT_EQ(w().Saved(id).ranks(1).lost(), true);
  EXPECT_GT(w().journal_.state().nodes.at("w1").incarnation,
            w().journal_.state().nodes.at("w0").incarnation);
}

TEST_F(RestartTest, ATaskThatDiedMeanwhileIsALossLikeAnyOther) {
  AddNodes(2, 1);
  const std::string id = Running(2, 1);
  node::v1::TaskState& task = w().Task(workers_[1], id, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(-9);
  Restart();
  w().Pass(absl::Milliseconds(100), All());
  EXPECT_EQ(w().Job(id).generation(), 2);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
}

// The coordinator went before it told which tasks have the lanes.
TEST_F(RestartTest, LanesThatWaitedForANewOwnerGetOneAtOnce) {
  AddNodes(2, 1);
  const std::string id = Running(2, 1);
  node::v1::TaskState& task = w().Task(workers_[1], id, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(-9);
  w().Beat(workers_[1]);
  ASSERT_TRUE(w().Saved(id).ranks(1).lost());
  ASSERT_EQ(w().Job(id).generation(), 1);  // other losses of that moment are waited for
  w().Forget(workers_[1]);
  Restart();
  EXPECT_THAT(w().core_.Peek(id)->lineages().Owners(), Each(0));
}

TEST_F(RestartTest, AJobThatFailedWithItsLastWorkerStaysFailed) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  node::v1::TaskState& task = w().Task(workers_[0], id, 0);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("NonFiniteLoss");
  w().Beat(workers_[0]);
  ASSERT_EQ(w().Job(id).state(), common::v1::JOB_STATE_FAILED);
  Restart();
  EXPECT_EQ(w().Job(id).state(), common::v1::JOB_STATE_FAILED);
  EXPECT_EQ(w().Job(id).reason(), "NonFiniteLoss");
}

TEST_F(RestartTest, ACancelThatWasAcceptedIsCarriedOut) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  w().Cancel(id);
  Restart();
  w().Pass(absl::Seconds(1), All());
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
  EXPECT_GT(w().Take(workers_[0], ConnectResponse::kStopTask).size(), 0u);
  w().Forget(workers_[0]);
  w().Beat(workers_[0]);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_CANCELLED);
}

TEST_F(RestartTest, WhatAnEndedJobHoldsIsTakenFromIt) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  w().Cancel(id);
  w().Forget(workers_[0]);
  w().Beat(workers_[0]);
  ASSERT_EQ(w().Job(id).state(), JOB_STATE_CANCELLED);
  ASSERT_FALSE(w().Saved(id).wound_down());  // its shard is there still
  Restart();
  EXPECT_GT(Sent(ConnectResponse::kEndJob), 0);
  w().Forget(stores_[0]);
  w().Pass(absl::Minutes(1), All());
  EXPECT_TRUE(w().Saved(id).wound_down());
}

TEST_F(RestartTest, SlotsOfALivingTaskAreNotGivenAway) {
  AddNodes(1, 1);
  const std::string first = Running(1, 1);
  const std::string second = w().Submit(World::Spec(1, 1));
  Restart();
  w().Pass(absl::Seconds(2), All());
  EXPECT_EQ(w().Job(second).state(), JOB_STATE_PENDING);
  w().Cancel(first);
  w().Forget(workers_[0]);
  w().Forget(stores_[0]);
  w().Pass(absl::Seconds(3), All());
  EXPECT_EQ(w().Job(first).state(), JOB_STATE_CANCELLED);
  EXPECT_EQ(w().Job(second).state(), JOB_STATE_STARTING);
}

TEST_F(RestartTest, AManifestThatLiesOnDiskIsTheTruth) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  const v1::DurableJob saved = w().Saved(id);
  FoundManifest found;
  found.lineage = 1;
  found.step = 10;
  found.spec_digest = saved.spec_digest();
  found.weights_sha256 = std::string(64, 'b');
  found.samples_used = 160;
  Restored restored;
  restored.manifests[id] = {found};
  // The processes that wrote it are gone, too.
  Restart({workers_[0], stores_[0]}, restored);
  const job::v1::Job job = w().Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.weights_sha256(), std::string(64, 'b'));
  EXPECT_EQ(job.samples_used(), 160);
  EXPECT_EQ(job.checkpoint_uri(), absl::StrCat("file:///out/", id, "/1-10"));
}

// All was reported, so the loss of a shard meant nothing; the reports were in this memory alone.
// What a crash would forgive: the wait before another try, a condition, the time that has run.
TEST_F(RestartTest, BackOffConditionsAndRunningTimeGoOn) {
  AddNodes(1, 0);
  job::v1::JobSpec spec = World::Spec(1, 0);
  spec.mutable_recovery()->set_backoff_initial_seconds(60);
  spec.mutable_recovery()->set_backoff_max_seconds(60);
  spec.mutable_limits()->set_active_deadline_seconds(1000);
  const std::string id = w().Submit(spec, "the-request");
  w().AnswerProbe(workers_[0]);
  node::v1::TaskState& task = w().Task(workers_[0], id, 0);
  task.set_phase(node::v1::TASK_PHASE_RUNNING);
  task.mutable_lead()->set_lineage(1);
  task.mutable_lead()->set_step(3);
  task.mutable_files()->set_lineage(1);
  task.mutable_files()->set_step(2);
  task.mutable_files()->set_error("no space left on device");
  w().Beat(workers_[0]);
  ASSERT_THAT(w().Job(id).conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  task.clear_files();
  w().Pass(absl::Seconds(200), All());  // and only heartbeats
  Restart();
  EXPECT_THAT(w().Job(id).conditions(), ElementsAre("CHECKPOINT_DEGRADED"));
  EXPECT_GE(w().core_.Peek(id)->clock().Ran(w().now_), absl::Seconds(140));  // saved once a minute

  node::v1::TaskState& dead = w().Task(workers_[0], id, 0);
  dead.set_phase(node::v1::TASK_PHASE_FAILED);
  dead.set_exit_code(-9);
  w().Beat(workers_[0]);
  w().Forget(workers_[0]);
  w().Pass(absl::Seconds(5), All());
  ASSERT_EQ(w().Job(id).reason(), "BackOff");
  const absl::Duration ran = w().core_.Peek(id)->clock().Ran(w().now_);
  Restart();
  EXPECT_EQ(w().Job(id).reason(), "BackOff");
  EXPECT_TRUE(w().Job(id).has_retry_at());
  w().Pass(absl::Seconds(50), All());
  EXPECT_EQ(w().Job(id).reason(), "BackOff");  // the 60 s are not over
  EXPECT_NEAR(absl::ToDoubleSeconds(w().core_.Peek(id)->clock().Ran(w().now_) - ran), 0, 0.01);
  w().Pass(absl::Seconds(12), All());
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_STARTING);
  w().Pass(absl::Seconds(10), All());
  EXPECT_GE(w().core_.Peek(id)->clock().Ran(w().now_), ran + absl::Seconds(9));
}

TEST_F(RestartTest, AShardLostAfterTheEndWasReportedIsReplacedWhereThatWasForgotten) {
  AddNodes(1, 2);
  const std::string id = Running(1, 2);
  Finish(id);
  ASSERT_THAT(w().manifests_, SizeIs(1));
  w().Do(NodeDisconnected{stores_[1], /*goodbye=*/true});
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
  Restart({stores_[1]});
  const SessionId other = w().Store("other");
  EXPECT_EQ(w().Job(id).state(), common::v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(w().Job(id).reason(), "ShardLost");
  std::vector<SessionId> heard = All();
  heard.push_back(other);
  w().Pass(absl::Seconds(5), heard);
  EXPECT_THAT(w().EventTypes(id), Contains("LineageStarted"));
  EXPECT_THAT(w().Take(other, ConnectResponse::kStartLineage), Not(IsEmpty()));
}

TEST_F(RestartTest, ACheckpointThatWasGivenUpStaysSo) {
  AddNodes(1, 2);
  const std::string id = Running(1, 2);
  Lead(id, 4);
  node::v1::WrittenFiles& failed = *w().Shard(stores_[1], id, 1).mutable_files();
  failed.set_lineage(1);
  failed.set_step(4);
  failed.set_error("no space left on device");
  w().Beat(stores_[1]);
  ASSERT_THAT(w().EventTypes(id), Contains("CheckpointFailed"));
  failed.Clear();  // it was told, and let it go
  Restart();
  Lead(id, 4);
  node::v1::WrittenFiles* files = w().Shard(stores_[0], id, 0).mutable_files();
  AddFile(files, "shard-0.safetensors");
  files->set_step(4);
  w().Beat(stores_[0]);
  const auto taken = w().Take(stores_[0], ConnectResponse::kFilesTaken);
  ASSERT_THAT(taken, Not(IsEmpty()));  // or its lead would wait for it before the next one
  EXPECT_EQ(taken[0].files_taken().step(), 4);
}

TEST_F(RestartTest, NumbersThatAJobWasResumedOnBeforeItWasResolvedAreKept) {
  const std::string id = w().Submit(World::Spec(4, 1), "the-request");
  job::v1::SuspendJobRequest suspend;
  suspend.set_job_id(id);
  w().Do(Control{++w().calls_, suspend, w().caller_});
  job::v1::ResumeJobRequest resume;
  resume.set_job_id(id);
  resume.set_num_workers(1);
  w().Do(Control{++w().calls_, resume, w().caller_});
  ASSERT_TRUE(w().LastReply().status.ok()) << w().LastReply().status;
  Restart();
  AddNodes(1, 1);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_STARTING);
  EXPECT_EQ(w().Submit(World::Spec(4, 1), "the-request"), id);  // what was submitted is that still
}

// Its disk hangs: whatever lies there may be its end, so nothing is decided until it answers.
TEST_F(RestartTest, AJobWhoseFolderIsNotReadIsLeftAloneAndTheOthersGoOn) {
  AddNodes(2, 1);
  const std::string id = Running(1, 1);
  const std::string waits = w().Submit(World::Spec(3, 1));
  const v1::DurableJob saved = w().Saved(id);
  Restored others;
  others.jobs = std::set<std::string>{waits};
  // The shard is lost. Without the folder it is not known whether that matters.
  Restart({stores_[0]}, others);
  w().Pass(absl::Seconds(20), {workers_[0], workers_[1]});
  job::v1::Job job = w().Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_EQ(job.message(), absl::StrCat("its checkpoint folder /out/", id,
                                        ", which has not answered since the coordinator started"));
  EXPECT_THAT(w().Job(waits).message(), HasSubstr("needs 3"));
  // A task that fails meanwhile ends nothing, either.
  w().Task(workers_[0], id, 0).set_phase(node::v1::TASK_PHASE_FAILED);
  w().Task(workers_[0], id, 0).set_reason("NonFiniteLoss");
  w().Beat(workers_[0]);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);

  FoundManifest found;
  found.lineage = 1;
  found.step = 10;
  found.spec_digest = saved.spec_digest();
  found.weights_sha256 = std::string(64, 'b');
  Restored itself;
  itself.jobs = std::set<std::string>{id};
  itself.manifests[id] = {found};
  w().Do(std::move(itself));
  job = w().Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_SUCCEEDED);
  EXPECT_EQ(job.restarts(), 0);
}

TEST_F(RestartTest, AJobWhoseFolderAnswersLateRecoversThen) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  Restored none;
  none.jobs = std::set<std::string>();
  Restart({stores_[0]}, none);
  w().Pass(absl::Seconds(20), {workers_[0]});
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
  Restored itself;
  itself.jobs = std::set<std::string>{id};
  w().Do(std::move(itself));
  EXPECT_EQ(w().Job(id).state(), common::v1::JOB_STATE_RECOVERING);
  EXPECT_EQ(w().Job(id).restarts(), 1);
}

TEST_F(RestartTest, AJobWhoseFolderHangsCanBeCancelled) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  const std::string waits = w().Submit(World::Spec(1, 1));
  Restored none;
  none.jobs = std::set<std::string>();
  Restart({}, none);
  EXPECT_EQ(w().Job(id).message(), "");  // it may answer at once
  w().Cancel(waits);
  EXPECT_EQ(w().Job(waits).state(), JOB_STATE_CANCELLED);
  w().Cancel(id);
  w().Pass(absl::Minutes(1), All());
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);  // its end may lie there
  w().Pass(absl::Minutes(2), All());
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_CANCELLED);
  // Its store has its part still.
  EXPECT_FALSE(w().Saved(id).wound_down());
  EXPECT_THAT(w().Take(stores_[0], ConnectResponse::kEndJob), Not(IsEmpty()));
  for (const SessionId session : All()) w().Forget(session);
  w().Pass(absl::Seconds(1), All());
  EXPECT_TRUE(w().Saved(id).wound_down());
}

TEST_F(RestartTest, ATaskThatWasHeardBeforeItsFolderWasReadIsNotStartedAgain) {
  AddNodes(1, 0);
  const std::string id = Running(1, 0);
  Restored none;
  none.jobs = std::set<std::string>();
  Restart({}, none);
  w().Pass(absl::Seconds(2), All());
  Restored itself;
  itself.jobs = std::set<std::string>{id};
  w().Do(std::move(itself));
  EXPECT_EQ(Sent(ConnectResponse::kStartTask), 0);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
}

// No task is stopped there: the node may have one of the job again.
TEST_F(RestartTest, AWorkerThatWasLostBeforeTheFolderWasReadJoinsAgain) {
  AddNodes(2, 1);
  const std::string id = Running(2, 1);
  Restored none;
  none.jobs = std::set<std::string>();
  Restart({}, none);
  w().Pass(absl::Seconds(6), {workers_[0], stores_[0]});
  ASSERT_TRUE(w().core_.nodes().Find("w1")->lost());
  w().Forget(workers_[1]);
  w().Beat(workers_[1]);
  Restored itself;
  itself.jobs = std::set<std::string>{id};
  w().Do(std::move(itself));
  w().Pass(absl::Seconds(1), All());
  EXPECT_THAT(w().EventTypes(id), Contains("WorkerJoins"));
  EXPECT_EQ(Sent(ConnectResponse::kStopTask), 0);
}

TEST_F(RestartTest, AManifestOfAnotherHistoryIsNone) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  FoundManifest found;
  found.lineage = 1;
  found.step = 10;
  found.spec_digest = std::string(32, 'z');
  Restored restored;
  restored.manifests[id] = {found};
  Restart({}, restored);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
}

// The record was put back from a copy: what it lacks was begun by its successor.
TEST_F(RestartTest, AHistoryAboveTheRecordIsGoneOnFromInOneAboveIt) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  FoundManifest found;
  found.lineage = 4;
  found.step = 7;
  found.spec_digest = w().Saved(id).spec_digest();
  found.samples_used = 112;
  found.orders = {2};
  for (const int64_t bytes : {100, 20}) found.files.emplace_back().set_size_bytes(bytes);
  Restored restored;
  restored.manifests[id] = {found};
  restored.lineages[id] = 6;  // of files without a manifest
  Restart({}, restored);
  const job::v1::Job job = w().Job(id);
  EXPECT_EQ(job.lineage(), 7);
  EXPECT_EQ(job.restarts(), 0);
  EXPECT_THAT(w().EventTypes(id), Contains("RecordIsOld"));
  const auto starts = w().Take(stores_[0], ConnectResponse::kStartLineage);
  ASSERT_FALSE(starts.empty());
  EXPECT_EQ(starts.back().start_lineage().view().lineage(), 7);
  EXPECT_EQ(starts.back().start_lineage().base_manifest(), absl::StrCat("/out/", id, "/4-7"));
  EXPECT_EQ(w().Saved(id).orders_size(), 2);  // the next one is the third
  // What the first one was is not known: it is of a step that is over, and does nothing.
  ASSERT_EQ(starts.back().start_lineage().orders_size(), 1);
  EXPECT_EQ(starts.back().start_lineage().orders(0).id(), 1);
  EXPECT_EQ(starts.back().start_lineage().orders(0).step(), 6);
  ASSERT_EQ(job.checkpoints_size(), 1);
  EXPECT_EQ(job.checkpoints(0).id(), "4-7");
  EXPECT_EQ(job.checkpoints(0).size_bytes(), 120);
  EXPECT_EQ(job.checkpoints(0).committed_at().seconds(), 1003);  // when it was found
}

TEST_F(RestartTest, FoldersOfTheHistoryOnRecordAreNoNews) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  Restored restored;
  restored.lineages[id] = 1;
  Restart({}, restored);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(w().Job(id).lineage(), 1);
  EXPECT_THAT(w().EventTypes(id), Not(Contains("RecordIsOld")));
}

// A person made a folder 999999999999-1 in that of the job: it does not use the numbers up.
TEST_F(RestartTest, ALineageThatCannotBeIsNotGoneAbove) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  FoundManifest found;
  found.lineage = 999999999999;
  found.step = 10;
  found.spec_digest = w().Saved(id).spec_digest();
  Restored restored;
  restored.manifests[id] = {found};
  restored.lineages[id] = 999999999999;
  Restart({}, restored);
  EXPECT_EQ(w().Job(id).state(), JOB_STATE_RUNNING);
  EXPECT_EQ(w().Job(id).lineage(), 1);
  w().Shard(stores_[0], id, 0).set_lineage(999999999999);
  w().Beat(stores_[0]);
  w().Beat(stores_[0]);
  EXPECT_EQ(w().Job(id).lineage(), 1);
  int told = 0;
  const LogBuffer& logs = *w().core_.Logs(id);
  for (int64_t i = logs.dropped(); i < logs.next(); ++i) {
    told += absl::StrContains(logs.Find(i)->text(), "it is none of this job") ? 1 : 0;
  }
  EXPECT_EQ(told, 1);
}

TEST_F(RestartTest, ARecordFromBeforeTheJobWasResolvedRepeatsNoLineage) {
  AddNodes(1, 1);
  const std::string id = w().Submit(World::Spec(1, 1));
  const MemoryJournal copy = w().journal_;
  w().AnswerProbe(workers_[0]);
  FoundManifest found;
  found.lineage = 4;
  found.step = 7;
  found.spec_digest = w().Saved(id).spec_digest();
  FoundManifest other = found;
  other.lineage = 5;
  other.spec_digest = std::string(32, 'x');  // of another training
  Restored restored;
  restored.manifests[id] = {found, other};
  restored.lineages[id] = 6;
  w().journal_ = copy;
  Restart({}, restored);
  EXPECT_THAT(w().core_.StoragePaths(), ElementsAre(testing::Pair(id, absl::StrCat("/out/", id))));
  w().AnswerProbe(workers_[0]);
  EXPECT_EQ(w().Job(id).lineage(), 7);
  const auto starts = w().Take(stores_[0], ConnectResponse::kStartLineage);
  ASSERT_FALSE(starts.empty());
  EXPECT_EQ(starts.back().start_lineage().base_manifest(), absl::StrCat("/out/", id, "/4-7"));
  EXPECT_THAT(w().EventTypes(id), Contains("CheckpointFound"));
}

TEST_F(RestartTest, AShardAheadOfTheRecordGetsALineageAboveItsOwn) {
  AddNodes(1, 1);
  const std::string id = Running(1, 1);
  w().Shard(stores_[0], id, 0).set_lineage(9);
  w().Beat(stores_[0]);
  EXPECT_EQ(w().Job(id).lineage(), 10);
  const auto starts = w().Take(stores_[0], ConnectResponse::kStartLineage);
  ASSERT_FALSE(starts.empty());
  EXPECT_EQ(starts.back().start_lineage().view().lineage(), 10);
}

TEST(RestoreTest, ADamagedRecordIsRefused) {
  DurableState state;
  state.jobs["a-1"] = "no job";
  CoordinatorCore core(World::Filled({}));
  const absl::Status status = core.Restore(state, absl::ZeroDuration(), absl::UnixEpoch());
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("a-1"));
}

TEST(RestoreTest, AStateAndAViewThatPeopleWereToldAreNoNews) {
  World world;
  const SessionId worker = world.Worker("w0");
  const std::string id = world.Submit(World::Spec(1, 0));
  world.AnswerProbe(worker);
  ASSERT_EQ(world.Job(id).generation(), 1);
  World next;
  next.journal_ = world.journal_;
  ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Do(Restored{});
  job::v1::UpdateJobRequest update;
  update.set_job_id(id);
  update.set_max_restarts(7);
  for (World* const of : {&world, &next}) {
    int told = 0;
    for (const Effect& effect : of->Do(Control{++of->calls_, update, of->caller_})) {
      const auto* changed = std::get_if<JobChanged>(&effect);
      if (changed == nullptr) continue;
      ++told;
      EXPECT_EQ(changed->job_id, id);
      EXPECT_FALSE(changed->new_state);
      EXPECT_FALSE(changed->new_generation);
    }
    EXPECT_EQ(told, 1);
  }
}

TEST(RestoreTest, ATaskOfANodeThatIsNotOnRecordIsLost) {
  World world;
  const SessionId first = world.Worker("w0");
  const SessionId second = world.Worker("w1");
  world.Store("s0");
  const std::string id = world.Submit(World::Spec(2, 1));
  for (const SessionId session : {first, second}) world.AnswerProbe(session);
  ASSERT_EQ(world.Job(id).lineage(), 1);
  DurableState state = world.journal_.state();
  ASSERT_EQ(state.nodes.erase("w1"), 1u);
  World next;
  ASSERT_TRUE(next.core_.Restore(state, next.now_, absl::FromUnixSeconds(2000)).ok());
  next.Do(Restored{});
  EXPECT_THAT(next.EventTypes(id), Contains("WorkerLost"));
}

// As if it reads large folders first.
TEST(RestoreTest, TimeBeforeTheFirstStepIsNobodysSilence) {
  World world;
  world.Worker("w0");
  World next;
  ASSERT_TRUE(
      next.core_.Restore(world.journal_.state(), next.now_, absl::FromUnixSeconds(2000)).ok());
  next.now_ += absl::Minutes(1);
  next.Do(Restored{});
  next.Do(Tick{});
  EXPECT_FALSE(next.core_.nodes().Find("w0")->lost());
}

// A journal that has lost the job, or a wrong state folder: what runs is good as long as a person
// may still put it right.
TEST(RestoreTest, WhatIsOfAJobThatTheJournalDoesNotKnowIsSparedForAWhile) {
  World world;
  ASSERT_TRUE(world.core_.Restore(DurableState(), world.now_, absl::UnixEpoch()).ok());
  world.Do(Restored{});
  const SessionId worker = world.Worker("w0");
  const SessionId store = world.Store("s0");
  world.Task(worker, "a-1", 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  world.Shard(store, "a-1", 0);
  world.Pass(absl::Seconds(59), {worker, store});
  EXPECT_TRUE(world.Take(worker, ConnectResponse::kStopTask).empty());
  EXPECT_TRUE(world.Take(store, ConnectResponse::kEndJob).empty());
  const Effects effects = world.Do(NodeMessage{worker, world.beats_[worker]});
  const auto* spared = std::get_if<TaskSpared>(&effects.at(0));
  ASSERT_NE(spared, nullptr);
  EXPECT_EQ(spared->node, "w0");
  EXPECT_EQ(spared->job_id, "a-1");
  EXPECT_GT(spared->left, absl::ZeroDuration());
  EXPECT_LE(spared->left, absl::Seconds(1));
  world.Pass(absl::Seconds(2), {worker, store});
  EXPECT_FALSE(world.Take(worker, ConnectResponse::kStopTask).empty());
  EXPECT_FALSE(world.Take(store, ConnectResponse::kEndJob).empty());
}

// It is not known which devices it has. So no card of its worker goes to another job until it is over,
// whichever worker of the host offers it.
TEST(RestoreTest, CardsOfATaskThatIsSparedAreHeld) {
  World world;
  ASSERT_TRUE(world.core_.Restore(DurableState(), world.now_, absl::UnixEpoch()).ok());
  world.Do(Restored{});
  std::vector<SessionId> workers;
  for (const char* name : {"w0", "w1"}) {
    node::v1::Register reg;
    reg.set_name(name);
    reg.set_role(common::v1::ROLE_WORKER);
    reg.set_host("h");
    node::v1::Device& card = *reg.add_devices();
    card.set_name("cuda:0");
    card.set_uuid("GPU-1");
    workers.push_back(++world.sessions_);
    world.beats_[workers.back()].mutable_heartbeat();
    world.Do(NodeConnected{workers.back(), reg});
  }
  const SessionId store = world.Store("s0");
  world.Task(workers[0], "a-1", 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  world.Beat(workers[0]);
  job::v1::JobSpec spec = World::Spec(1, 1);
  spec.mutable_resources()->set_device("gpu");
  const std::string id = world.Submit(spec);
  const std::vector<SessionId> all = {workers[0], workers[1], store};
  world.Pass(absl::Seconds(59), all);
  EXPECT_EQ(world.Job(id).state(), JOB_STATE_PENDING);
  world.Pass(absl::Seconds(2), all);  // told to stop, and still there
  ASSERT_FALSE(world.Take(workers[0], ConnectResponse::kStopTask).empty());
  EXPECT_EQ(world.Job(id).state(), JOB_STATE_PENDING);
  world.Forget(workers[0]);
  world.Beat(workers[0]);
  EXPECT_EQ(world.Job(id).state(), JOB_STATE_STARTING);
}

TEST(RestoreTest, EndedJobsStayInTheirOrderAndIncarnationsGoOn) {
  CoreOptions options;
  options.max_ended_jobs = 2;
  World world(options);
  world.Worker("w0");
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) {
    ids.push_back(world.Submit(World::Spec(5, 0)));
    world.now_ += absl::Seconds(1);
    world.Cancel(ids[i]);
  }
  EXPECT_EQ(world.journal_.state().jobs.size(), 2u);  // the oldest is forgotten there, too
  EXPECT_EQ(world.journal_.state().events.count(ids[0]), 0u);
  World next(options);
  next.journal_ = world.journal_;
  ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Do(Restored{});
  const std::string id = next.Submit(World::Spec(5, 0), "x");
  next.Cancel(id);
  EXPECT_EQ(next.core_.Peek(ids[1]), nullptr);
  EXPECT_NE(next.core_.Peek(ids[2]), nullptr);
  const SessionId session = next.Worker("w1");
  EXPECT_EQ(next.Take(session, ConnectResponse::kRegistered)[0].registered().incarnation(), 2);
}

TEST(RestoreTest, TooManyEventsAreDroppedInTheMiddleThereToo) {
  CoreOptions options;
  DurableState state;
  options.max_events = 4;
  World world(options);
  world.Worker("w0");
  const std::string id = world.Submit(World::Spec(1, 0));
  for (int i = 0; i < 4; ++i) {  // a gang that falls apart again and again
    const SessionId session = world.Worker(absl::StrCat("v", i));
    world.Do(NodeDisconnected{session, true});
    world.Do(NodeDisconnected{world.sessions_ - 1, true});
  }
  const auto& events = world.journal_.state().events.at(id);
  ASSERT_EQ(static_cast<int>(events.size()), std::min(4, world.Job(id).events_size()));
  int i = 0;
  for (const auto& entry : events) {
    EXPECT_EQ(entry.second.type(), world.Job(id).events(i++).type());
  }
}

}  // namespace
}  // namespace capstan::coordinator::core
