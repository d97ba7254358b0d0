// What dies, and what the job does then.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/core/core.h"
#include "coordinator/core/test_world.h"

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

class FailureTest : public ::testing::Test, public World {
 protected:
  explicit FailureTest(CoreOptions options = {}) : World(std::move(options)) {}
  std::string Running(int workers, int shards, const job::v1::JobSpec* spec = nullptr) {
    for (int i = 0; i < workers; ++i) workers_.push_back(Worker(absl::StrCat("w", i)));
    for (int i = 0; i < shards; ++i) stores_.push_back(Store(absl::StrCat("s", i)));
    const std::string id = Submit(spec == nullptr ? Spec(workers, shards) : *spec);
    for (const SessionId worker : workers_) AnswerProbe(worker);
    for (int i = 0; i < shards; ++i) {
      Shard(stores_[i], id, i).set_ready(true);
      Beat(stores_[i]);
    }
    for (int i = 0; i < workers; ++i) {
      Task(workers_[i], id, i).set_phase(node::v1::TASK_PHASE_RUNNING);
      Beat(workers_[i]);
    }
    EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
    return id;
  }
  std::vector<SessionId> Without(const std::vector<SessionId>& absent) const {
    std::vector<SessionId> out;
    for (const auto& sessions : {workers_, stores_}) {
      for (const SessionId session : sessions) {
        if (std::find(absent.begin(), absent.end(), session) == absent.end())
          out.push_back(session);
      }
    }
    return out;
  }
  void Kill(SessionId session, const std::string& id, int rank, int signal) {
    node::v1::TaskState& task = Task(session, id, rank);
    task.set_phase(node::v1::TASK_PHASE_FAILED);
    task.set_exit_code(-signal);
    Beat(session);
  }

  std::vector<SessionId> workers_;
  std::vector<SessionId> stores_;
};

TEST_F(FailureTest, AKilledTaskGivesItsLanesToTheOthers) {
  const std::string id = Running(3, 2);
  Kill(workers_[1], id, 1, 9);
  EXPECT_EQ(Job(id).generation(), 1);  // others may be lost by the same cause
  order_.clear();
  Pass(absl::Milliseconds(60), Without({}));

  const job::v1::Job job = Job(id);
  EXPECT_EQ(job.state(), JOB_STATE_RUNNING);
  EXPECT_EQ(job.lineage(), 1);
  EXPECT_EQ(job.generation(), 2);
  EXPECT_EQ(job.workers(1).state(), "FAILED");
  EXPECT_EQ(job.workers(1).message(), "its task was ended by signal 9");
  const int kind = ConnectResponse::kViewChange;
  ASSERT_THAT(order_, testing::Not(IsEmpty()));
  EXPECT_THAT(order_, ElementsAre("persist", absl::StrCat("send:", stores_[0], ":", kind),
                                  absl::StrCat("send:", stores_[1], ":", kind),
                                  absl::StrCat("send:", workers_[0], ":", kind),
                                  absl::StrCat("send:", workers_[2], ":", kind)));
  const auto views = Take(workers_[2], ConnectResponse::kViewChange);
  EXPECT_THAT(views[0].view_change().view().lane_owners(), ElementsAre(0, 0, 0, 2, 2, 2));
  EXPECT_THAT(views[0].view_change().view().workers(), SizeIs(2));

  // Repeated to each task that does not show it, and to the shards with it. The dead task is stopped.
  EXPECT_THAT(Take(workers_[1], ConnectResponse::kStopTask), SizeIs(1));
  Task(workers_[0], id, 0).set_generation(2);
  Take(workers_[0], ConnectResponse::kViewChange);
  Take(stores_[0], ConnectResponse::kViewChange);
  Pass(absl::Milliseconds(1050), Without({}));
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kViewChange), IsEmpty());
  EXPECT_THAT(Take(workers_[2], ConnectResponse::kViewChange), SizeIs(2));
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kViewChange), SizeIs(2));
  Task(workers_[2], id, 2).set_generation(2);
  Beat(workers_[2]);
  Pass(absl::Seconds(2), Without({}));
  EXPECT_THAT(Take(workers_[2], ConnectResponse::kViewChange), IsEmpty());
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kViewChange), IsEmpty());

  // The node itself lives: once the dead task is not reported any more it may have another one.
  Forget(workers_[1]);
  Beat(workers_[1]);
  ASSERT_EQ(Job(id).workers_size(), 4);
  EXPECT_EQ(Job(id).workers(3).node(), "w1");
  EXPECT_EQ(Job(id).generation(), 2);  // nothing of it is asked for before its data are known
}

