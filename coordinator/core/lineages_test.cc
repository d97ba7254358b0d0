// Lineages, and what brings a job into another one: recovery, restarts, vacancies, its clock.
#include "coordinator/core/lineages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/core/recovery.h"
#include "coordinator/core/restarts.h"
#include "coordinator/core/run_clock.h"
#include "coordinator/core/vacancies.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Task> ThreeTasks() {
  std::vector<Task> tasks(3);
  for (int i = 0; i < 3; ++i) {
    tasks[static_cast<size_t>(i)].index = i;
    tasks[static_cast<size_t>(i)].node = std::string(1, static_cast<char>('a' + i));
    tasks[static_cast<size_t>(i)].probed = true;
  }
  return tasks;
}

std::vector<std::string> WorkersOf(const common::v1::View& view) {
  std::vector<std::string> nodes;
  for (const common::v1::WorkerRef& worker : view.workers()) nodes.push_back(worker.node());
  return nodes;
}

TEST(LineagesTest, AViewListsTheTasksThatAreThereAndHaveTheirData) {
  Lineages lineages;
  EXPECT_FALSE(lineages.begun());
  EXPECT_EQ(lineages.OwnerOfLaneZero(), -1);
  std::vector<Task> tasks = ThreeTasks();
  tasks[0].lost = true;
  tasks[2].probed = false;
  common::v1::View view = lineages.NextLineage({1, 1}, tasks);
  EXPECT_EQ(view.lineage(), 1);
  EXPECT_EQ(view.generation(), 1);
  EXPECT_THAT(WorkersOf(view), ElementsAre("b"));
  lineages.Begin(std::move(view), "", 0);
  EXPECT_TRUE(lineages.begun());
  EXPECT_TRUE(lineages.Lists(tasks[1]));
  EXPECT_FALSE(lineages.Lists(tasks[2]));
  EXPECT_EQ(lineages.OwnerOfLaneZero(), 1);

  tasks[2].probed = true;
  lineages.BeginGeneration({1, 2}, tasks);
  EXPECT_EQ(lineages.lineage(), 1);
  EXPECT_EQ(lineages.generation(), 2);
  EXPECT_THAT(WorkersOf(lineages.view()), ElementsAre("b", "c"));
  EXPECT_THAT(lineages.Owners(), ElementsAre(1, 2));
  // A lineage is above all generations of those before it.
  EXPECT_EQ(lineages.NextLineage({1}, tasks).lineage(), 3);
}

TEST(LineagesTest, TheNextLineageIsAboveAnyThatSomebodyKnows) {
  Lineages lineages;
  lineages.Begin(lineages.NextLineage({0}, ThreeTasks()), "", 0);
  EXPECT_EQ(lineages.Judge(1), Lineages::Claim::kKnown);
  EXPECT_EQ(lineages.Judge(5), Lineages::Claim::kNew);
  EXPECT_EQ(lineages.Judge(5), Lineages::Claim::kKnown);
  EXPECT_EQ(lineages.HighestKnown(), 5);
  EXPECT_EQ(lineages.Judge(5 + kMostLineagesAhead + 1), Lineages::Claim::kAbsurd);
  EXPECT_EQ(lineages.Judge(5 + kMostLineagesAhead + 1), Lineages::Claim::kAbsurdAgain);
  EXPECT_EQ(lineages.Judge(5 + kMostLineagesAhead), Lineages::Claim::kNew);
  EXPECT_EQ(lineages.NextLineage({0}, ThreeTasks()).lineage(), 6 + kMostLineagesAhead);
}

TEST(RecoveryPartTest, TheFirstLossOfManySaysWhenLanesGetOtherOwners) {
  Recovery recovery;
  EXPECT_EQ(recovery.takeover_at(), absl::InfiniteDuration());
  recovery.TakeOverBy(absl::Seconds(5));
  recovery.TakeOverBy(absl::Seconds(6));
  EXPECT_EQ(recovery.takeover_at(), absl::Seconds(5));
  recovery.TakeOverAt(absl::Seconds(7));
  EXPECT_EQ(recovery.takeover_at(), absl::Seconds(7));
  recovery.NoTakeover();
  EXPECT_EQ(recovery.takeover_at(), absl::InfiniteDuration());
}

TEST(RecoveryPartTest, ANewLineageWaitsForItsBackOffAndABegunOneForNothing) {
  Recovery recovery;
  EXPECT_FALSE(recovery.wanted());
  recovery.Want(Recovery::Cause::kShardsLost, absl::Seconds(5));
  recovery.TakeOverBy(absl::Seconds(3));
  EXPECT_TRUE(recovery.Waits(absl::Seconds(4.9)));
  EXPECT_FALSE(recovery.Waits(absl::Seconds(5)));
  EXPECT_EQ(recovery.BacksOffUntil(), absl::Seconds(5));
  recovery.Clear();
  EXPECT_FALSE(recovery.wanted());
  EXPECT_FALSE(recovery.Waits(absl::ZeroDuration()));
  EXPECT_EQ(recovery.takeover_at(), absl::InfiniteDuration());
  recovery.RetryAfter(absl::Seconds(2), absl::Seconds(10), absl::FromUnixSeconds(100));
  EXPECT_EQ(recovery.BacksOffUntil(), absl::Seconds(12));
  EXPECT_EQ(recovery.retry_wall(), absl::FromUnixSeconds(102));
  recovery.RetryAtOnce();
  EXPECT_LT(recovery.retry_at(), absl::ZeroDuration());
}

