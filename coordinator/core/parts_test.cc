// The core's parts: lanes, gangs, nodes, logs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/core/deadlines.h"
#include "coordinator/core/job_changes.h"
#include "coordinator/core/job_events.h"
#include "coordinator/core/lane_owners.h"
#include "coordinator/core/late_lanes.h"
#include "coordinator/core/log_buffer.h"
#include "coordinator/core/node_table.h"
#include "coordinator/core/test_gangs.h"
#include "coordinator/core/test_world.h"
#include "coordinator/core/waiting.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeadlinesTest, EachJobHasOneAndTheFirstOfAllIsKnown) {
  Deadlines deadlines;
  EXPECT_EQ(deadlines.First(), absl::InfiniteDuration());
  deadlines.Set(1, absl::Seconds(30));
  deadlines.Set(2, absl::Seconds(20));
  deadlines.Set(3, absl::Seconds(20));
  EXPECT_EQ(deadlines.First(), absl::Seconds(20));
  EXPECT_EQ(deadlines.FirstAfter(absl::Seconds(19)), absl::Seconds(20));
  EXPECT_EQ(deadlines.FirstAfter(absl::Seconds(20)), absl::Seconds(30));
  EXPECT_EQ(deadlines.FirstAfter(absl::Seconds(30)), absl::InfiniteDuration());
  deadlines.Set(2, absl::Seconds(40));
  deadlines.Set(3, absl::InfiniteDuration());
  EXPECT_EQ(deadlines.First(), absl::Seconds(30));
  deadlines.Set(1, absl::InfiniteDuration());
  EXPECT_EQ(deadlines.First(), absl::Seconds(40));
}

job::v1::Event EventOf(const std::string& type) {
  job::v1::Event event;
  event.set_type(type);
  return event;
}

TEST(JobEventsTest, TheMiddleGoesWhereThereAreTooMany) {
  JobEvents events(4);
  for (const char* type : {"a", "b", "c", "d", "e"}) events.Add(EventOf(type));
  std::string left;
  for (const JobEvents::Numbered& event : events) {
    left += absl::StrCat(event.number, event.event.type());
  }
  EXPECT_EQ(left, "1a2b4d5e");
  EXPECT_EQ(events.last_number(), 5);
  EXPECT_EQ(events.Find(3), nullptr);
  EXPECT_EQ(events.Find(6), nullptr);
  EXPECT_EQ(events.Find(4)->type(), "d");
  EXPECT_EQ(events.After(2)->number, 4);
  EXPECT_TRUE(events.After(5) == events.end());
}

TEST(JobEventsTest, WhatIsSavedIsTakenOnce) {
  JobEvents events(4);
  events.Load(7, EventOf("old"));
  events.Add(EventOf("a"));
  events.Add(EventOf("b"));
  const JobEvents::Unsaved first = events.TakeUnsaved();
  ASSERT_EQ(first.added.size(), 2u);
  EXPECT_EQ(first.added[0].number, 9);  // the newest first
  EXPECT_EQ(first.added[1].number, 8);
  EXPECT_THAT(first.dropped, ::testing::IsEmpty());
  for (const char* type : {"c", "d"}) events.Add(EventOf(type));
  const JobEvents::Unsaved second = events.TakeUnsaved();
  EXPECT_EQ(second.added.size(), 2u);
  EXPECT_THAT(second.dropped, ElementsAre(9));
  EXPECT_EQ(events.TakeUnsaved().added.size(), 0u);
}

node::v1::Order Suspend() {
  node::v1::Order order;
  order.set_suspend(true);
  return order;
}

