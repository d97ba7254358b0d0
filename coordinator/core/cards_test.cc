// What a job computes on: cards that are dealt and held by host and UUID, and the ladder of `auto`.
#include "coordinator/core/cards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <string>

#include "coordinator/core/test_gangs.h"
#include "coordinator/core/test_world.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::SizeIs;
using ::testing::StartsWith;

// A card of its UUID; "cpu" is one.
node::v1::Register Host(const std::string& name, const std::string& host,
                        const std::vector<std::string>& uuids) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(common::v1::ROLE_WORKER);
  reg.set_host(host);
  for (const std::string& uuid : uuids) {
    node::v1::Device& device = *reg.add_devices();
    device.set_name(uuid == "cpu" ? uuid : absl::StrCat("cuda:", reg.devices_size() - 1));
    if (uuid != "cpu") device.set_uuid(uuid);
  }
  return reg;
}

// By name, if it has one.
std::map<std::string, std::string> SharedCards(const NodeTable& nodes) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, node] : nodes.all()) {
    const std::string text = SharedCardsText(nodes, node);
    if (!text.empty()) texts[name] = text;
  }
  return texts;
}

class CardsTest : public ::testing::Test {
 protected:
  Node& Add(const node::v1::Register& reg) {
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
  NodeTable nodes_;
  int64_t next_ = 0;
};

TEST_F(CardsTest, OneCpuSlotCarriesAnyNumberOfCpuDevices) {
  Node& node = Add(Host("w0", "a", {"cpu"}));
  GangRequest request = Request(1, 3);
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(0, 0, 0));
  request.device_indices = {1, 2, 5};  // of cards, if there are any
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(0, 0, 0));
  request.device = "gpu";
  EXPECT_FALSE(CouldFit(nodes_, request));
  node.HoldSlot(0, "other-job");
  EXPECT_FALSE(FindGang(nodes_, Request(1, 3)).has_value());
  EXPECT_TRUE(CouldFit(nodes_, Request(1, 3)));
}

TEST_F(CardsTest, AJobForMoreCpuDevicesThanSlotsTakesAllOfThem) {
  Node& node = Add(Host("w0", "a", {"cpu", "cpu"}));
  EXPECT_THAT(FindGang(nodes_, Request(1, 3))->workers[0].devices, ElementsAre(0, 1, 0));
  node.HoldSlot(1, "other-job");
  EXPECT_FALSE(FindGang(nodes_, Request(1, 3)).has_value());
  EXPECT_THAT(FindGang(nodes_, Request(1, 1))->workers[0].devices, ElementsAre(0));
}

TEST_F(CardsTest, WorkersOfAHostAreDealtDifferentCards) {
  for (const char* name : {"w0", "w1"}) Add(Host(name, "a", {"A", "B", "C", "D", "cpu"}));
  const std::optional<scheduler::Gang> gang = FindGang(nodes_, Request(2, 2));
  ASSERT_TRUE(gang.has_value());
  EXPECT_TRUE(gang->on_gpus);
  EXPECT_THAT(gang->workers[0].devices, ElementsAre(0, 1));
  EXPECT_THAT(gang->workers[1].devices, ElementsAre(2, 3));
}

TEST_F(CardsTest, ACardThatAnotherWorkerOfItsHostHoldsIsTaken) {
  Node& holder = Add(Host("w0", "a", {"A", "B"}));
  Add(Host("w1", "a", {"A", "B"}));
  holder.HoldFreeSlots("other-job");
  GangRequest request = Request(1, 1);
  request.device = "gpu";
  EXPECT_FALSE(FindGang(nodes_, request).has_value());
  EXPECT_TRUE(CouldFit(nodes_, request));
  holder.FreeSlots("other-job", /*except=*/{0});
  holder.set_drained(true);  // so that it does not get the job itself
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(1));
  holder.HoldSlot(1, "other-job");
  holder.Lose(/*left=*/false);
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(0));
}

TEST_F(CardsTest, EqualUuidsOfTwoHostsAreTwoCards) {
  Add(Host("w0", "a", {"A"})).HoldSlot(0, "other-job");
  Add(Host("w1", "b", {"A"}));
  EXPECT_EQ(FindGang(nodes_, Request(1, 1))->workers[0].node, "w1");
}

// A worker of an older version does not say which card it has: as before, its slot alone counts.
TEST_F(CardsTest, CardsWithoutAUuidAreHeldByTheirSlots) {
  for (const char* name : {"w0", "w1"}) {
    node::v1::Register reg = Host(name, "a", {"A"});
    reg.mutable_devices(0)->clear_uuid();
    Add(reg);
  }
  EXPECT_THAT(FindGang(nodes_, Request(2, 1))->workers, SizeIs(2));
  EXPECT_THAT(SharedCards(nodes_), IsEmpty());
}