TEST_F(FailureTest, ALapsedLeaseIsALostWorker) {
  const std::string id = Running(2, 1);
  Pass(absl::Milliseconds(4900), Without({workers_[0]}));
  EXPECT_EQ(Job(id).generation(), 1);
  Pass(absl::Milliseconds(200), Without({workers_[0]}));
  EXPECT_EQ(Job(id).generation(), 2);
  EXPECT_EQ(Job(id).message(), "");
  EXPECT_EQ(Job(id).workers(0).message(), "nothing was heard of it for 5s");

  // It comes back, its task still runs: the task is stopped and owns nothing.
  Beat(workers_[0]);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  EXPECT_EQ(Job(id).generation(), 2);
}

TEST_F(FailureTest, LossesOfOneMomentAreOneGeneration) {
  const std::string id = Running(5, 1);
  Pass(absl::Milliseconds(5100), Without({workers_[0], workers_[1], workers_[3]}));
  EXPECT_EQ(Job(id).generation(), 2);
  Kill(workers_[2], id, 2, 11);
  Pass(absl::Milliseconds(100), Without({workers_[0], workers_[1], workers_[3]}));
  EXPECT_EQ(Job(id).generation(), 3);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
}

TEST_F(FailureTest, WithoutAnyWorkerTheJobWaitsForOneAndThenForAGang) {
  const std::string id = Running(2, 1);
  Kill(workers_[0], id, 0, 9);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  Kill(workers_[1], id, 1, 9);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RECOVERING);
  EXPECT_EQ(Job(id).reason(), "WorkerLost");
  EXPECT_EQ(Job(id).message(),
            "no worker is left; worker w1 on host host-w1: its task was ended by signal 9");
  Pass(absl::Seconds(10), Without({}));  // the services do not end the tasks
  EXPECT_EQ(Job(id).message(),
            "recovering: a worker, any, after worker w0 on host host-w0, last seen 0 s ago; worker "
            "w1 on host host-w1, last seen 0 s ago");
  Pass(absl::Seconds(300), Without({}));
  EXPECT_EQ(Job(id).state(), common::v1::JOB_STATE_PENDING);
  EXPECT_EQ(Job(id).reason(), "GangLost");
  const job::v1::Job job = Job(id);
  const auto lost = std::find_if(job.events().begin(), job.events().end(),
                                 [](const auto& event) { return event.type() == "GangLost"; });
  ASSERT_NE(lost, job.events().end());
  EXPECT_THAT(lost->message(), HasSubstr("worker w1 on host host-w1"));
  EXPECT_EQ(job.restarts(), 1);
}

// Its steps since the last checkpoint are lost as by the loss of a shard, and count like that.
TEST_F(FailureTest, AGangOfWorkersThatIsLostIsARestart) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_recovery()->set_max_restarts(0);
  const std::string id = Running(1, 1, &spec);
  Kill(workers_[0], id, 0, 9);
  Pass(absl::Seconds(310), Without({workers_[0]}));
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "MaxRestartsExceeded");
  EXPECT_THAT(Job(id).message(), HasSubstr("worker w0 on host host-w0"));
}