TEST(JobChangesTest, AnAnsweredSuspendIsACheckpointWithItsIdAndItsStep) {
  JobChanges changes;
  EXPECT_EQ(changes.Add(Suspend()), 1);
  EXPECT_EQ(changes.Add(Suspend(), /*hand_over=*/true), 2);
  changes.Find(2)->order.set_step(7);
  EXPECT_EQ(changes.Find(0), nullptr);
  EXPECT_EQ(changes.Find(3), nullptr);
  EXPECT_TRUE(changes.HandOverOrdered());
  EXPECT_TRUE(changes.SuspendOrdered({}));
  EXPECT_FALSE(changes.SuspendOrdered({1}));  // a checkpoint has it

  changes.AnswerHandOvers();
  EXPECT_FALSE(changes.HandOverOrdered());
  EXPECT_TRUE(changes[1].order.checkpoint());
  EXPECT_EQ(changes[1].order.id(), 2);
  EXPECT_EQ(changes[1].order.step(), 7);
  EXPECT_TRUE(changes.SuspendOrdered({}));  // the person's
  changes.AnswerSuspends();
  EXPECT_FALSE(changes.SuspendOrdered({}));
  EXPECT_TRUE(changes[0].order.checkpoint());
}

TEST(JobChangesTest, ANewOneIsDueAtOnceAndThenAgainAndAgain) {
  JobChanges changes;
  changes.NoteGiven(absl::Seconds(10));
  EXPECT_FALSE(changes.Due(absl::Seconds(10.4), absl::Seconds(0.5)));
  EXPECT_TRUE(changes.Due(absl::Seconds(10.5), absl::Seconds(0.5)));
  changes.Add(Suspend(), /*hand_over=*/true);
  EXPECT_TRUE(changes.Due(absl::Seconds(10), absl::Seconds(0.5)));
  EXPECT_EQ(changes.HandOverFor(absl::Seconds(12)), absl::ZeroDuration());  // not known since when
  EXPECT_EQ(changes.HandOverFor(absl::Seconds(15)), absl::Seconds(3));
  changes.BeginHandOver(absl::Seconds(14));
  EXPECT_EQ(changes.HandOverFor(absl::Seconds(15)), absl::Seconds(1));
}

TEST(LateLanesTest, EachReissueInAStepDoublesTheWait) {
  LateLanes late;
  const absl::Duration limit = absl::Seconds(2);
  late.Await(7, {0, 1}, absl::Seconds(10));
  EXPECT_FALSE(late.IsLate(1, limit, absl::Seconds(11.9)));
  EXPECT_TRUE(late.IsLate(1, limit, absl::Seconds(12)));
  late.CountReissue(1);
  late.Issue(1, absl::Seconds(12));
  late.Await(7, {0, 1}, absl::Seconds(13));  // the same: it began at 10
  EXPECT_TRUE(late.IsLate(0, limit, absl::Seconds(13)));
  EXPECT_FALSE(late.IsLate(1, limit, absl::Seconds(15.9)));
  EXPECT_TRUE(late.IsLate(1, limit, absl::Seconds(16)));
  late.Await(7, {1}, absl::Seconds(15));
  EXPECT_FALSE(late.IsLate(1, limit, absl::Seconds(18.9)));
  EXPECT_TRUE(late.IsLate(1, limit, absl::Seconds(19)));
  late.Await(8, {1}, absl::Seconds(20));  // the next step has the plain wait
  EXPECT_FALSE(late.IsLate(1, limit, absl::Seconds(21.9)));
  EXPECT_TRUE(late.IsLate(1, limit, absl::Seconds(22)));
}

TEST(LateLanesTest, SlowStepsGiveOwnersThreeMedianSteps) {
  LateLanes late;
  EXPECT_EQ(late.Limit(absl::Seconds(2)), absl::Seconds(2));
  late.NoteStep(0.5);
  EXPECT_EQ(late.Limit(absl::Seconds(2)), absl::Seconds(2));
  for (const double seconds : {3.0, 1.0}) late.NoteStep(seconds);
  EXPECT_EQ(late.Limit(absl::Seconds(2)), absl::Seconds(3));
  for (int i = 0; i < 15; ++i) late.NoteStep(2);  // fifteen count
  EXPECT_EQ(late.Limit(absl::Seconds(2)), absl::Seconds(6));
}

