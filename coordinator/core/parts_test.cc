// The core's parts: lanes, gangs, nodes, logs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/gang.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/log_buffer.h"
#include "coordinator/core/node_table.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(LaneOwnersTest, LanesAreDealtInRuns) {
  EXPECT_THAT(DealLanes(8, 2), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(DealLanes(5, 3), ElementsAre(0, 0, 1, 1, 2));  // floor(l * 3 / 5)
  EXPECT_THAT(DealLanes(2, 3), ElementsAre(0, 1));           // more workers than lanes
}

TEST(LaneOwnersTest, OrphansGoToTheLeastLoadedAndNobodyElseMoves) {
  EXPECT_THAT(TakeOver({0, 0, 1, 1, 2, 2}, {0, 2}), ElementsAre(0, 0, 0, 2, 2, 2));
  EXPECT_THAT(TakeOver({0, 0, 1, 1}, {1}), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(TakeOver({0, 1, 1, 1, 2, 2}, {0, 1}), ElementsAre(0, 1, 1, 1, 0, 0));
  EXPECT_THAT(TakeOver({0, 1}, {0, 1}), ElementsAre(0, 1));
}

TEST(LaneOwnersTest, LongListsAreCut) {
  std::vector<int32_t> many(40);
  EXPECT_THAT(NumbersText(many), HasSubstr("(40 in all)"));
  EXPECT_EQ(NumbersText({2, 3}), "2,3");
}

node::v1::Register Worker(const std::string& name, const std::vector<std::string>& devices) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(common::v1::ROLE_WORKER);
  for (const std::string& device : devices) reg.add_devices()->set_name(device);
  return reg;
}

node::v1::Register Store(const std::string& name) {
  node::v1::Register reg;
  reg.set_name(name);
  reg.set_role(common::v1::ROLE_PARAM_STORE);
  reg.set_data_address("unix:/x");
  return reg;
}

class GangTest : public ::testing::Test {
 protected:
  Node& Add(const node::v1::Register& reg) {
    ++next_;
    return nodes_.Admit(next_, reg, {}, next_, absl::ZeroDuration(), absl::UnixEpoch());
  }
  NodeTable nodes_;
  int64_t next_ = 0;
};

TEST_F(GangTest, SlotsAreCountedPerDevice) {
  Node& a = Add(Worker("a", {"cpu", "cpu", "cpu"}));
  a.slots[1] = "other-job";
  GangRequest request;
  request.devices_per_worker = 2;
  request.num_shards = 0;
  const auto gang = FindGang(nodes_, request);
  ASSERT_TRUE(gang.has_value());
  EXPECT_THAT(gang->workers[0].devices, ElementsAre(0, 2));

  a.slots[2] = "other-job";
  EXPECT_FALSE(FindGang(nodes_, request).has_value());
  EXPECT_TRUE(CouldFit(nodes_, request));
  EXPECT_EQ(MissingText(nodes_, request), "needs 1 worker with 2 free devices, 0 are there");
}

TEST_F(GangTest, NamedDevicesMustAllBeFree) {
  Node& a = Add(Worker("a", {"cpu", "cpu"}));
  GangRequest request;
  request.num_shards = 0;
  request.device_indices = {1};
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(1));
  a.slots[1] = "other-job";
  EXPECT_FALSE(FindGang(nodes_, request).has_value());
  request.device_indices = {2};  // there is none
  EXPECT_FALSE(CouldFit(nodes_, request));
}

TEST_F(GangTest, AutoTakesOneKindOfDevice) {
  Add(Worker("a", {"cpu"}));
  Add(Worker("b", {"cuda:0"}));
  GangRequest request;
  request.num_shards = 0;
  request.num_workers = 2;
  EXPECT_FALSE(FindGang(nodes_, request).has_value());  // never one of each
  request.num_workers = 1;
  EXPECT_EQ(FindGang(nodes_, request)->workers[0].node, "b");
  request.device = "cpu";
  EXPECT_EQ(FindGang(nodes_, request)->workers[0].node, "a");
}

TEST_F(GangTest, ShardsGoToTheStoresWithFewestJobs) {
  Add(Worker("a", {"cpu"}));
  Add(Store("s0")).jobs.insert("other-job");
  Add(Store("s1"));
  Add(Store("s2"));
  GangRequest request;
  request.num_shards = 2;
  EXPECT_THAT(FindGang(nodes_, request)->shards, ElementsAre("s1", "s2"));
  request.num_shards = 4;
  EXPECT_EQ(MissingText(nodes_, request), "needs 4 param_stores, 3 are there");
}

TEST(RequestTest, DefaultsFollowTheSpec) {
  job::v1::JobSpec spec;
  EXPECT_EQ(RequestOf(spec).num_shards, 0);  // one worker: local
  spec.mutable_resources()->set_num_workers(2);
  EXPECT_EQ(RequestOf(spec).num_shards, 1);  // dist_sync
  spec.mutable_resources()->add_devices(3);
  spec.mutable_resources()->add_devices(4);
  EXPECT_EQ(RequestOf(spec).devices_per_worker, 2);
}

TEST(RegisterTest, WhatIsMissingIsNamed) {
  EXPECT_TRUE(CheckRegister(Worker("a-1", {"cpu"})).ok());
  EXPECT_THAT(CheckRegister(Worker("A", {"cpu"})).message(), HasSubstr("register.name"));
  EXPECT_THAT(CheckRegister(Worker(std::string(64, 'a'), {"cpu"})).message(),
              HasSubstr("64 bytes"));
  EXPECT_THAT(CheckRegister(Worker("a", {})).message(), HasSubstr("register.devices"));
  node::v1::Register store = Store("s");
  store.clear_data_address();
  EXPECT_THAT(CheckRegister(store).message(), HasSubstr("register.data_address"));
  store.set_role(common::v1::ROLE_CLIENT);
  EXPECT_THAT(CheckRegister(store).message(), HasSubstr("register.role"));
}

job::v1::LogLine Line(const std::string& text) {
  job::v1::LogLine line;
  line.set_text(text);
  return line;
}

TEST(LogBufferTest, TheOldestLinesGoAndAreCounted) {
  LogBuffer logs(/*max_lines=*/3, /*max_bytes=*/1 << 20);
  for (int i = 0; i < 5; ++i) logs.Append(Line(std::to_string(i)));
  EXPECT_EQ(logs.dropped(), 2);
  EXPECT_EQ(logs.Find(1), nullptr);
  ASSERT_NE(logs.Find(2), nullptr);
  EXPECT_EQ(logs.Find(2)->text(), "2");
  EXPECT_EQ(logs.Find(4)->text(), "4");
  EXPECT_EQ(logs.Find(5), nullptr);
  EXPECT_EQ(logs.next(), 5);
}

TEST(LogBufferTest, BytesAreBoundedAndLongTextsCutBetweenCharacters) {
  LogBuffer logs(/*max_lines=*/100, /*max_bytes=*/20000);
  // 8191 bytes, then a character of two: the cut must not leave half of it.
  logs.Append(Line(std::string(8191, 'a') + "\xC3\xA9" + std::string(100, 'b')));
  EXPECT_EQ(logs.Find(0)->text(), std::string(8191, 'a'));
  logs.Append(Line(std::string(8000, 'x')));
  logs.Append(Line(std::string(8000, 'y')));
  EXPECT_EQ(logs.dropped(), 1);
  EXPECT_LE(logs.bytes(), 20000);
}

}  // namespace
}  // namespace capstan::coordinator::core