// What its task said was counted when it said it.
TEST_F(FailureTest, AGangOfWorkersThatSaidWhyIsOneRestart) {
  const std::string id = Running(1, 1);
  node::v1::TaskState& task = Task(workers_[0], id, 0);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("InternalError");
  task.set_message("a bug");
  Beat(workers_[0]);
  EXPECT_EQ(Job(id).restarts(), 1);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  Pass(absl::Seconds(310), Without({workers_[0]}));
  EXPECT_EQ(Job(id).reason(), "GangLost");
  EXPECT_EQ(Job(id).restarts(), 1);
}

TEST_F(FailureTest, WhatCannotBeIsNotBelieved) {
  const std::string id = Running(2, 1);
  node::v1::LeadState& lead = *Shard(stores_[0], id, 0).mutable_lead();
  lead.set_lineage(1);
  lead.set_step(INT64_MAX);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id).progress().step(), 0);
  lead.set_step(5);
  lead.set_samples_used(-1);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id).progress().step(), 0);
  lead.set_samples_used(80);
  Beat(stores_[0]);
  EXPECT_EQ(Job(id).progress().step(), 5);
  node::v1::TaskState& task = Task(workers_[1], id, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_exit_code(INT32_MIN);  // -INT32_MIN is no int32
  Beat(workers_[1]);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
}

// The service's own sentence, with the host once.
TEST_F(FailureTest, AKilledTaskIsToldInOneSentence) {
  const std::string id = Running(2, 1);
  Task(workers_[1], id, 1).set_message("the task ended with signal 9 (Killed)");
  Kill(workers_[1], id, 1, 9);
  const job::v1::Job job = Job(id);
  EXPECT_EQ(job.events(job.events_size() - 1).message(),
            "worker w1 on host host-w1: the task ended with signal 9 (Killed)");
}

TEST_F(FailureTest, ATaskThatItsServiceForgotIsLost) {
  const std::string id = Running(2, 1);
  Forget(workers_[0]);
  Beat(workers_[0]);
  Pass(absl::Milliseconds(100), Without({}));
  EXPECT_EQ(Job(id).generation(), 2);
}

// Only what a lapsed lease made of it is taken back.
TEST_F(FailureTest, ATaskThatItsServiceForgotIsNotBackWhereItIsNamedAgain) {
  const std::string id = Running(2, 1);
  const node::v1::ConnectRequest before = beats_[workers_[0]];
  Forget(workers_[0]);
  Beat(workers_[0]);
  beats_[workers_[0]] = before;
  Pass(absl::Milliseconds(100), Without({}));
  EXPECT_THAT(EventTypes(id), Not(Contains("WorkerBack")));
  EXPECT_EQ(Job(id).generation(), 2);
}

// Before that it is not known what the node holds.
TEST_F(FailureTest, ANodeThatWasLostGetsWorkOnceItHasSpoken) {
  const SessionId before = Worker("w0");
  const int64_t incarnation = core_.nodes().Find("w0")->incarnation();
  Do(NodeDisconnected{before});
  Pass(absl::Seconds(6));
  ASSERT_TRUE(core_.nodes().Find("w0")->lost());
  const SessionId again = Connect("w0", common::v1::ROLE_WORKER, incarnation);
  ASSERT_EQ(core_.nodes().Find("w0")->incarnation(), incarnation);
  const std::string id = Submit(Spec(1, 0));
  EXPECT_EQ(Job(id).state(), common::v1::JOB_STATE_PENDING);
  Beat(again);
  EXPECT_EQ(Job(id).state(), common::v1::JOB_STATE_STARTING);
}

TEST_F(FailureTest, WhatANodeUsesIsWhatItSaidLast) {
  const SessionId worker = Worker("w0");
  node::v1::Heartbeat& heartbeat = *beats_[worker].mutable_heartbeat();
  for (const int64_t bytes : {1000, 2000}) {
    heartbeat.mutable_usage()->set_memory_used_bytes(bytes);
    Beat(worker);
    EXPECT_EQ(core_.nodes().Find("w0")->usage().memory_used_bytes(), bytes);
  }
  heartbeat.clear_usage();  // it could not find out
  Beat(worker);
  EXPECT_EQ(core_.nodes().Find("w0")->usage().memory_used_bytes(), 2000);
}

