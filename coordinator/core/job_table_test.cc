// The parts of a job that say where it stands, and the table of all jobs.
#include "coordinator/core/job_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/core/history.h"
#include "coordinator/core/lane_paces.h"
#include "coordinator/core/resolution.h"
#include "coordinator/core/standing.h"

namespace capstan::coordinator::core {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(StandingTest, AJobRestsBeforeItStartsWhileItIsSuspendedAndAfterItsEnd) {
  Standing standing;
  EXPECT_TRUE(standing.resting());
  EXPECT_FALSE(standing.ended());
  standing.Set(common::v1::JOB_STATE_RECOVERING, "WorkerLost", "w1 is lost");
  EXPECT_FALSE(standing.resting());
  EXPECT_EQ(standing.reason(), "WorkerLost");
  standing.Set(common::v1::JOB_STATE_SUSPENDED, "", "");
  EXPECT_TRUE(standing.resting());
  EXPECT_FALSE(standing.ended());
  standing.Set(common::v1::JOB_STATE_CANCELLED, "", "");
  EXPECT_TRUE(standing.resting());
  EXPECT_TRUE(standing.ended());
}

TEST(StandingTest, WhatWasSaidAlreadyIsNoNews) {
  Standing standing;
  EXPECT_TRUE(standing.Say("WaitingForSlots", "needs 2 workers"));
  EXPECT_FALSE(standing.Say("WaitingForSlots", "needs 2 workers"));
  EXPECT_TRUE(standing.Say("WaitingForSlots", "needs 1 worker"));
  EXPECT_EQ(standing.state(), common::v1::JOB_STATE_PENDING);
}

TEST(StandingTest, AnotherTryForgetsTheEndAndTheCancelAndKeepsTheFirstStart) {
  Standing standing;
  EXPECT_FALSE(standing.started());
  standing.NoteStarted(absl::FromUnixSeconds(10));
  standing.NoteStarted(absl::FromUnixSeconds(20));
  EXPECT_EQ(standing.started_at(), absl::FromUnixSeconds(10));
  standing.AskCancel(absl::Seconds(5));
  EXPECT_EQ(standing.CancelledFor(absl::Seconds(7)), absl::Seconds(2));
  standing.NoteEnded(absl::FromUnixSeconds(30), absl::Seconds(9));
  EXPECT_EQ(standing.ended_at(), absl::Seconds(9));
  standing.Reopen();
  EXPECT_FALSE(standing.cancel_asked());
  EXPECT_EQ(standing.finished_at(), absl::InfinitePast());
  EXPECT_EQ(standing.started_at(), absl::FromUnixSeconds(10));
}

TEST(LanePacesTest, EachMoveForUnevenPacesAsksForMorePatience) {
  LanePaces paces;
  const absl::Duration now = absl::Minutes(10);
  EXPECT_FALSE(paces.Moves(true, false, now));
  EXPECT_TRUE(paces.Moves(true, false, now));
  paces.NoteMoved();
  EXPECT_FALSE(paces.Moves(true, false, now));
  EXPECT_FALSE(paces.Moves(true, false, now));
  EXPECT_FALSE(paces.Moves(false, false, now));  // in a row
  EXPECT_FALSE(paces.Moves(true, false, now));
  EXPECT_FALSE(paces.Moves(true, false, now));
  EXPECT_TRUE(paces.Moves(true, false, now));
  paces.NoteMoved();
  EXPECT_TRUE(paces.Moves(false, true, now));  // after a trial, in any case
  // After five minutes without a move the patience is short again.
  EXPECT_FALSE(paces.Moves(true, false, now + absl::Minutes(5)));
  EXPECT_TRUE(paces.Moves(true, false, now + absl::Minutes(5)));
}

TEST(LanePacesTest, AnotherGenerationIsWeighedAnew) {
  LanePaces paces;
  EXPECT_TRUE(paces.IsNew(1));
  paces.NoteWeighed(1, absl::Seconds(10));
  EXPECT_FALSE(paces.IsNew(1));
  EXPECT_FALSE(paces.Due(absl::Seconds(10.9), absl::Seconds(1)));
  EXPECT_TRUE(paces.Due(absl::Seconds(11), absl::Seconds(1)));
  EXPECT_FALSE(paces.Moves(true, false, absl::Hours(1)));
  paces.NoteWeighed(2, absl::Seconds(12));
  EXPECT_FALSE(paces.Moves(true, false, absl::Hours(1)));  // the first of this one
}

node::v1::LeadState LeadAt(int64_t step) {
  node::v1::LeadState lead;
  lead.set_step(step);
  lead.set_samples_used(16 * step);
  lead.set_samples_per_second(32);
  return lead;
}

job::v1::ResolvedSpec TenSteps() {
  job::v1::ResolvedSpec spec;
  spec.set_total_steps(10);
  spec.set_steps_per_epoch(4);
  spec.set_global_batch(16);
  return spec;
}

TEST(HistoryTest, ProgressIsThatOfTheLeadsNewestStep) {
  History history(100);
  history.SetLead(LeadAt(6));
  history.TakeProgress(TenSteps());
  EXPECT_EQ(history.progress().step(), 6);
  EXPECT_EQ(history.progress().total_steps(), 10);
  EXPECT_EQ(history.progress().epoch(), 2);
  EXPECT_EQ(history.progress().eta_seconds(), 2);  // 4 steps x 16 samples at 32 a second
  EXPECT_EQ(history.samples_used(), 96);
  history.ForgetEta();
  EXPECT_EQ(history.progress().eta_seconds(), 0);
  history.SetLead(LeadAt(10));
  history.TakeProgress(TenSteps());
  EXPECT_EQ(history.progress().epoch(), 3);  // the last one, which is cut short
}

common::v1::EpochRecord Epoch(int32_t number, double accuracy) {
  common::v1::EpochRecord epoch;
  epoch.set_epoch(number);
  epoch.set_validation_accuracy(accuracy);
  return epoch;
}

TEST(HistoryTest, AnEpochIsAddedOnceAndANewLineageDropsThoseBehindItsBase) {
  History history(100);
  node::v1::LeadState lead = LeadAt(8);
  *lead.add_epochs() = Epoch(0, 0);  // there is none
  *lead.add_epochs() = Epoch(1, 0.5);
  *lead.add_epochs() = Epoch(2, 0.75);
  EXPECT_THAT(history.AddEpochs(lead), SizeIs(2));
  EXPECT_THAT(history.AddEpochs(lead), IsEmpty());
  history.SetLead(lead);
  EXPECT_EQ(history.lead().epochs_size(), 0);
  EXPECT_EQ(history.MetricOf(4, TenSteps()), 0.5);
  EXPECT_EQ(history.MetricOf(8, TenSteps()), 0.75);
  EXPECT_EQ(history.MetricOf(5, TenSteps()), std::nullopt);   // within an epoch
  EXPECT_EQ(history.MetricOf(10, TenSteps()), std::nullopt);  // not evaluated yet

  history.BeginLineage(/*base_step=*/6, /*samples_used=*/96, /*steps_per_epoch=*/4);
  EXPECT_THAT(history.epochs(), SizeIs(1));
  EXPECT_EQ(history.progress().step(), 6);
  EXPECT_EQ(history.samples_used(), 96);
  EXPECT_EQ(history.lead().step(), 0);
  *lead.add_epochs() = Epoch(3, 0.875);
  EXPECT_THAT(history.AddEpochs(lead), SizeIs(2));  // the second one again
  EXPECT_EQ(history.MetricOf(10, TenSteps()), 0.875);
}

TEST(HistoryTest, APointHasWhatTheTasksSpentSinceTheLastOne) {
  History history(100);
  std::vector<Task> tasks(2);
  for (Task& task : tasks) {
    task.state.mutable_phases()->set_steps(2);
    task.state.mutable_phases()->set_total(4);
    task.state.mutable_phases()->set_forward(1);
    task.state.mutable_phases()->set_backward(2);
  }
  history.SetLead(LeadAt(2));
  history.AddPoint(tasks, absl::FromUnixSeconds(1));
  tasks[0].state.mutable_phases()->set_steps(4);
  tasks[0].state.mutable_phases()->set_total(12);
  history.SetLead(LeadAt(4));
  history.AddPoint(tasks, absl::FromUnixSeconds(2));
  const auto& points = history.metrics().points();
  ASSERT_THAT(points, SizeIs(2));
  EXPECT_EQ(points[0].breakdown().steps(), 4);
  EXPECT_EQ(points[0].breakdown().total(), 2);
  EXPECT_EQ(points[0].breakdown().forward_backward(), 1.5);
  EXPECT_EQ(points[1].breakdown().steps(), 2);  // the other task has done no step
  EXPECT_EQ(points[1].breakdown().total(), 4);
}

TEST(ResolutionTest, TheDigestIsThatOfTheBytes) {
  Resolution resolution;
  EXPECT_FALSE(resolution.spec().has_value());
  EXPECT_TRUE(resolution.Load("", ""));
  EXPECT_FALSE(resolution.spec().has_value());
  resolution.Set(TenSteps());
  EXPECT_THAT(resolution.digest(), SizeIs(32));
  const std::string digest = resolution.digest();
  Resolution other;
  EXPECT_TRUE(other.Load(resolution.bytes(), digest));
  EXPECT_EQ(other.spec()->total_steps(), 10);
  other.Set(*resolution.spec());
  EXPECT_EQ(other.digest(), digest);
  EXPECT_FALSE(other.Load("\xff", digest));
}

node::v1::Register NamedRegister(const std::string& name) {
  node::v1::Register reg;
  reg.set_name(name);
  return reg;
}

TEST(GangPartTest, AMemberTakesItsPlaceOnItsNodeAndIsFoundByItsIncarnation) {
  Node worker, store, spare;
  worker.Start(5, 4);
  worker.SetRegister(NamedRegister("w0"));
  store.Start(6, 0);
  store.SetRegister(NamedRegister("s0"));
  spare.Start(7, 0);
  spare.SetRegister(NamedRegister("s1"));
  Members gang;
  const Task& task = gang.AddTask(worker, {1, 3}, "j");
  EXPECT_EQ(task.index, 0);
  EXPECT_THAT(worker.slots(), ElementsAre("", "j", "", "j"));
  gang.AddShard(store, "j");
  EXPECT_THAT(store.jobs(), ElementsAre("j"));
  EXPECT_EQ(gang.FindTask(0, "w0", 5), &gang.tasks()[0]);
  EXPECT_EQ(gang.FindTask(0, "w0", 4), nullptr);
  EXPECT_EQ(gang.FindTask(1, "w0", 5), nullptr);
  EXPECT_EQ(gang.FindTask(-1, "w0", 5), nullptr);
  EXPECT_THAT(gang.Shares(1), ElementsAre(2));
  EXPECT_EQ(gang.LivingWorkers(2), 1);
  gang.tasks()[0].lost = true;
  EXPECT_EQ(gang.living(), 0);
  EXPECT_EQ(gang.LivingWorkers(2), 0);

  gang.shards()[0].lost = true;
  EXPECT_TRUE(gang.AnyShardLost());
  gang.ReplaceShard(0, spare, "j");
  EXPECT_FALSE(gang.AnyShardLost());
  EXPECT_EQ(gang.FindShard(0, "s0", 6), nullptr);
  EXPECT_NE(gang.FindShard(0, "s1", 7), nullptr);
  EXPECT_FALSE(gang.AllShardsReady(1));
  gang.shards()[0].present = true;
  gang.shards()[0].state.set_ready(true);
  gang.shards()[0].state.set_lineage(1);
  EXPECT_TRUE(gang.AllShardsReady(1));
  EXPECT_FALSE(gang.AllShardsReady(2));
}

class JobTableTest : public ::testing::Test {
 protected:
  Job& Add(int64_t sequence, const std::string& owner = "", const std::string& weights = "") {
    Submission what;
    what.id = absl::StrCat("j-", sequence);
    what.sequence = sequence;
    what.request_id = absl::StrCat("r-", sequence);
    what.owner = owner;
    what.spec.mutable_model()->set_initial_weights(weights);
    return jobs_.Add(std::make_unique<Job>(std::move(what), CoreOptions()));
  }

