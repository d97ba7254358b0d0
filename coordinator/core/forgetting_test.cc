// What the coordinator does not keep for ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "capstan/coordinator/v1/durable.pb.h"
#include "coordinator/core/core.h"
#include "coordinator/core/test_recovery.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

TEST(ForgettingTest, ANodeIsForgottenAnHourAfterItWasLost) {
  World world;
  const SessionId dead = world.Worker("w0");
  const SessionId alive = world.Worker("w1");
  world.Do(NodeDisconnected{dead});
  world.Pass(absl::Minutes(59), {alive});
  EXPECT_NE(world.core_.nodes().Find("w0"), nullptr);
  EXPECT_EQ(world.journal_.state().nodes.count("w0"), 1u);
  world.Pass(absl::Minutes(2), {alive});
  EXPECT_EQ(world.core_.nodes().Find("w0"), nullptr);
  EXPECT_EQ(world.journal_.state().nodes.count("w0"), 0u);
  EXPECT_NE(world.core_.nodes().Find("w1"), nullptr);
}

// Else a coordinator whose nodes have all had their day would have no room for others.
TEST(ForgettingTest, NodesAreForgottenAlsoWhereNothingElseHappens) {
  World world;
  world.Do(NodeDisconnected{world.Worker("w0")});
  for (int ticks = 0; world.core_.nodes().Find("w0") != nullptr; ++ticks) {
    ASSERT_LT(world.core_.NextDeadline(), absl::InfiniteDuration());
    ASSERT_LT(ticks, 100000);
    world.now_ = std::max(world.core_.NextDeadline(), world.now_ + absl::Milliseconds(1));
    world.Do(Tick{});
  }
  EXPECT_EQ(world.core_.NextDeadline(), absl::InfiniteDuration());
}

// It is not left to the next tick.
TEST(ForgettingTest, ALeaseIsLookedAtWhenItEnds) {
  World world;
  world.Worker("w0");
  const absl::Duration end = world.now_ + CoreOptions().lease;
  world.Pass(CoreOptions().lease - absl::Milliseconds(100));
  EXPECT_EQ(world.core_.NextDeadline(), end);
}

TEST(ForgettingTest, TheRequestIdOfAForgottenJobMayBeUsedAgain) {
  CoreOptions options;
  options.max_ended_jobs = 1;
  World world(options);
  const std::string first = world.Submit(World::Spec(1, 1), "one");
  world.Cancel(first);
  EXPECT_EQ(world.Submit(World::Spec(1, 1), "one"), first);  // it is remembered
  world.Cancel(world.Submit(World::Spec(1, 1), "two"));      // and now it is not
  ASSERT_TRUE(absl::IsNotFound(world.core_.GetJob(first).status()));
  const std::string again = world.Submit(World::Spec(1, 1), "one");
  EXPECT_THAT(again, Not(testing::AnyOf("", first)));
  EXPECT_EQ(world.Job(again).state(), common::v1::JOB_STATE_PENDING);
}

TEST(ForgettingTest, AHistoryIsThinnedAtTheEndOfItsJobAndGoesWithIt) {
  CoreOptions options;
  options.max_ended_jobs = 1;
  options.max_ended_history_points = 4;
  World world(options);
  const SessionId worker = world.Worker("w0");
  const std::string id = world.Submit(World::Spec(1, 0));
  world.AnswerProbe(worker);
  node::v1::TaskState& task = world.Task(worker, id, 0);
  task.set_phase(node::v1::TASK_PHASE_RUNNING);
  task.mutable_lead()->set_lineage(1);
  for (int step = 1; step <= 9; ++step) {
    task.mutable_lead()->set_step(step);
    world.Beat(worker);
  }
  world.Pass(absl::Seconds(11), {worker});
  const auto saved = [&] {
    v1::DurableHistoryPage page;
    EXPECT_TRUE(page.ParseFromString(world.journal_.state().history.at(id).at(0)));
    return page.points_size();
  };
  EXPECT_EQ(saved(), 9);
  world.Cancel(id);
  world.Forget(worker);
  world.Beat(worker);
  ASSERT_EQ(world.Job(id).state(), common::v1::JOB_STATE_CANCELLED);
  EXPECT_THAT(world.core_.Peek(id)->history().metrics().points(), SizeIs(3));  // 9, 5, 3
  EXPECT_EQ(saved(), 3);

  world.Cancel(world.Submit(World::Spec(1, 1), "another"));
  ASSERT_EQ(world.core_.Peek(id), nullptr);
  EXPECT_EQ(world.journal_.state().history.count(id), 0u);
}

class ForgivingTest : public RecoveryTest {
 protected:
  job::v1::JobSpec Elastic() {
    job::v1::JobSpec spec = Spec(2, 1);
    spec.mutable_resources()->set_min_workers(1);
    return spec;
  }
};

TEST_F(ForgivingTest, WhoWasRefusedForItsDataIsAskedAgainLater) {
  Running(1, 1, Elastic());
  const SessionId joiner = Worker("w1");
  AnswerProbe(joiner, "DataMissing");
  std::vector<SessionId> heard = All();
  heard.push_back(joiner);
  Pass(absl::Seconds(250), heard);
  EXPECT_THAT(Take(joiner, ConnectResponse::kProbe), IsEmpty());
  Pass(absl::Seconds(10), heard);
  EXPECT_THAT(Take(joiner, ConnectResponse::kProbe), Not(IsEmpty()));
}

TEST_F(ForgivingTest, ARetriedJobHoldsNothingAgainstANode) {
  Running(1, 1, Elastic());
  AnswerProbe(Worker("w1"), "DataMissing");
  Do(NodeDisconnected{sessions_, /*goodbye=*/true});
  Cancel(id_);
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_CANCELLED);
  Ask(For<job::v1::RetryJobRequest>());
  ASSERT_TRUE(LastReply().status.ok()) << LastReply().status;
  PassAndFollow(absl::Seconds(2));
  ASSERT_EQ(Job(id_).state(), common::v1::JOB_STATE_RUNNING);
  EXPECT_THAT(Take(Worker("w1"), ConnectResponse::kProbe), SizeIs(1));
}

}  // namespace
}  // namespace capstan::coordinator::core