TEST_F(FailureTest, AServiceThatStopsOrStartsAnewIsLostAtOnce) {
  const std::string id = Running(3, 1);
  Do(NodeDisconnected{workers_[0]});
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  Do(NodeDisconnected{workers_[1]});
  Pass(absl::Milliseconds(100), Without({workers_[0], workers_[1]}));
  EXPECT_EQ(Job(id).generation(), 2);
  EXPECT_EQ(Job(id).workers(1).state(), "RUNNING");  // a broken stream alone is nothing
  Worker("w1");                                      // another process of that name
  Pass(absl::Milliseconds(100), Without({workers_[0], workers_[1]}));
  EXPECT_EQ(Job(id).generation(), 3);
  EXPECT_EQ(Job(id).workers(1).message(), "its service has started anew");
}

TEST_F(FailureTest, AProcessThatConnectsAgainKeepsItsTasks) {
  const std::string id = Running(2, 1);
  const auto registered = Take(workers_[0], ConnectResponse::kRegistered);
  const int64_t incarnation = registered.at(0).registered().incarnation();
  EXPECT_EQ(registered[0].registered().lease_ms(), 5000);
  EXPECT_EQ(registered[0].registered().heartbeat_ms(), 1000);
  Do(NodeDisconnected{workers_[0]});
  Pass(absl::Seconds(3), Without({workers_[0]}));
  const SessionId again = Connect("w0", common::v1::ROLE_WORKER, incarnation);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});  // of the old stream, late
  EXPECT_EQ(Take(again, ConnectResponse::kRegistered).at(0).registered().incarnation(),
            incarnation);
  beats_[again] = beats_[workers_[0]];
  workers_[0] = again;
  Pass(absl::Seconds(10), Without({}));
  EXPECT_EQ(Job(id).generation(), 1);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
}

// The last messages on the old stream may be lost: they are sent again at once, not after `resend`.
TEST_F(FailureTest, WhatAnOldStreamMayHaveLostIsSentAtOnceOnTheNewOne) {
  const auto again = [this](SessionId& session, const std::string& name, common::v1::Role role) {
    const int64_t incarnation = core_.nodes().Find(name)->incarnation();
    Do(NodeDisconnected{session});
    const SessionId next = Connect(name, role, incarnation);
    EXPECT_EQ(core_.nodes().Find(name)->incarnation(), incarnation);
    beats_[next] = beats_[session];
    session = next;
  };
  constexpr auto kWorker = common::v1::ROLE_WORKER;
  constexpr auto kStore = common::v1::ROLE_PARAM_STORE;
  SessionId probed = Worker("p0");
  SessionId store = Store("p-store");
  const std::string asked = Submit(Spec(1, 1));
  ASSERT_THAT(Take(probed, ConnectResponse::kProbe), SizeIs(1));
  again(probed, "p0", kWorker);
  EXPECT_THAT(Take(probed, ConnectResponse::kProbe), SizeIs(1));
  Cancel(asked);
  Beat(probed);
  Beat(store);
  Do(NodeDisconnected{probed, /*goodbye=*/true});
  Do(NodeDisconnected{store, /*goodbye=*/true});

  const std::string id = Running(2, 1);
  Kill(workers_[1], id, 1, 9);
  Pass(absl::Milliseconds(60), Without({}));
  ASSERT_EQ(Job(id).generation(), 2);
  const auto views = [this](SessionId session) {
    return Take(session, ConnectResponse::kViewChange).size();
  };
  ASSERT_EQ(views(workers_[0]), 1u);
  ASSERT_EQ(views(stores_[0]), 1u);
  again(workers_[0], "w0", kWorker);
  again(stores_[0], "s0", kStore);
  EXPECT_EQ(views(workers_[0]), 1u);
  EXPECT_EQ(views(stores_[0]), 1u);

  Cancel(id);
  ASSERT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  again(workers_[0], "w0", kWorker);
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), SizeIs(1));
  Forget(workers_[0]);
  Beat(workers_[0]);
  Forget(workers_[1]);
  Beat(workers_[1]);
  ASSERT_THAT(Take(stores_[0], ConnectResponse::kEndJob), SizeIs(1));
  again(stores_[0], "s0", kStore);
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kEndJob), SizeIs(1));
}

