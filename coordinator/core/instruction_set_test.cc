// Jobs whose bits depend on the instruction set: they take workers of one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RECOVERING;
using common::v1::JOB_STATE_STARTING;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kForeign[] =
    "worker other computes with avx2 kernels, the job began with avx512 kernels, and its bits "
    "would "
    "change: start a worker of avx512; submitted anew with training.deterministic: false it takes "
    "any of them";

class InstructionSetTest : public RecoveryTest {
 protected:
  static job::v1::JobSpec Lenet(int workers, int shards) {
    job::v1::JobSpec spec = Spec(workers, shards);
    spec.mutable_model()->set_name("lenet");
    return spec;
  }
  SessionId WorkerOf(const std::string& name, const std::string& instruction_set) {
    instruction_set_ = instruction_set;
    return Worker(name);
  }
  std::vector<std::string> NodesOf(const std::string& id) {
    std::vector<std::string> nodes;
    for (const Rank& rank : core_.Peek(id)->ranks) nodes.push_back(rank.node);
    return nodes;
  }
  int Refusals() {
    const std::vector<std::string> types = EventTypes(id_);
    return static_cast<int>(std::count(types.begin(), types.end(), "JoinRefused"));
  }
};

// Of one node; what the job file brings along is looked at, not named.
job::v1::JobSpec OfNodes(job::v1::JobSpec spec, const std::string& op) {
  job::v1::GraphNode& node = *spec.mutable_model()->mutable_graph()->add_nodes();
  spec.mutable_model()->clear_name();
  node.set_name("node");
  node.set_op(op);
  return spec;
}

TEST_F(InstructionSetTest, AChainOfTheJobFileTakesWorkersOfOne) {
  WorkerOf("w0", "avx2");
  WorkerOf("w1", "avx512");
  Store("s0");
  const std::string id = Submit(OfNodes(Lenet(2, 1), "Flatten"));
  EXPECT_EQ(Job(id).state(), JOB_STATE_PENDING);
  EXPECT_THAT(Job(id).message(), HasSubstr("the bits of its model depend on the instruction set"));
}

TEST_F(InstructionSetTest, AGraphOfTheJobFileThatIsNoChainTakesAny) {
  WorkerOf("w0", "avx2");
  WorkerOf("w1", "avx512");
  Store("s0");
  EXPECT_EQ(Job(Submit(OfNodes(Lenet(2, 1), "Gelu"))).state(), JOB_STATE_STARTING);
}

TEST_F(InstructionSetTest, DropoutMakesNoChain) {
  WorkerOf("w0", "avx2");
  WorkerOf("w1", "avx512");
  Store("s0");
  job::v1::JobSpec drops = Lenet(2, 1);
  drops.mutable_model()->set_dropout(0.5);
  EXPECT_EQ(Job(Submit(drops)).state(), JOB_STATE_STARTING);
}

TEST_F(InstructionSetTest, AGangIsOfOneWhereBitsDependOnIt) {
  WorkerOf("w0", "avx2");
  WorkerOf("w1", "avx512");
  Store("s0");
  const std::string id = Submit(Lenet(2, 1));
  EXPECT_EQ(Job(id).state(), JOB_STATE_PENDING);
  EXPECT_EQ(Job(id).message(),
            "the bits of its model depend on the instruction set, so its workers are to be of one: "
            "worker w0 computes with avx2 kernels, worker w1 with avx512 kernels; submitted anew "
            "with training.deterministic: false it takes any of them");
  WorkerOf("w2", "avx512");
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
  EXPECT_THAT(NodesOf(id), ElementsAre("w1", "w2"));
  EXPECT_EQ(Job(id).instruction_set(), "avx512");
  EXPECT_EQ(Saved(id).instruction_set(), "avx512");
}

TEST_F(InstructionSetTest, OfSeveralTheOneWithMostWorkersIsTaken) {
  WorkerOf("w0", "avx2");
  WorkerOf("w1", "avx512");
  WorkerOf("w2", "avx512");
  Store("s0");
  job::v1::JobSpec spec = Lenet(3, 1);
  spec.mutable_resources()->set_min_workers(1);
  EXPECT_THAT(NodesOf(Submit(spec)), ElementsAre("w1", "w2"));
  // Where one worker is enough, it is the first.
  EXPECT_THAT(NodesOf(Submit(Lenet(1, 1))), ElementsAre("w0"));
}

TEST_F(InstructionSetTest, JobsThatAreNotBoundTakeAnyWorkers) {
  WorkerOf("w0", "avx2");
  WorkerOf("w1", "portable");
  Store("s0");
  job::v1::JobSpec portable = Spec(2, 1);
  portable.mutable_model()->set_name("resnet18_v1");
  job::v1::JobSpec loose = Lenet(2, 1);
  loose.mutable_training()->set_deterministic(false);
  for (const job::v1::JobSpec& spec : {portable, loose}) {
    const std::string id = Submit(spec);
    EXPECT_THAT(NodesOf(id), ElementsAre("w0", "w1"));
    EXPECT_EQ(Job(id).instruction_set(), "");
    Cancel(id);
  }
}

