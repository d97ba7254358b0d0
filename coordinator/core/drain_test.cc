// Draining a node: no new work, lanes of elastic jobs go elsewhere, and it outlives a restart.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using common::v1::JOB_STATE_PENDING;
using common::v1::JOB_STATE_RUNNING;
using common::v1::JOB_STATE_STARTING;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

class DrainTest : public ::testing::Test, protected World {
 protected:
  absl::Status SetDrained(const std::string& node, bool drained) {
    Do(core::SetDrained{++calls_, node, drained});
    return LastReply().status;
  }
  // A job of two workers, each of which owns two lanes.
  std::string Running(int min_workers) {
    for (const char* name : {"w0", "w1"}) workers_.push_back(Worker(name));
    store_ = Store("s0");
    job::v1::JobSpec spec = Spec(2, 1);
    if (min_workers > 0) spec.mutable_resources()->set_min_workers(min_workers);
    const std::string id = Submit(spec);
    for (const SessionId session : workers_) AnswerProbe(session);
    Shard(store_, id, 0).set_ready(true);
    Beat(store_);
    for (int i = 0; i < 2; ++i) {
      Task(workers_[i], id, i).set_phase(node::v1::TASK_PHASE_RUNNING);
      Beat(workers_[i]);
    }
    EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
    return id;
  }

  std::vector<SessionId> workers_;
  SessionId store_ = 0;
};

TEST_F(DrainTest, ADrainedNodeGetsNoWorkUntilItIsUndrained) {
  Worker("w0");
  EXPECT_TRUE(SetDrained("w0", true).ok());
  EXPECT_TRUE(SetDrained("w0", true).ok());  // is so already
  const std::string id = Submit(Spec(1, 0));
  EXPECT_EQ(Job(id).state(), JOB_STATE_PENDING);
  EXPECT_TRUE(SetDrained("w0", false).ok());
  EXPECT_EQ(Job(id).state(), JOB_STATE_STARTING);
  EXPECT_TRUE(absl::IsNotFound(SetDrained("w1", true)));
  EXPECT_TRUE(absl::IsNotFound(SetDrained("w1", false)));
}

TEST_F(DrainTest, LanesOfAnElasticJobGoToTheOthersAndTheTaskIsStopped) {
  const std::string id = Running(/*min_workers=*/1);
  ASSERT_TRUE(SetDrained("w1", true).ok());
  Pass(absl::Seconds(1), {workers_[0], workers_[1], store_});
  EXPECT_THAT(core_.Peek(id)->view().lane_owners(), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(EventTypes(id), Contains("WorkerDrained"));
  EXPECT_THAT(EventTypes(id), Not(Contains("WorkerLost")));
  EXPECT_EQ(Job(id).state(), JOB_STATE_RUNNING);
  EXPECT_FALSE(Take(workers_[1], ConnectResponse::kStopTask).empty());
  Forget(workers_[1]);  // its task is gone
  Beat(workers_[1]);
  EXPECT_TRUE(core_.nodes().Find("w1")->jobs().empty());
  // The last one stays: the job needs it.
  ASSERT_TRUE(SetDrained("w0", true).ok());
  Pass(absl::Seconds(1), {workers_[0], workers_[1], store_});
  EXPECT_THAT(core_.Peek(id)->view().lane_owners(), ElementsAre(0, 0, 0, 0));
  EXPECT_FALSE(core_.Peek(id)->tasks()[0].lost);
}

TEST_F(DrainTest, AJobThatIsNotElasticKeepsItsWorkers) {
  const std::string id = Running(/*min_workers=*/0);
  ASSERT_TRUE(SetDrained("w1", true).ok());
  Pass(absl::Seconds(1), {workers_[0], workers_[1], store_});
  EXPECT_THAT(core_.Peek(id)->view().lane_owners(), ElementsAre(0, 0, 1, 1));
}

TEST_F(DrainTest, ItIsOfTheNameAndOutlivesCoordinatorAndNode) {
  Worker("w0");
  ASSERT_TRUE(SetDrained("w0", true).ok());
  World next;
  ASSERT_TRUE(next.core_.Restore(journal_.state(), next.now_, absl::UnixEpoch()).ok());
  next.Worker("w0");  // another process
  EXPECT_TRUE(next.core_.nodes().Find("w0")->drained());
  EXPECT_EQ(next.Job(next.Submit(Spec(1, 0))).state(), JOB_STATE_PENDING);

  ASSERT_TRUE(SetDrained("w0", false).ok());
  World third;
  ASSERT_TRUE(third.core_.Restore(journal_.state(), third.now_, absl::UnixEpoch()).ok());
  third.Worker("w0");
  EXPECT_FALSE(third.core_.nodes().Find("w0")->drained());
}

}  // namespace
}  // namespace capstan::coordinator::core