TEST(RestartsTest, TheBackOffDoublesUpToItsLimit) {
  job::v1::Recovery spec;
  EXPECT_EQ(BackoffOf(spec, 0), absl::Seconds(1));
  EXPECT_EQ(BackoffOf(spec, 3), absl::Seconds(8));
  EXPECT_EQ(BackoffOf(spec, 1000), absl::Seconds(300));
  spec.set_backoff_initial_seconds(10);
  spec.set_backoff_max_seconds(5);  // never below the first one
  EXPECT_EQ(BackoffOf(spec, 4), absl::Seconds(10));
}

TEST(RestartsTest, AListReplacesTheReasonsThatAreNeverRetried) {
  job::v1::Recovery spec;
  EXPECT_TRUE(NeverRetried(spec, "NonFiniteLoss"));
  EXPECT_FALSE(NeverRetried(spec, "WorkerLost"));
  spec.add_never_retry_on("WorkerLost");
  EXPECT_FALSE(NeverRetried(spec, "NonFiniteLoss"));
  EXPECT_TRUE(NeverRetried(spec, "WorkerLost"));
}

TEST(RestartsTest, ALimitThatAPersonSetStandsForThatOfTheSpec) {
  Restarts restarts;
  job::v1::Recovery spec;
  EXPECT_EQ(restarts.LimitOf(spec), 3);
  spec.set_max_restarts(7);
  EXPECT_EQ(restarts.LimitOf(spec), 7);
  restarts.SetLimit(0);
  EXPECT_EQ(restarts.LimitOf(spec), 0);
}

TEST(RestartsTest, TheyAreForgivenAfterATimeBeyondTheStepOfTheLast) {
  Restarts restarts;
  const absl::Duration after = absl::Seconds(10);
  restarts.Count("ShardLost", 40);
  restarts.Count("WorkerLost", 30);
  EXPECT_EQ(restarts.count(), 2);
  EXPECT_EQ(restarts.reason(), "WorkerLost");
  EXPECT_EQ(restarts.step(), 40);
  EXPECT_FALSE(restarts.Forgivable(true, 40, absl::Seconds(0), after));  // not beyond it
  EXPECT_FALSE(restarts.Forgivable(true, 41, absl::Seconds(5), after));
  EXPECT_FALSE(restarts.Forgivable(true, 50, absl::Seconds(14.9), after));
  EXPECT_TRUE(restarts.Forgivable(true, 50, absl::Seconds(15), after));
  EXPECT_FALSE(restarts.Forgivable(false, 50, absl::Seconds(16), after));  // the time begins again
  EXPECT_FALSE(restarts.Forgivable(true, 50, absl::Seconds(17), after));
  restarts.Clear();
  EXPECT_FALSE(restarts.Forgivable(true, 90, absl::Seconds(100), after));  // there is none
}

TEST(RunClockTest, ItCountsTheTimeWithAGangAndNoOther) {
  RunClock clock;
  clock.Run(absl::Seconds(100));
  clock.Run(absl::Seconds(150));  // it runs already
  EXPECT_EQ(clock.Ran(absl::Seconds(160)), absl::Seconds(60));
  clock.Pause(absl::Seconds(160));
  EXPECT_EQ(clock.Ran(absl::Seconds(900)), absl::Seconds(60));
  clock.Run(absl::Seconds(1000));
  EXPECT_EQ(clock.Ran(absl::Seconds(1001)), absl::Seconds(61));
  EXPECT_EQ(clock.UnsavedFor(absl::Seconds(1)), absl::InfiniteDuration());
  clock.NoteSaved(absl::Seconds(1001));
  EXPECT_EQ(clock.UnsavedFor(absl::Seconds(1003)), absl::Seconds(2));
}

TEST(VacanciesTest, ANodeWhoseTasksFailAgainAndAgainWaitsLonger) {
  Vacancies vacancies;
  const absl::Duration delay = absl::Seconds(1), forgiven = absl::Seconds(30);
  const auto fail = [&](absl::Duration worked, absl::Duration now) {
    vacancies.NoteFailure("a", worked, delay, forgiven, now);
  };
  fail(absl::Seconds(1), absl::Seconds(10));
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(10.9)), ElementsAre("a"));
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(11)), IsEmpty());
  fail(absl::Seconds(1), absl::Seconds(20));
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(21.9)), ElementsAre("a"));
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(22)), IsEmpty());
  fail(absl::Seconds(30), absl::Seconds(60));  // it has worked long enough: as for the first time
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(61)), IsEmpty());
  vacancies.NoteRefusal("b", delay, absl::Seconds(60));
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(315.9)), ElementsAre("b"));
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(316)), IsEmpty());
  vacancies.NoteRefusal("b", delay, absl::Seconds(400));
  vacancies.ForgetFailures();
  EXPECT_THAT(vacancies.Excluded(absl::Seconds(401)), IsEmpty());
}

TEST(VacanciesTest, WhatWasTriedInVainIsTriedAgainOnceSomethingIsFree) {
  Vacancies vacancies;
  scheduler::GangRequest request;
  request.num_workers = 2;
  EXPECT_FALSE(vacancies.WasInVain(request, 7));
  vacancies.NoteTried(request, 7);
  EXPECT_TRUE(vacancies.WasInVain(request, 7));
  EXPECT_FALSE(vacancies.WasInVain(request, 8));
  scheduler::GangRequest other = request;
  other.num_workers = 1;
  EXPECT_FALSE(vacancies.WasInVain(other, 7));
  vacancies.NoteFound();
  EXPECT_FALSE(vacancies.WasInVain(request, 7));
}

}  // namespace
}  // namespace capstan::coordinator::core
