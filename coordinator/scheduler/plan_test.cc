// Snapshots made by hand, and what is decided about them.
#include "coordinator/scheduler/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace capstan::coordinator::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::SizeIs;

constexpr Device kCpu{.cpu = true, .uuid = "", .holder = ""};

Device Card(absl::string_view uuid, absl::string_view holder = "") {
  return {.cpu = false, .uuid = uuid, .holder = holder};
}

Node Worker(absl::string_view name, std::vector<Device> devices = {kCpu}) {
  Node node;
  node.name = node.host = name;
  node.worker = node.takes_work = true;
  node.devices = std::move(devices);
  return node;
}

Node Store(absl::string_view name, size_t jobs = 0) {
  Node node;
  node.name = node.host = name;
  node.takes_work = true;
  node.jobs = jobs;
  return node;
}

Node OfVersion(absl::string_view version, Node node) {
  node.version = version;
  return node;
}

PendingJob Job(const std::string& id, int workers, int shards = 0) {
  PendingJob job;
  job.id = id;
  job.request.num_workers = workers;
  job.request.num_shards = shards;
  return job;
}

// "start a: w0 0,1 s0", "reserve a", "explain a: needs 2 workers", "never a: needs 2 workers".
std::vector<std::string> TextsOf(const Planned& planned) {
  std::vector<std::string> texts;
  for (const Decision& decision : planned.decisions) {
    if (const auto* start = std::get_if<Start>(&decision)) {
      std::string text = absl::StrCat("start ", start->job, ":");
      for (const Gang::Worker& worker : start->gang.workers) {
        absl::StrAppend(&text, " ", worker.node, " ", absl::StrJoin(worker.devices, ","));
      }
      for (const std::string& shard : start->gang.shards) absl::StrAppend(&text, " ", shard);
      texts.push_back(text);
    } else if (const auto* reserve = std::get_if<Reserve>(&decision)) {
      texts.push_back(absl::StrCat("reserve ", reserve->job));
    } else {
      const auto& explain = std::get<Explain>(decision);
      texts.push_back(
          absl::StrCat(explain.for_ever ? "never " : "explain ", explain.job, ": ", explain.text));
    }
  }
  return texts;
}

TEST(PlanTest, JobsStartInTheirOrderAndEachStartTakesItsDevices) {
  Snapshot snapshot;
  snapshot.nodes = {Store("s0"), Store("s1", 1), Worker("w0"), Worker("w1")};
  snapshot.pending = {Job("a", 1, 1), Job("b", 1, 1), Job("c", 1)};
  EXPECT_THAT(TextsOf(Plan(snapshot, absl::ZeroDuration())),
              ElementsAre("start a: w0 0 s0", "start b: w1 0 s0", "reserve c",
                          "explain c: needs 1 worker with 1 free device, 0 of 2 are free (a, b "
                          "have them)"));
}

// By the number of their jobs, those that this plan starts included.
TEST(PlanTest, ShardsGoToTheStoresWithFewestJobs) {
  Snapshot snapshot;
  snapshot.nodes = {Store("s0"), Store("s1"), Worker("w0"), Worker("w1"), Worker("w2")};
  snapshot.pending = {Job("a", 1, 1), Job("b", 1, 1), Job("c", 1, 2)};
  EXPECT_THAT(TextsOf(Plan(snapshot, absl::ZeroDuration())),
              ElementsAre("start a: w0 0 s0", "start b: w1 0 s1", "start c: w2 0 s0 s1"));
}

TEST(PlanTest, AJobThatTheClusterCouldCarryReservesItForThoseBehindIt) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0"), Worker("w1")};
  snapshot.nodes[0].devices[0].holder = "old";
  snapshot.pending = {Job("large", 2), Job("small", 1)};
  const Planned planned = Plan(snapshot, absl::ZeroDuration());
  EXPECT_THAT(TextsOf(planned),
              ElementsAre("reserve large",
                          "explain large: needs 2 workers with 1 free device each, 1 of 2 is free "
                          "(old has it)",
                          "explain small: behind job large (place 2 in the queue)"));
  EXPECT_EQ(planned.queue.reserved_by, "large");
}