TEST(WaitingTest, AJobWaitsSinceOneOfItsNumbersLastGrew) {
  Waiting waiting;
  EXPECT_FALSE(waiting.Note({3, 0}, absl::Seconds(10)));  // the first ones are where it begins
  EXPECT_EQ(waiting.Waited(absl::Seconds(14)), absl::Seconds(4));
  EXPECT_TRUE(waiting.Note({2, 1}, absl::Seconds(20)));
  EXPECT_FALSE(waiting.Note({3, 1}, absl::Seconds(30)));  // it had been there
  EXPECT_EQ(waiting.Waited(absl::Seconds(30)), absl::Seconds(10));
  waiting.Excuse(absl::Seconds(40));
  EXPECT_EQ(waiting.Waited(absl::Seconds(41)), absl::Seconds(1));
  waiting.BeginAnew();
  EXPECT_FALSE(waiting.Note({0, 0}, absl::Seconds(50)));
  EXPECT_TRUE(waiting.Note({1, 0}, absl::Seconds(60)));
}

TEST(WaitingTest, PeopleAreToldOnceASecondAndTheLogOnceAMinute) {
  Waiting waiting;
  EXPECT_TRUE(waiting.TimeToSay(absl::Seconds(10)));
  EXPECT_FALSE(waiting.TimeToSay(absl::Seconds(10.9)));
  EXPECT_TRUE(waiting.TimeToSay(absl::Seconds(11)));
  EXPECT_TRUE(waiting.TimeToLog(absl::Seconds(11)));
  EXPECT_FALSE(waiting.TimeToLog(absl::Seconds(70)));
  EXPECT_TRUE(waiting.TimeToLog(absl::Seconds(71)));
  waiting.Note({0}, absl::Seconds(72));
  waiting.Note({1}, absl::Seconds(72));
  EXPECT_TRUE(waiting.TimeToLog(absl::Seconds(73)));
  EXPECT_FALSE(waiting.SayNothing());
  EXPECT_TRUE(waiting.Say("the data of w0"));
  EXPECT_FALSE(waiting.Say("the data of w0"));
  EXPECT_EQ(waiting.text(), "the data of w0");
  EXPECT_TRUE(waiting.SayNothing());
  EXPECT_EQ(waiting.text(), "");
}