  JobTable jobs_;
};

TEST_F(JobTableTest, AJobIsFoundByItsIdItsRequestAndItsNumberUntilItIsForgotten) {
  Job& job = Add(7, "", "file:///w");
  EXPECT_EQ(jobs_.Find("j-7"), &job);
  EXPECT_EQ(jobs_.OfRequest("r-7"), &job);
  EXPECT_TRUE(jobs_.HasSequence(7));
  EXPECT_THAT(jobs_.with_weights(), SizeIs(1));
  EXPECT_EQ(jobs_.Find("j-8"), nullptr);
  EXPECT_EQ(jobs_.OfRequest("r-8"), nullptr);
  jobs_.NoteEnd(job);
  jobs_.Touch(job);
  jobs_.Forget(0);
  jobs_.UpdateIndexes();
  EXPECT_TRUE(jobs_.empty());
  EXPECT_EQ(jobs_.Find("j-7"), nullptr);
  EXPECT_EQ(jobs_.OfRequest("r-7"), nullptr);
  EXPECT_FALSE(jobs_.HasSequence(7));
  EXPECT_THAT(jobs_.with_weights(), IsEmpty());
  EXPECT_THAT(jobs_.ended(), IsEmpty());
}

TEST_F(JobTableTest, TheQueueIsInTheOrderOfSubmission) {
  Job& second = Add(2);
  Job& first = Add(1);
  jobs_.Queue(second);
  jobs_.Queue(first);
  EXPECT_EQ(jobs_.pending().begin()->second, &first);
  jobs_.Unqueue(first);
  EXPECT_EQ(jobs_.pending().begin()->second, &second);
  jobs_.Activate(first);
  EXPECT_TRUE(jobs_.IsActive(first));
  EXPECT_FALSE(jobs_.IsActive(second));
  EXPECT_TRUE(jobs_.Deactivate(first));
  EXPECT_FALSE(jobs_.Deactivate(first));
}

TEST_F(JobTableTest, TheOwnerWithTheMostLosesHisOldest) {
  for (int64_t i = 1; i <= 6; ++i) jobs_.NoteEnd(Add(i, i <= 2 ? "ann" : "bob"));
  const auto one = [](const Job&) -> int64_t { return 1; };
  EXPECT_EQ(jobs_.OldestOfTheGreatest(one), 2u);  // bob's j-3
  jobs_.Reopen(*jobs_.Find("j-3"));
  jobs_.Reopen(*jobs_.Find("j-4"));
  EXPECT_EQ(jobs_.OldestOfTheGreatest(one), 0u);  // as many each: the oldest of all
  EXPECT_EQ(
      jobs_.OldestOfTheGreatest([](const Job& job) -> int64_t { return job.sequence() == 6; }), 3u);
  EXPECT_EQ(jobs_.OldestOfTheGreatest([](const Job&) -> int64_t { return 0; }),
            jobs_.ended().size());
}

TEST_F(JobTableTest, TheIndexesKnowWhatATouchedActiveJobWaitsFor) {
  Job& job = Add(1);
  job.recovery().TakeOverBy(absl::Seconds(9));
  jobs_.Touch(job);
  jobs_.UpdateIndexes();
  EXPECT_EQ(jobs_.NextDue(absl::ZeroDuration()), absl::InfiniteDuration());  // it is not active
  jobs_.Activate(job);
  jobs_.Touch(job);
  jobs_.UpdateIndexes();
  EXPECT_EQ(jobs_.NextDue(absl::ZeroDuration()), absl::Seconds(9));
  job.recovery().Want(Recovery::Cause::kOther, absl::Seconds(4));
  EXPECT_EQ(jobs_.NextDue(absl::ZeroDuration()), absl::Seconds(9));  // not touched
  jobs_.Touch(job);
  jobs_.UpdateIndexes();
  EXPECT_EQ(jobs_.NextDue(absl::ZeroDuration()), absl::Seconds(4));
  // Once its back-off is past, it waits for a node and not for a time.
  EXPECT_EQ(jobs_.NextDue(absl::Seconds(4)), absl::Seconds(9));
}

TEST_F(JobTableTest, AJobInItsHistoryLacksTheWorkersThatItHasNot) {
  Job& job = Add(1);
  job::v1::ResolvedSpec spec = TenSteps();
  spec.set_num_workers(3);
  spec.set_lanes(2);
  spec.set_devices_per_worker(1);
  job.resolution().Set(spec);
  job.members().shards().resize(1);
  job.lineages().Begin(job.lineages().NextLineage({0, 0}, {}), "", 0);
  jobs_.Activate(job);
  EXPECT_EQ(job.LackingWorkers(), 0);  // it waits in the queue
  job.standing().Set(common::v1::JOB_STATE_RUNNING, "", "");
  EXPECT_EQ(job.LackingWorkers(), 2);  // as many as it has lanes for
  jobs_.Touch(job);
  jobs_.UpdateIndexes();
  EXPECT_THAT(jobs_.lacking(), ElementsAre(1));
  job.recovery().Want(Recovery::Cause::kOther, absl::Seconds(4));
  EXPECT_EQ(job.LackingWorkers(), 0);  // the next lineage deals its lanes
  jobs_.Touch(job);
  jobs_.UpdateIndexes();
  EXPECT_THAT(jobs_.lacking(), IsEmpty());
}

TEST_F(JobTableTest, NewPointsOfActiveJobsAreTakenOnce) {
  Job& active = Add(1);
  Job& resting = Add(2);
  jobs_.Activate(active);
  jobs_.NoteNewPoint(active);
  jobs_.NoteNewPoint(resting);
  EXPECT_THAT(jobs_.TakeUnsavedHistories(), ElementsAre(&active));
  EXPECT_THAT(jobs_.TakeUnsavedHistories(), IsEmpty());
}

}  // namespace
}  // namespace capstan::coordinator::core