TEST_F(CardsTest, ACardNamedTwiceByOneWorkerIsTwoDevices) {
  Node& node = Add(Host("w0", "a", {"A", "A"}));
  EXPECT_THAT(FindGang(nodes_, Request(1, 2))->workers[0].devices, ElementsAre(0, 1));
  node.HoldSlot(0, "other-job");
  EXPECT_THAT(FindGang(nodes_, Request(1, 1))->workers[0].devices, ElementsAre(1));
  EXPECT_THAT(SharedCards(nodes_), IsEmpty());
}

TEST_F(CardsTest, AutoWaitsForCardsThatAreBusy) {
  Node& node = Add(Host("w0", "a", {"A", "cpu"}));
  Add(Host("w1", "b", {"cpu"}));
  node.HoldSlot(0, "other-job");
  EXPECT_FALSE(FindGang(nodes_, Request(1, 1)).has_value());
  EXPECT_TRUE(CouldFit(nodes_, Request(1, 1)));
  EXPECT_EQ(MissingText(nodes_, Request(1, 1)),
            "needs 1 worker with 1 free gpu device, 0 of 1 are free (other-job has it)");
  GangRequest request = Request(1, 1);
  request.device = "cpu";
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(1));
}

TEST_F(CardsTest, AutoTakesCpusWhereThereWillNeverBeEnoughCards) {
  for (const char* name : {"w0", "w1"})
    Add(Host(name, "a", {"A", "cpu"}));  // one card, two workers
  const std::optional<scheduler::Gang> gang = FindGang(nodes_, Request(2, 1));
  ASSERT_TRUE(gang.has_value());
  EXPECT_FALSE(gang->on_gpus);
  EXPECT_THAT(gang->workers[0].devices, ElementsAre(1));
  EXPECT_THAT(gang->workers[1].devices, ElementsAre(1));
  EXPECT_EQ(KindText(nodes_, Request(2, 1), false),
            "CPUs (2 workers with 1 GPU each are needed, 1 is there)");
  EXPECT_EQ(KindText(nodes_, Request(1, 1), true), "GPUs");
  GangRequest elastic = Request(2, 1);
  elastic.min_workers = 1;
  EXPECT_TRUE(FindGang(nodes_, elastic)->on_gpus);
}

TEST_F(CardsTest, AutoTakesCardsForEveryModel) {
  Add(Host("w0", "a", {"A", "cpu"}));
  for (const char* model : {"lenet", "resnet18_v1"}) {
    job::v1::JobSpec spec;
    spec.mutable_model()->set_name(model);
    spec.mutable_model()->set_dropout(0.5);
    spec.mutable_resources()->set_num_workers(1);
    EXPECT_TRUE(FindGang(nodes_, RequestOf(spec))->on_gpus) << model;
    spec.mutable_training()->set_loss("mean_squared_error");
    EXPECT_TRUE(FindGang(nodes_, RequestOf(spec))->on_gpus) << model;
  }
}

TEST_F(CardsTest, ForAutoALostNodeIsNoneAndOneNotYetHeardIsOne) {
  Node& node = Add(Host("w0", "a", {"A"}));
  Add(Host("w1", "b", {"cpu"}));
  node.set_unheard(true);  // after a restart of the coordinator
  EXPECT_FALSE(FindGang(nodes_, Request(1, 1)).has_value());
  node.Lose(/*left=*/false);
  EXPECT_EQ(FindGang(nodes_, Request(1, 1))->workers[0].node, "w1");
  EXPECT_EQ(KindText(nodes_, Request(1, 1), false), "CPUs");
}

TEST_F(CardsTest, AMissingCardComesWithTheReason) {
  node::v1::Register reg = Host("w0", "a", {"cpu"});
  reg.set_no_gpu("no NVIDIA driver on this machine");
  Add(reg);
  GangRequest request = Request(1, 1);
  request.device = "gpu";
  EXPECT_EQ(MissingText(nodes_, request),
            "needs 1 worker with 1 free gpu device, 0 are there (worker w0 has none: no NVIDIA "
            "driver on this machine)");
}