TEST(LaneOwnersTest, LanesAreDealtInRuns) {
  EXPECT_THAT(DealLanes(8, {1, 1}), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(DealLanes(5, {1, 1, 1}), ElementsAre(0, 0, 1, 1, 2));  // floor(l * 3 / 5)
  EXPECT_THAT(DealLanes(2, {1, 1, 1}), ElementsAre(0, 1));           // more workers than lanes
  EXPECT_THAT(DealLanes(6, {2, 1}), ElementsAre(0, 0, 0, 0, 1, 1));  // one has two workers' devices
  EXPECT_THAT(DealLanes(3, {3}), ElementsAre(0, 0, 0));
}

TEST(LaneOwnersTest, OrphansGoToTheLeastLoadedAndNobodyElseMoves) {
  EXPECT_THAT(TakeOver({0, 0, 1, 1, 2, 2}, EqualCosts({0, 2})), ElementsAre(0, 0, 0, 2, 2, 2));
  EXPECT_THAT(TakeOver({0, 0, 1, 1}, EqualCosts({1})), ElementsAre(1, 1, 1, 1));
  EXPECT_THAT(TakeOver({0, 1, 1, 1, 2, 2}, EqualCosts({0, 1})), ElementsAre(0, 1, 1, 1, 0, 0));
  EXPECT_THAT(TakeOver({0, 1}, EqualCosts({0, 1})), ElementsAre(0, 1));
  EXPECT_THAT(TakeOver({0, 1, 2}, EqualCosts({0, 1})),
              ElementsAre(0, 1, 0));  // of equals the first
}

TEST(LaneOwnersTest, OrphansGoToWhoIsDoneFirst) {
  EXPECT_THAT(TakeOver({0, 1, 2, 2}, LaneCosts{{0, 5}, {1, 1}}), ElementsAre(0, 1, 1, 1));
  EXPECT_THAT(TakeOver({0, 1, 2, 2}, LaneCosts{{0, 1e6}, {1, 1e6}}), ElementsAre(0, 1, 0, 1));
}

TEST(LaneOwnersTest, EachHasTheLanesThatItsSpeedEarns) {
  const std::vector<int32_t> even = {0, 0, 0, 1, 1, 1, 2, 2};
  EXPECT_THAT(DealByCost(even, EqualCosts({0, 1, 2})), ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
  // 4 + 4 are done after 4, with one lane at w2 not before 10.
  EXPECT_THAT(DealByCost(even, {{0, 1}, {1, 1}, {2, 10}}), ElementsAre(0, 0, 0, 1, 1, 1, 0, 1));
  EXPECT_THAT(DealByCost(even, {{0, 1}, {1, 1}, {2, 3}}), ElementsAre(0, 0, 0, 1, 1, 1, 2, 0));
  // A joiner gets lanes from the ends of the ranks that have most. Lanes of a rank that is not asked stay.
  EXPECT_THAT(DealByCost({0, 0, 0, 0}, EqualCosts({0, 1})), ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(DealByCost({0, 0, 3, 0, 0}, EqualCosts({0, 1})), ElementsAre(0, 0, 3, 1, 1));
  EXPECT_DOUBLE_EQ(Makespan(even, {{0, 1}, {1, 1}, {2, 10}}), 20);
  EXPECT_DOUBLE_EQ(Makespan(even, {{0, 1}, {1, 2}}), 6);
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
  a.HoldSlot(1, "other-job");
  GangRequest request;
  request.devices_per_worker = 2;
  request.num_shards = 0;
  const auto gang = FindGang(nodes_, request);
  ASSERT_TRUE(gang.has_value());
  EXPECT_THAT(gang->workers[0].devices, ElementsAre(0, 2));

  a.HoldSlot(2, "other-job");
  EXPECT_FALSE(FindGang(nodes_, request).has_value());
  EXPECT_TRUE(CouldFit(nodes_, request));
  EXPECT_EQ(MissingText(nodes_, request),
            "needs 1 worker with 2 free devices, 0 of 1 are free (other-job has it)");
}

TEST_F(GangTest, NamedDevicesMustAllBeFree) {
  Node& a = Add(Worker("a", {"cpu", "cpu"}));
  GangRequest request;
  request.num_shards = 0;
  request.device_indices = {1};
  EXPECT_THAT(FindGang(nodes_, request)->workers[0].devices, ElementsAre(1));
  a.HoldSlot(1, "other-job");
  EXPECT_FALSE(FindGang(nodes_, request).has_value());
  request.device_indices = {2};  // there is no such card
  request.device = "gpu";
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
  Add(Store("s0")).AddJob("other-job");
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

// A node that was registered with `key` by `certificate`, and is connected or absent.
class ResumeTest : public ::testing::TestWithParam<bool> {
 protected:
  static node::v1::Register Reg(const std::string& key, int64_t last_incarnation,
                                const std::string& certificate = "") {
    node::v1::Register reg = Worker("w-1", {"cpu"});
    reg.set_resume_key(key);
    reg.set_last_incarnation(last_incarnation);
    reg.set_certificate(certificate);
    return reg;
  }
  void Known(const node::v1::Register& reg) {
    if (GetParam()) {
      nodes_.Admit(/*session=*/3, reg, {}, kIncarnation, absl::ZeroDuration(), absl::UnixEpoch());
    } else {
      nodes_.AddAbsent(reg, kIncarnation, absl::ZeroDuration(), absl::UnixEpoch());
    }
  }
  // A process that knows only the number is refused if the old one is connected, and else is another one.
  void ExpectAnother(const node::v1::Register& reg) {
    const auto judged = nodes_.Judge(reg);
    if (GetParam()) {
      EXPECT_EQ(judged.status().code(), absl::StatusCode::kAlreadyExists) << judged.status();
    } else {
      ASSERT_TRUE(judged.ok()) << judged.status();
      EXPECT_TRUE(judged->replaced_process);
      EXPECT_FALSE(judged->same_process);
    }
  }
  void ExpectSame(const node::v1::Register& reg) {
    const auto judged = nodes_.Judge(reg);
    ASSERT_TRUE(judged.ok()) << judged.status();
    EXPECT_TRUE(judged->same_process);
  }

  static constexpr int64_t kIncarnation = 7;
  NodeTable nodes_;
};

TEST_P(ResumeTest, TheKeyIsWhatAProcessIsKnownBy) {
  Known(Reg("k1", 0));
  ExpectSame(Reg("k1", kIncarnation));
  ExpectSame(Reg("k1", 0));  // the answer to its first registration was lost
  ExpectAnother(Reg("k2", kIncarnation));
  ExpectAnother(Reg("k", kIncarnation));
  ExpectAnother(Reg("k11", kIncarnation));
  ExpectAnother(Reg("", kIncarnation));
}

TEST_P(ResumeTest, AnOlderNodeIsKnownByItsNumberAsBefore) {
  Known(Reg("", 0));
  ExpectSame(Reg("", kIncarnation));
  ExpectAnother(Reg("", kIncarnation + 1));
  ExpectAnother(Reg("", 0));
  ExpectAnother(Reg("k1", kIncarnation));  // its successor
}

TEST_P(ResumeTest, ANameIsOfTheCertificateThatRegisteredItAndOfTheOneThatHasIt) {
  Known(Reg("k1", 0, "10.0.0.1"));
  ExpectSame(Reg("k1", 0, "10.0.0.1"));
  ExpectSame(Reg("k1", 0));  // no certificate was asked for: on a Unix socket
  ExpectAnother(Reg("k2", 0, "10.0.0.1"));
  const auto judged = nodes_.Judge(Reg("k2", 0, "10.0.0.2"));
  EXPECT_EQ(judged.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(judged.status().message()),
              HasSubstr("node w-1 is of certificate 10.0.0.1, not of 10.0.0.2"));
  EXPECT_EQ(nodes_.Judge(Reg("k1", 0, "10.0.0.2")).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_NE(nodes_.Judge(Reg("k2", 0, "w"), /*named=*/true).status().code(),
            absl::StatusCode::kPermissionDenied);
}

INSTANTIATE_TEST_SUITE_P(ConnectedOrAbsent, ResumeTest, ::testing::Bool());

TEST(RegisterTest, WhatIsMissingIsNamed) {
  EXPECT_TRUE(CheckRegister(Worker("a-1", {"cpu"})).ok());
  EXPECT_THAT(CheckRegister(Worker("A", {"cpu"})).message(), HasSubstr("register.name"));
  EXPECT_THAT(CheckRegister(Worker(std::string(64, 'a'), {"cpu"})).message(),
              HasSubstr("64 bytes"));
  EXPECT_THAT(CheckRegister(Worker("a", {})).message(), HasSubstr("register.devices"));
  node::v1::Register large = Worker("a", {"cpu"});
  large.set_version(std::string(128, 'v'));
  large.mutable_devices(0)->set_description(std::string(256, 'd'));
  EXPECT_TRUE(CheckRegister(large).ok());
  large.mutable_devices(0)->set_description(std::string(257, 'd'));
  EXPECT_THAT(CheckRegister(large).message(), HasSubstr("description of cpu has 257 bytes"));
  large.set_version(std::string(129, 'v'));
  EXPECT_THAT(CheckRegister(large).message(), HasSubstr("register.version: 129 bytes"));
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

TEST(GangPartTest, OfTasksThatWereLostLongAgoTheIndexIsLeft) {
  Members gang;
  for (int i = 0; i < kLostKept + 4; ++i) {
    Task& task = gang.tasks().emplace_back();
    task.index = i;
    task.node = "w";
    task.lost = task.gone = true;
  }
  gang.ForgetLostTasks();
  for (int i = 0; i < kLostKept + 4; ++i) {
    const Task& task = gang.tasks()[static_cast<size_t>(i)];
    EXPECT_EQ(task.index, i);
    EXPECT_EQ(task.forgotten, i < 4) << i;
    EXPECT_EQ(task.node.empty(), i < 4) << i;
  }
}

TEST(GangRequestTest, DevicesOfAWorkerAreTheGpusThatItAsksForOrThoseItNames) {
  job::v1::JobSpec spec;
  EXPECT_EQ(RequestOf(spec).devices_per_worker, 1);
  for (const int device : {0, 2, 3}) spec.mutable_resources()->add_devices(device);
  EXPECT_EQ(RequestOf(spec).devices_per_worker, 3);
  spec.mutable_resources()->set_gpus_per_worker(2);
  EXPECT_EQ(RequestOf(spec).devices_per_worker, 2);
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

SessionId Of(World& world, const std::string& name, common::v1::Role role, const char* version) {
  return world.Connect(name, role, 0, 1, version);
}

TEST(VersionsTest, AGangIsOfOneVersionAndWhyItWaitsIsSaid) {
  World world;
  Of(world, "w0", common::v1::ROLE_WORKER, "0.1.0");
  Of(world, "s0", common::v1::ROLE_PARAM_STORE, "0.2.0");
  const std::string id = world.Submit(World::Spec(1, 1));
  EXPECT_EQ(world.Job(id).state(), common::v1::JOB_STATE_PENDING);
  EXPECT_EQ(world.Job(id).message(),
            "its workers and param_stores must have one version: worker w0 is of 0.1.0, "
            "param_store s0 is of 0.2.0");
  // It holds no other job up, and without shards a version does not matter.
  const std::string local = world.Submit(World::Spec(1, 0));
  EXPECT_EQ(world.Job(local).state(), common::v1::JOB_STATE_STARTING);
  Of(world, "w1", common::v1::ROLE_WORKER, "0.2.0");
  ASSERT_EQ(world.Job(id).state(), common::v1::JOB_STATE_STARTING);
  EXPECT_EQ(world.core_.Peek(id)->tasks()[0].node, "w1");
}

TEST(VersionsTest, OfSeveralTheNewestIsTaken) {
  World world;
  for (const char* version : {"0.9.1", "0.10.0", "0.2.0"}) {
    const std::string digit(1, version[2]);
    Of(world, "w" + digit, common::v1::ROLE_WORKER, version);
    Of(world, "s" + digit, common::v1::ROLE_PARAM_STORE, version);
  }
  const std::string id = world.Submit(World::Spec(1, 1));
  EXPECT_EQ(world.core_.Peek(id)->tasks()[0].node, "w1");
  EXPECT_EQ(world.core_.Peek(id)->shards()[0].node, "s1");
  // An elastic job takes the version that has most workers.
  Of(world, "x9", common::v1::ROLE_WORKER, "0.9.1");
  job::v1::JobSpec spec = World::Spec(2, 1);
  spec.mutable_resources()->set_min_workers(1);
  EXPECT_EQ(world.core_.Peek(world.Submit(spec))->shards()[0].node, "s9");
}

TEST(VersionsTest, WhatIsNewerIsDecidedByItsNumbers) {
  const std::vector<std::pair<const char*, const char*>> pairs = {{"0.2.0", "0.3.0"},
                                                                  {"0.9.0", "0.10.0"},
                                                                  {"0.2.0", "0.2.0.1"},
                                                                  {"", "0.1.0"},
                                                                  {"dev", "0.1.0"}};
  for (const auto& [older, newer] : pairs) {
    World world;
    for (const bool is_new : {false, true}) {
      const char* const version = is_new ? newer : older;
      Of(world, is_new ? "w-new" : "w-old", common::v1::ROLE_WORKER, version);
      Of(world, is_new ? "s-new" : "s-old", common::v1::ROLE_PARAM_STORE, version);
    }
    const std::string id = world.Submit(World::Spec(1, 1));
    ASSERT_EQ(world.Job(id).shards_size(), 1);
    EXPECT_EQ(world.Job(id).shards(0).node(), "s-new") << older << " and " << newer;
  }
}

}  // namespace
}  // namespace capstan::coordinator::core