TEST_F(FailureTest, ALiveNameIsTakenAndBadRegistrationsAreRefused) {
  const SessionId first = Worker("w0");
  const SessionId second = Worker("w0");
  EXPECT_TRUE(absl::IsAlreadyExists(closed_[second]));
  EXPECT_EQ(closed_.count(first), 0u);
  const SessionId bad = Worker("No Name");
  EXPECT_TRUE(absl::IsInvalidArgument(closed_[bad]));
  node::v1::ConnectRequest empty;
  Do(NodeMessage{first, empty});
  EXPECT_TRUE(absl::IsInvalidArgument(closed_[first]));
}

TEST_F(FailureTest, AHeartbeatOfAnotherRoleEndsItsStream) {
  const std::string id = Running(1, 1);
  Shard(workers_[0], id, 0).set_reason("NonFiniteLoss");
  Beat(workers_[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(closed_[workers_[0]])) << closed_[workers_[0]];
  Task(stores_[0], id, 0).set_phase(node::v1::TASK_PHASE_FAILED);
  Beat(stores_[0]);
  EXPECT_TRUE(absl::IsInvalidArgument(closed_[stores_[0]])) << closed_[stores_[0]];
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
}

TEST_F(FailureTest, WhatNobodyOrderedIsStopped) {
  const SessionId worker = Worker("w0");
  const SessionId store = Store("s0");
  Task(worker, "toy-gone", 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  Shard(store, "toy-gone", 0);
  for (int i = 0; i < 5; ++i) {
    Beat(worker);
    Beat(store);
  }
  const auto stops = Take(worker, ConnectResponse::kStopTask);
  ASSERT_THAT(stops, SizeIs(1));
  EXPECT_EQ(stops[0].stop_task().job_id(), "toy-gone");  // or nothing would be stopped by it
  EXPECT_GT(stops[0].stop_task().grace_ms(), 0);
  const auto ends = Take(store, ConnectResponse::kEndJob);
  ASSERT_THAT(ends, SizeIs(1));
  EXPECT_EQ(ends[0].end_job().job_id(), "toy-gone");
  Pass(absl::Milliseconds(600), {worker, store});
  EXPECT_THAT(Take(worker, ConnectResponse::kStopTask), SizeIs(1));
}

TEST_F(FailureTest, ALostShardEndsAJobThatMayNotRestart) {
  job::v1::JobSpec spec = Spec(2, 2);
  spec.mutable_recovery()->add_never_retry_on("ShardLost");
  const std::string id = Running(2, 2, &spec);
  Pass(absl::Seconds(6), Without({stores_[1]}));
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "ShardLost");
  EXPECT_EQ(Job(id).message(), "shard 1 on host host-s1: nothing was heard of it for 5s");
  EXPECT_THAT(Take(stores_[0], ConnectResponse::kEndJob), testing::Not(IsEmpty()));
  EXPECT_THAT(Take(workers_[0], ConnectResponse::kStopTask), testing::Not(IsEmpty()));
}

TEST_F(FailureTest, AShardThatLostItsMemoryIsALostShard) {
  const std::string id = Running(1, 1);
  Do(NodeDisconnected{stores_[0]});
  Store("s0");
  EXPECT_EQ(Job(id).reason(), "ShardLost");
}

TEST_F(FailureTest, TheFirstFailureIsTheRootCause) {
  const std::string id = Running(2, 1);
  node::v1::TaskState& task = Task(workers_[1], id, 1);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("GpuOutOfMemory");
  task.set_message("cudaMalloc of 1.2 GiB failed");
  task.set_exit_code(1);
  Beat(workers_[1]);
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "GpuOutOfMemory");
  EXPECT_EQ(Job(id).message(), "worker w1 on host host-w1: cudaMalloc of 1.2 GiB failed");

  node::v1::TaskState& other = Task(workers_[0], id, 0);
  other.set_phase(node::v1::TASK_PHASE_FAILED);
  other.set_reason("no such word");
  other.set_message("lost its peer");
  Beat(workers_[0]);
  Beat(workers_[0]);
  const job::v1::Job job = Job(id);
  EXPECT_EQ(job.reason(), "GpuOutOfMemory");
  const job::v1::Event& last = job.events(job.events_size() - 1);
  EXPECT_EQ(last.type(), "Consequence");
  EXPECT_EQ(last.message(), "InternalError: worker w0 on host host-w0: lost its peer");
  EXPECT_EQ(job.events(job.events_size() - 2).type(), "Failed");  // told once
}