TEST(PlanTest, AJobThatTheClusterCouldNotCarryIsPassed) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0"), Worker("w1")};
  snapshot.pending = {Job("huge", 3), Job("small", 1), Job("huge-too", 3)};
  const Planned planned = Plan(snapshot, absl::ZeroDuration());
  EXPECT_THAT(
      TextsOf(planned),
      ElementsAre("explain huge: needs 3 workers with 1 free device each, 2 are there",
                  "start small: w0 0",
                  "explain huge-too: needs 3 workers with 1 free device each, 1 of 2 is free "
                  "(small has it) (place 2 in the queue)"));
  EXPECT_EQ(planned.queue.reserved_by, "");
}

TEST(PlanTest, WhereNobodyElseComesAnImpossibleJobIsToldSo) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0")};
  snapshot.pending = {Job("huge", 2), Job("small", 1)};
  snapshot.nobody_else_comes = true;
  EXPECT_THAT(TextsOf(Plan(snapshot, absl::ZeroDuration())),
              ElementsAre("never huge: needs 2 workers with 1 free device each, 1 is there, and "
                          "no other service will come",
                          "start small: w0 0"));
  // The node that it leaves out may be good again later.
  snapshot.pending = {Job("a", 1)};
  snapshot.pending[0].request.exclude = {"w0"};
  EXPECT_THAT(TextsOf(Plan(snapshot, absl::ZeroDuration())),
              ElementsAre("explain a: needs 1 worker with 1 free device, 0 are there"));
}

TEST(PlanTest, AJobThatBacksOffHoldsUpNobody) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0")};
  snapshot.pending = {Job("a", 1), Job("b", 1), Job("c", 1)};
  snapshot.pending[0].not_before = absl::Seconds(30);
  snapshot.pending[1].not_before = absl::Seconds(20);
  const Planned early = Plan(snapshot, absl::Seconds(10));
  EXPECT_THAT(TextsOf(early), ElementsAre("start c: w0 0"));
  EXPECT_EQ(early.queue.next_retry, absl::Seconds(20));
  const Planned later = Plan(snapshot, absl::Seconds(20));
  EXPECT_THAT(later.decisions, SizeIs(3));
  EXPECT_EQ(TextsOf(later)[0], "start b: w0 0");
  EXPECT_EQ(later.queue.next_retry, absl::Seconds(30));
}

// Nodes are needed only for a request that the pass has not met.
TEST(PlanTest, ALaterJobContinuesThePass) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0")};
  snapshot.pending = {Job("huge", 2)};
  Planned planned = Plan(snapshot, absl::ZeroDuration());
  Snapshot next;
  next.pending = {Job("huge-too", 2)};
  EXPECT_TRUE(planned.queue.Knows(next.pending[0].request));
  EXPECT_FALSE(planned.queue.Knows(Job("", 1).request));
  next.queue = std::move(planned.queue);
  planned = Plan(next, absl::ZeroDuration());
  EXPECT_THAT(TextsOf(planned),
              ElementsAre("explain huge-too: needs 2 workers with 1 free device each, 1 is there "
                          "(place 2 in the queue)"));

  snapshot.nodes[0].devices[0].holder = "old";
  snapshot.pending = {Job("a", 1)};
  snapshot.queue = std::move(planned.queue);
  planned = Plan(snapshot, absl::ZeroDuration());
  EXPECT_EQ(planned.queue.reserved_by, "a");
  next.pending = {Job("b", 5)};
  EXPECT_TRUE(planned.queue.Knows(next.pending[0].request));
  next.queue = std::move(planned.queue);
  EXPECT_THAT(TextsOf(Plan(next, absl::ZeroDuration())),
              ElementsAre("explain b: behind job a (place 4 in the queue)"));
}

TEST(PlanTest, FarBehindNobodyCountsPlaces) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0")};
  for (size_t i = 0; i <= kMaxQueueTexts; ++i) {
    snapshot.pending.push_back(Job(absl::StrCat("huge-", i), 2));
  }
  const std::vector<std::string> texts = TextsOf(Plan(snapshot, absl::ZeroDuration()));
  ASSERT_THAT(texts, SizeIs(kMaxQueueTexts + 1));
  EXPECT_EQ(texts[kMaxQueueTexts - 1],
            "explain huge-99: needs 2 workers with 1 free device each, 1 is there (place 100 in "
            "the queue)");
  EXPECT_EQ(texts[kMaxQueueTexts],
            "explain huge-100: more than 100 jobs are before it in the queue");
}