TEST_F(CardsTest, ACardThatTwoWorkersOfferIsTold) {
  Add(Host("w0", "a", {"A", "B", "cpu"}));
  Add(Host("w1", "a", {"B", "cpu"}));
  Add(Host("w2", "a", {"C", "cpu"}));
  const auto shared = SharedCards(nodes_);
  EXPECT_THAT(shared, ElementsAre(Key("w0"), Key("w1")));
  EXPECT_THAT(shared.at("w0"), StartsWith("cuda:1 is a card that worker w1 on host a offers too"));
  EXPECT_THAT(shared.at("w1"), StartsWith("cuda:0 is a card that worker w0 on host a offers too"));
  nodes_.Find("w0")->Lose(/*left=*/false);
  EXPECT_THAT(SharedCards(nodes_), IsEmpty());
  Add(Host("w3", "b", {"B"}));
  EXPECT_THAT(SharedCards(nodes_), ElementsAre(Key("w1"), Key("w3")));
  // Another process with other cards, and a node that is forgotten.
  Add(Host("w3", "b", {"D"}));
  EXPECT_THAT(SharedCards(nodes_), IsEmpty());
  Add(Host("w4", "b", {"D"}));
  EXPECT_THAT(SharedCards(nodes_), ElementsAre(Key("w3"), Key("w4")));
  nodes_.Erase("w3");
  EXPECT_THAT(SharedCards(nodes_), IsEmpty());
}

// All nodes of a cluster come at once after a restart. Looked for among all others each time, their
// cards take this test a hundred times as long.
TEST_F(CardsTest, WhatOneNodeSharesIsFoundWithoutLookingAtAllOthers) {
  const std::clock_t start = std::clock();
  for (int i = 0; i < 10000; ++i) {
    Node& node = Add(Host(absl::StrCat("w", i), "a", {absl::StrCat("GPU-", i / 2)}));
    ASSERT_EQ(SharedCardsText(nodes_, node).empty(), i % 2 == 0);
  }
  EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 3);
}

TEST_F(CardsTest, CpusBesideCardsAreNoCapacityUnlessTheyAreHeld) {
  Node& node = Add(Host("w0", "a", {"A", "cpu"}));
  EXPECT_FALSE(IsSpare(node, 0));
  EXPECT_TRUE(IsSpare(node, 1));
  node.HoldSlot(1, "other-job");
  EXPECT_FALSE(IsSpare(node, 1));
  EXPECT_FALSE(IsSpare(Add(Host("w1", "a", {"cpu"})), 0));
}

TEST_F(CardsTest, LongTextsOfARegistrationAreRefused) {
  node::v1::Register reg = Host("w0", "a", {std::string(64, 'A')});
  EXPECT_THAT(CheckRegister(reg).message(), HasSubstr("uuid of 64 bytes"));
  reg.mutable_devices(0)->set_uuid("A");
  EXPECT_TRUE(CheckRegister(reg).ok());
  reg.set_no_gpu(std::string(1001, 'x'));
  EXPECT_THAT(CheckRegister(reg).message(), HasSubstr("register.no_gpu"));
}

CoreOptions Expecting(int nodes) {
  CoreOptions options;
  options.expected_nodes = nodes;
  return options;
}

job::v1::JobSpec ForGpus() {
  job::v1::JobSpec spec = World::Spec(1, 1);
  spec.mutable_resources()->set_device("gpu");
  return spec;
}

TEST(ExpectedNodesTest, AJobThatTheyCouldNotCarryFailsOnceAllAreThere) {
  World world(Expecting(2));
  world.Worker("w0");
  const std::string id = world.Submit(ForGpus());
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_PENDING);
  world.Store("s0");
  world.Do(Tick{});
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_FAILED);
  EXPECT_EQ(world.Job(id).reason(), "InvalidSpec");
  EXPECT_EQ(world.Job(id).message(),
            "needs 1 worker with 1 free gpu device, 0 are there, and no other service will come");
  // A job that fits is not hindered by it.
  EXPECT_EQ(world.Job(world.Submit(World::Spec(1, 1))).state(), common::v1::JOB_STATE_STARTING);
}

TEST(ExpectedNodesTest, WhereAnyNumberMayComeItWaits) {
  World world;
  world.Worker("w0");
  world.Store("s0");
  const std::string id = world.Submit(ForGpus());
  world.Do(Tick{});
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_PENDING);
  EXPECT_EQ(world.Job(id).reason(), "WaitingForSlots");
}

std::vector<std::string> WarningsOfTheSecond(World& world) {
  world.Do(NodeConnected{101, Host("w0", "a", {"A", "cpu"})});
  world.Do(NodeConnected{102, Host("w1", "a", {"A", "cpu"})});
  std::vector<std::string> warnings;
  for (const SessionId session : {101, 102}) {
    for (const ConnectResponse& message : world.Take(session, ConnectResponse::kRegistered)) {
      for (const std::string& text : message.registered().warnings()) warnings.push_back(text);
    }
  }
  return warnings;
}

TEST(SharedCardsTest, WhoComesSecondIsToldUnlessTheyWereStartedTogether) {
  World open;
  EXPECT_THAT(WarningsOfTheSecond(open), ElementsAre(HasSubstr("worker w0 on host a offers too")));
  World together(Expecting(3));
  EXPECT_THAT(WarningsOfTheSecond(together), IsEmpty());
}

}  // namespace
}  // namespace capstan::coordinator::core