TEST_F(FailureTest, ReasonsOfLeadAndShardAreTheJobs) {
  const std::string first = Running(1, 1);
  node::v1::LeadState& lead = *Shard(stores_[0], first, 0).mutable_lead();
  lead.set_lineage(1);
  lead.set_reason("NonFiniteLoss");
  lead.set_message("step 7: lanes 0,1");
  Beat(stores_[0]);
  EXPECT_EQ(Job(first).reason(), "NonFiniteLoss");
  EXPECT_EQ(Job(first).message(), "step 7: lanes 0,1");
  Forget(stores_[0]);
  Forget(workers_[0]);
  Beat(stores_[0]);
  Beat(workers_[0]);

  const std::string second = Submit(Spec(1, 1));
  AnswerProbe(workers_[0]);
  Shard(stores_[0], second, 0).set_reason("DataMissing");
  Shard(stores_[0], second, 0).set_message("initial_weights: no such file");
  Beat(stores_[0]);
  EXPECT_EQ(Job(second).reason(), "DataMissing");
  EXPECT_EQ(Job(second).message(), "shard 0 on host host-s0: initial_weights: no such file");
}

CoreOptions Patient() {
  CoreOptions options;
  options.late_lane = absl::Hours(1);
  return options;
}

class PatientTest : public FailureTest {
 protected:
  PatientTest() : FailureTest(Patient()) {}
};

TEST_F(PatientTest, AWaitNamesWhomItWaitsForAndThenEnds) {
  job::v1::JobSpec spec = Spec(2, 1);
  spec.mutable_limits()->set_stall_timeout_seconds(30);
  const std::string id = Running(2, 1, &spec);
  node::v1::ShardState& shard = Shard(stores_[0], id, 0);
  shard.mutable_lead()->set_lineage(1);
  shard.mutable_lead()->set_step(8);
  node::v1::Waiting& waiting = *shard.mutable_waiting();
  waiting.set_step(8);
  waiting.add_lanes(2);
  waiting.add_lanes(3);
  waiting.add_parts(0);
  waiting.set_missing_chunks(2);
  waiting.set_chunks(8);
  Beat(stores_[0]);
  Pass(absl::Seconds(5), Without({}));
  EXPECT_EQ(Job(id).message(), "");
  Pass(absl::Milliseconds(2600), Without({}));
  const std::string sentence =
      "step 8: lanes 2,3 of worker w1 on host host-w1, last seen 0 s ago, 2 of 8 chunks missing";
  EXPECT_EQ(Job(id).message(), sentence);
  const LogBuffer* logs = core_.Logs(id);
  EXPECT_EQ(logs->Find(logs->next() - 1)->text(), "waits for " + sentence);

  shard.clear_waiting();
  shard.mutable_waiting()->set_step(8);
  for (const int block : {1, 2, 3}) shard.mutable_waiting()->add_evaluation_blocks(block);
  Pass(absl::Seconds(2), Without({}));
  EXPECT_EQ(Job(id).message(),
            "step 8: 1 block of the evaluation of worker w0 on host host-w0, last seen 0 s ago; "
            "2 blocks of the evaluation of worker w1 on host host-w1, last seen 0 s ago");

  shard.mutable_lead()->set_step(9);  // it goes on
  shard.clear_waiting();
  Beat(stores_[0]);
  EXPECT_EQ(Job(id).message(), "");
  *shard.mutable_waiting() = node::v1::Waiting();
  shard.mutable_waiting()->set_step(9);
  shard.mutable_waiting()->add_lanes(0);
  Pass(absl::Seconds(31), Without({}));
  EXPECT_EQ(Job(id).state(), JOB_STATE_FAILED);
  EXPECT_EQ(Job(id).reason(), "Stalled");
  EXPECT_EQ(Job(id).message(), "step 9: lane 0 of worker w0 on host host-w0, last seen 0 s ago");
}