// A worker of before the field may be of any, and binds no job.
TEST_F(InstructionSetTest, AWorkerThatDoesNotSayItsOwnIsOfAll) {
  Worker("w0");
  Worker("w1");
  Store("s0");
  EXPECT_EQ(Job(Submit(Lenet(1, 1))).instruction_set(), "");
  WorkerOf("w2", "avx512");
  const std::string id = Submit(Lenet(2, 1));
  EXPECT_THAT(NodesOf(id), ElementsAre("w1", "w2"));
  EXPECT_EQ(Job(id).instruction_set(), "avx512");
}

TEST_F(InstructionSetTest, CardsAreNotAskedForTheirHosts) {
  NodeTable nodes;
  for (const char* set : {"avx2", "avx512"}) {
    node::v1::Register reg;
    reg.set_name(set);
    reg.set_role(common::v1::ROLE_WORKER);
    reg.set_instruction_set(set);
    reg.add_devices()->set_name("cuda:0");
    const SessionId session = static_cast<SessionId>(nodes.size()) + 1;
    nodes.Admit(session, reg, {}, session, absl::ZeroDuration(), absl::UnixEpoch());
  }
  GangRequest request;
  request.num_workers = 2;
  request.num_shards = 0;
  request.one_instruction_set = true;
  const std::optional<Gang> gang = FindGang(nodes, request);
  ASSERT_TRUE(gang.has_value());
  EXPECT_TRUE(gang->on_gpus);
  EXPECT_EQ(gang->instruction_set, "");
}

TEST_F(InstructionSetTest, WhoJoinsIsOfTheOneOfTheJob) {
  instruction_set_ = "avx512";
  Running(2, 1, Lenet(2, 1));
  EXPECT_EQ(Job(id_).instruction_set(), "avx512");
  Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
  const SessionId other = WorkerOf("other", "avx2");
  Pass(absl::Seconds(2), {workers_[0], stores_[0], other});
  EXPECT_THAT(Take(other, ConnectResponse::kProbe), IsEmpty());
  EXPECT_EQ(Refusals(), 1);  // told once
  EXPECT_EQ(Job(id_).events(Job(id_).events_size() - 1).message(), kForeign);
  EXPECT_THAT(Take(WorkerOf("same", "avx512"), ConnectResponse::kProbe), SizeIs(1));
}

TEST_F(InstructionSetTest, WhoIsRefusedIsNamedWhereTheJobWaitsForThatAlone) {
  instruction_set_ = "avx512";
  job::v1::JobSpec spec = Lenet(1, 1);
  spec.mutable_limits()->set_stall_timeout_seconds(20);
  Running(1, 1, spec);
  Do(NodeDisconnected{workers_[0], /*goodbye=*/true});
  const SessionId other = WorkerOf("other", "avx2");
  Pass(absl::Seconds(10), {stores_[0], other});
  EXPECT_EQ(Job(id_).state(), JOB_STATE_RECOVERING);
  EXPECT_THAT(Job(id_).message(), HasSubstr(absl::StrCat("(", kForeign, ")")));
  // It gives up what it holds, and is no job for that worker in the queue either.
  workers_.clear();
  for (int i = 0; i < 60; ++i) {
    Pass(absl::Milliseconds(500), {stores_[0], other});
    Follow();
  }
  EXPECT_EQ(Job(id_).state(), JOB_STATE_PENDING);
  EXPECT_EQ(Job(id_).message(),
            absl::StrCat("needs 1 worker with 1 free device, 0 are there (", kForeign, ")"));
  EXPECT_THAT(Take(other, ConnectResponse::kProbe), IsEmpty());
  // Another job may have it meanwhile.
  EXPECT_THAT(NodesOf(Submit(Lenet(1, 1))), ElementsAre("other"));
  WorkerOf("same", "avx512");
  EXPECT_EQ(Job(id_).state(), JOB_STATE_STARTING);
  EXPECT_THAT(NodesOf(id_), ElementsAre("same"));
}

TEST_F(InstructionSetTest, ARestartKnowsItAndAJobOfBeforeItIsNotBound) {
  instruction_set_ = "avx512";
  Running(2, 1, Lenet(2, 1));
  Do(NodeDisconnected{workers_[1], /*goodbye=*/true});
  for (const bool before : {false, true}) {
    World next;
    next.journal_ = journal_;
    if (before) {
      v1::DurableJob job = Saved(id_);
      job.clear_instruction_set();
      ASSERT_TRUE(next.journal_.Append(JobSaved{id_, job.SerializeAsString()}).ok());
    }
    ASSERT_TRUE(next.core_.Restore(next.journal_.state(), next.now_, absl::UnixEpoch()).ok());
    next.Do(Restored{});
    EXPECT_EQ(next.Job(id_).instruction_set(), before ? "" : "avx512");
    next.instruction_set_ = "avx2";
    const SessionId other = next.Worker("other");
    EXPECT_THAT(next.Take(other, ConnectResponse::kProbe), SizeIs(before ? 1 : 0));
  }
}

}  // namespace
}  // namespace capstan::coordinator::core
