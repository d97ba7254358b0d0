// A worker service with the devices of several workers stands for as many: one task has them all.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/test_gangs.h"
#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class SeveralWorkersTest : public ::testing::Test {
 protected:
  Node& Add(const std::string& name, const std::vector<std::string>& devices) {
    node::v1::Register reg;
    reg.set_name(name);
    reg.set_role(common::v1::ROLE_WORKER);
    for (const std::string& device : devices) reg.add_devices()->set_name(device);
    ++next_;
    return nodes_.Admit(next_, reg, {}, next_, absl::ZeroDuration(), absl::UnixEpoch());
  }
  static GangRequest Request(int workers, int devices) {
    GangRequest request;
    request.num_workers = workers;
    request.devices_per_worker = devices;
    request.num_shards = 0;
    return request;
  }
  std::string Missing(const GangRequest& request) { return MissingText(nodes_, request); }

  NodeTable nodes_;
  int64_t next_ = 0;
};

TEST_F(SeveralWorkersTest, OneNodeStandsForAsManyAsItHasDevices) {
  Add("w0", {"cpu", "cpu", "cpu", "cpu"});
  const std::optional<scheduler::Gang> gang = FindGang(nodes_, Request(2, 2));
  ASSERT_TRUE(gang.has_value());
  EXPECT_EQ(gang->num_workers, 2);
  ASSERT_THAT(gang->workers, SizeIs(1));
  EXPECT_THAT(gang->workers[0].devices, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(Missing(Request(3, 2)), "needs 3 workers with 2 free devices each, 2 are there");
}

TEST_F(SeveralWorkersTest, NodesOfTheirOwnComeFirst) {
  Add("w0", {"cuda:0", "cuda:1", "cuda:2"});
  Add("w1", {"cuda:0", "cuda:1"});
  const std::optional<scheduler::Gang> two = FindGang(nodes_, Request(2, 1));
  ASSERT_TRUE(two.has_value());
  ASSERT_THAT(two->workers, SizeIs(2));
  EXPECT_THAT(two->workers[0].devices, ElementsAre(0));
  EXPECT_THAT(two->workers[1].devices, ElementsAre(0));
  const std::optional<scheduler::Gang> five = FindGang(nodes_, Request(5, 1));
  ASSERT_TRUE(five.has_value());
  EXPECT_TRUE(five->on_gpus);
  ASSERT_THAT(five->workers, SizeIs(2));
  EXPECT_THAT(five->workers[0].devices, ElementsAre(0, 1, 2));
  EXPECT_THAT(five->workers[1].devices, ElementsAre(0, 1));
}

// Named devices are each worker's own; one slot that carries any number of CPU devices is one worker.
TEST_F(SeveralWorkersTest, WhatIsOneWorkerOnlyStaysOne) {
  Add("w0", {"cpu", "cpu"});
  GangRequest named = Request(2, 1);
  named.device_indices = {1};
  EXPECT_FALSE(FindGang(nodes_, named).has_value());
  EXPECT_FALSE(FindGang(nodes_, Request(2, 3)).has_value());
  GangRequest counted = Request(2, 1);
  counted.one_per_node = true;
  EXPECT_FALSE(FindGang(nodes_, counted).has_value());
}

TEST_F(SeveralWorkersTest, WhatIsHeldIsToldWithItsHolders) {
  Node& w0 = Add("w0", {"cpu", "cpu"});
  w0.HoldFreeSlots("a-1");
  EXPECT_EQ(Missing(Request(2, 1)),
            "needs 2 workers with 1 free device each, 0 of 2 are free (a-1 has them)");
  w0.FreeSlots("a-1", /*except=*/{0});
  EXPECT_EQ(Missing(Request(2, 1)),
            "needs 2 workers with 1 free device each, 1 of 2 is free (a-1 has it)");
  Node& w1 = Add("w1", {"cpu", "cpu", "cpu"});
  w1.HoldSlot(0, "b-2");
  w1.HoldSlot(1, "c-3");
  w1.HoldSlot(2, "d-4");
  w0.HoldFreeSlots("a-1");
  EXPECT_EQ(Missing(Request(2, 1)),
            "needs 2 workers with 1 free device each, 0 of 5 are free (a-1, b-2, c-3 and 1 more "
            "have them)");
}

TEST(SeveralWorkersJobTest, OneTaskHasTheLanesAndDevicesOfAll) {
  World world;
  const SessionId both = world.Connect("w0", common::v1::ROLE_WORKER, 0, /*devices=*/2);
  const SessionId store = world.Store("s0");
  const std::string id = world.Submit(World::Spec(2, 1));
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_STARTING);
  const job::v1::Job admitted = world.Job(id);
  EXPECT_EQ(admitted.events(admitted.events_size() - 1).message(),
            "gang ready: 2 workers on 1 node, 1 shard, on CPUs");
  world.AnswerProbe(both);
  world.Shard(store, id, 0).set_ready(true);
  world.Beat(store);
  const std::vector<ConnectResponse> tasks = world.Take(both, ConnectResponse::kStartTask);
  ASSERT_THAT(tasks, SizeIs(1));
  EXPECT_THAT(tasks[0].start_task().devices(), ElementsAre(0, 1));
  EXPECT_THAT(tasks[0].start_task().view().lane_owners(), ElementsAre(0, 0, 0, 0));
  world.Task(both, id, 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  world.Beat(both);
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_RUNNING);

  // It lacks no worker, and a job that wants a device is told which jobs have them.
  const SessionId late = world.Worker("w1");
  world.Beat(late);
  EXPECT_THAT(world.Take(late, ConnectResponse::kProbe), IsEmpty());
  const std::string next = world.Submit(World::Spec(2, 1));
  EXPECT_EQ(
      world.Job(next).message(),
      absl::StrCat("needs 2 workers with 1 free device each, 1 of 3 is free (", id, " has them)"));
  world.Cancel(id);
  world.Forget(both);
  world.Beat(both);
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_CANCELLED);
  EXPECT_EQ(world.Job(next).state(), common::v1::JOB_STATE_STARTING);
}

TEST(SeveralWorkersJobTest, WhoComesInPlaceOfALostOneStandsForAsMany) {
  World world;
  const SessionId first = world.Connect("w0", common::v1::ROLE_WORKER, 0, /*devices=*/2);
  const SessionId store = world.Store("s0");
  const std::string id = world.Submit(World::Spec(2, 1));
  world.AnswerProbe(first);
  world.Shard(store, id, 0).set_ready(true);
  world.Beat(store);
  world.Task(first, id, 0).set_phase(node::v1::TASK_PHASE_RUNNING);
  world.Beat(first);
  world.Do(NodeDisconnected{first, /*goodbye=*/true});
  const SessionId second = world.Connect("w1", common::v1::ROLE_WORKER, 0, /*devices=*/3);
  world.Beat(second);
  world.AnswerProbe(second);
  world.Beat(store);
  const std::vector<ConnectResponse> tasks = world.Take(second, ConnectResponse::kStartTask);
  ASSERT_THAT(tasks, SizeIs(1));
  EXPECT_THAT(tasks[0].start_task().devices(), ElementsAre(0, 1));
  EXPECT_THAT(tasks[0].start_task().view().lane_owners(), Each(1));
  EXPECT_THAT(world.EventTypes(id), Contains("WorkerJoins"));
}

}  // namespace
}  // namespace capstan::coordinator::core