// The network between two members is cut, and all three are heard here.
TEST_F(PatientTest, AWaitNamesTheShardThatOthersDoNotReach) {
  const std::string id = Running(2, 2);
  node::v1::ShardState& lead = Shard(stores_[0], id, 0);
  node::v1::ShardState& other = Shard(stores_[1], id, 1);
  lead.mutable_lead()->set_lineage(1);
  lead.mutable_lead()->set_step(8);
  lead.set_version(8);
  other.set_version(7);  // lacks only the decision of step 7; the lead shows version 8
  lead.mutable_waiting()->set_step(8);
  for (int lane = 0; lane < 4; ++lane) lead.mutable_waiting()->add_lanes(lane);
  lead.mutable_waiting()->set_missing_chunks(4);
  lead.mutable_waiting()->set_chunks(4);
  Pass(absl::Seconds(10), Without({}));
  EXPECT_EQ(Job(id).message(),
            "step 7: the lead's decision at shard 1 on host host-s1, last seen 0 s ago");

  other.set_version(8);  // now no gradients of w1 reach it
  lead.mutable_waiting()->clear_lanes();
  lead.mutable_waiting()->set_missing_chunks(0);
  lead.mutable_waiting()->add_parts(1);
  other.mutable_waiting()->set_step(8);
  other.mutable_waiting()->add_lanes(3);
  other.mutable_waiting()->set_missing_chunks(4);
  other.mutable_waiting()->set_chunks(4);
  Pass(absl::Seconds(2), Without({}));
  EXPECT_EQ(Job(id).message(),
            "step 8: lane 3 of worker w1 on host host-w1, last seen 0 s ago, 4 of 8 chunks missing "
            "at shard 1 on host host-s1, last seen 0 s ago");
  other.mutable_waiting()->set_missing_chunks(1);
  Pass(absl::Seconds(2), Without({}));
  EXPECT_THAT(Job(id).message(), HasSubstr(", 1 of 8 chunks missing at shard 1 on host host-s1"));
}

TEST_F(FailureTest, AWaitBeforeTheFirstStepIsNamedToo) {
  const SessionId worker = Worker("w0");
  const SessionId store = Store("s0");
  const std::string id = Submit(Spec(1, 1));
  Pass(absl::Seconds(12), {worker, store});
  EXPECT_EQ(Job(id).message(),
            "starting: the data of worker w0 on host host-w0, last seen 0 s ago");
  AnswerProbe(worker);
  Pass(absl::Seconds(12), {worker, store});
  EXPECT_EQ(Job(id).message(),
            "starting: the weights of shard 0 on host host-s0, last seen 0 s ago");
  Shard(store, id, 0).set_ready(true);
  Beat(store);
  Pass(absl::Seconds(12), {worker, store});
  EXPECT_EQ(Job(id).message(),
            "starting: the task of worker w0 on host host-w0, last seen 0 s ago");
  Pass(absl::Seconds(300), {worker, store});
  EXPECT_EQ(Job(id).reason(), "Stalled");
}