TEST(PlanTest, ACardIsGivenOnceHoweverManyWorkersOfItsHostOfferIt) {
  Snapshot snapshot;
  snapshot.nodes = {Worker("w0", {Card("A"), Card("B")}), Worker("w1", {Card("A"), Card("B")})};
  for (Node& node : snapshot.nodes) node.host = "box";
  snapshot.pending = {Job("a", 1), Job("b", 1), Job("c", 1)};
  for (PendingJob& job : snapshot.pending) job.request.device = "gpu";
  const Planned planned = Plan(snapshot, absl::ZeroDuration());
  EXPECT_THAT(TextsOf(planned),
              ElementsAre("start a: w0 0", "start b: w0 1", "reserve c",
                          "explain c: needs 1 worker with 1 free gpu device, 0 of 2 are free (a, b "
                          "have them)"));
}

TEST(FreeWorkersTest, AsManyAsAreFreeOfTheNodesThatCount) {
  Nodes nodes = {Worker("w0"), Worker("w1"), Worker("w2"), Worker("w3"), Worker("w4")};
  nodes[0].devices[0].holder = "other";
  nodes[1].takes_work = false;
  GangRequest request = Job("", 3).request;
  request.exclude = {"w2"};
  const std::vector<Gang::Worker> workers = FreeWorkers(nodes, request);
  ASSERT_THAT(workers, SizeIs(2));
  EXPECT_EQ(workers[0].node, "w3");
  EXPECT_EQ(workers[1].node, "w4");
}

// Shards 0 and 1 of a job; 1 needs another home.
HomesRequest TwoShards() {
  HomesRequest request;
  request.shards = {{0, "s0", false}, {1, "s1", true}};
  request.version = "";
  return request;
}

TEST(FindHomesTest, TheNodeOfTheSameNameComesFirst) {
  const Nodes nodes = {Store("s0"), Store("s1", 5), Store("s2")};
  EXPECT_THAT(*FindHomes(nodes, TwoShards()), ElementsAre(Pair(1, "s1")));
}

TEST(FindHomesTest, ElseTheFreeStoreWithFewestJobs) {
  Nodes nodes = {Store("s0"), Store("s1"), Store("s2", 2), Store("s3", 1), Worker("w0")};
  nodes[1].takes_work = false;
  EXPECT_THAT(*FindHomes(nodes, TwoShards()), ElementsAre(Pair(1, "s3")));
  HomesRequest request = TwoShards();
  request.exclude = {"s3"};
  EXPECT_THAT(*FindHomes(nodes, request), ElementsAre(Pair(1, "s2")));
  request.exclude = {"s2", "s3"};
  EXPECT_FALSE(FindHomes(nodes, request).has_value());
}

TEST(FindHomesTest, OneHomeForEachShard) {
  HomesRequest request = TwoShards();
  request.shards[0].needs = true;
  EXPECT_THAT(*FindHomes({Store("s1"), Store("s2"), Store("s3")}, request),
              ElementsAre(Pair(0, "s2"), Pair(1, "s1")));
  EXPECT_FALSE(FindHomes({Store("s1")}, request).has_value());
  request.shards.clear();
  EXPECT_THAT(*FindHomes({}, request), IsEmpty());
}

TEST(FindHomesTest, HomesAreOfOneVersionThatAWorkerHas) {
  Nodes nodes = {OfVersion("0.9.1", Store("s2")), OfVersion("0.10.0", Store("s3")),
                 OfVersion("0.9.1", Worker("w0"))};
  HomesRequest request = TwoShards();
  request.version = "0.10.0";
  EXPECT_THAT(*FindHomes(nodes, request), ElementsAre(Pair(1, "s3")));
  request.version = "0.8.0";
  EXPECT_FALSE(FindHomes(nodes, request).has_value());
  request.version.reset();
  EXPECT_THAT(*FindHomes(nodes, request), ElementsAre(Pair(1, "s2")));
  nodes.push_back(OfVersion("0.10.0", Worker("w1")));
  EXPECT_THAT(*FindHomes(nodes, request), ElementsAre(Pair(1, "s3")));
}

}  // namespace
}  // namespace capstan::coordinator::scheduler