TEST_F(FailureTest, TheDeadlineRunsFromTheGangOn) {
  job::v1::JobSpec spec = Spec(1, 1);
  spec.mutable_limits()->set_active_deadline_seconds(20);
  const std::string waits = Submit(spec);
  Pass(absl::Seconds(100));
  EXPECT_EQ(Job(waits).state(), common::v1::JOB_STATE_PENDING);
  Cancel(waits);
  const std::string id = Running(1, 1, &spec);
  for (int step = 1; step <= 19; ++step) {
    Shard(stores_[0], id, 0).mutable_lead()->set_lineage(1);
    Shard(stores_[0], id, 0).mutable_lead()->set_step(step % 10);
    Pass(absl::Seconds(1), Without({}));
  }
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  Pass(absl::Seconds(2), Without({}));
  EXPECT_EQ(Job(id).reason(), "DeadlineExceeded");
}

TEST_F(FailureTest, ACoordinatorThatWasHeldUpBlamesNobody) {
  const std::string id = Running(2, 1);
  now_ += absl::Seconds(60);  // stopped, or starved; the heartbeats wait in the queue
  Do(Tick{});
  EXPECT_EQ(Job(id).generation(), 1);
  for (const SessionId session : Without({})) Beat(session);
  Pass(absl::Seconds(4), Without({}));
  EXPECT_EQ(Job(id).generation(), 1);
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
}

TEST_F(FailureTest, OnlyMembersMayLogAndOnlyForThemselves) {
  const std::string id = Running(1, 1);
  const SessionId stranger = Worker("w9");
  const int64_t before = core_.Logs(id)->next();
  node::v1::ConnectRequest request;
  request.mutable_logs()->set_job_id(id);
  request.mutable_logs()->set_dropped(7);
  job::v1::LogLine* line = request.mutable_logs()->add_lines();
  line->set_role(common::v1::ROLE_COORDINATOR);
  line->set_text("hello");
  Do(NodeMessage{stranger, request});
  EXPECT_EQ(core_.Logs(id)->next(), before);
  Do(NodeMessage{workers_[0], request});
  const LogBuffer* const logs = core_.Logs(id);
  ASSERT_EQ(logs->next(), before + 2);
  EXPECT_EQ(logs->Find(before)->role(), common::v1::ROLE_WORKER);
  EXPECT_EQ(logs->Find(before)->host(), "host-w0");
  EXPECT_THAT(logs->Find(before + 1)->text(), HasSubstr("7 lines"));
  EXPECT_EQ(logs->lost(), 7);
}

TEST_F(FailureTest, ALongMessageIsCutAtItsEnd) {
  const std::string id = Running(1, 0);
  node::v1::TaskState& task = Task(workers_[0], id, 0);
  task.set_phase(node::v1::TASK_PHASE_FAILED);
  task.set_reason("NonFiniteLoss");
  task.set_message("Begin" + std::string(100000, 'x'));
  Beat(workers_[0]);
  EXPECT_THAT(Job(id).message(), HasSubstr(": Beginxxx"));
  EXPECT_LT(Job(id).message().size(), 10000u);
}

TEST_F(FailureTest, AJobWhoseShardWentIsWoundDownWithoutIt) {
  const std::string id = Running(1, 1);
  Do(NodeDisconnected{stores_[0], /*goodbye=*/true});
  Cancel(id);
  Forget(workers_[0]);
  Beat(workers_[0]);
  EXPECT_EQ(Job(id).state(), common::v1::JOB_STATE_CANCELLED);
  EXPECT_TRUE(Saved(id).wound_down());
}

TEST_F(FailureTest, SameSeedSameEffects) {
  World other;
  EXPECT_EQ(Submit(Spec(1, 1)), other.Submit(Spec(1, 1)));
}

}  // namespace
}  // namespace capstan::coordinator::core
