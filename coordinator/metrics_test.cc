#include "coordinator/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/files/files.h"

namespace capstan::coordinator {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  // The value in the next scrape; -1: there is no such series.
  double Value(const std::string& series) {
    const std::string text = registry_.Scrape();
    const size_t at = text.find(absl::StrCat("\n", series, " "));
    return at == std::string::npos ? -1 : std::stod(text.substr(at + series.size() + 2));
  }

  services::MetricsRegistry registry_{"coordinator"};
  CoordinatorMetrics metrics_{registry_};
};

TEST_F(MetricsTest, EveryFamilyIsInTheCatalogue) {
  const absl::StatusOr<std::string> catalogue =
      services::ReadWholeFile("docs/metrics.md", 1 << 20);  // tests run in the root of the tree
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  for (const std::string& name : registry_.FamilyNames()) {
    EXPECT_TRUE(absl::StrContains(*catalogue, absl::StrCat("`", name, "`"))) << name;
  }
}

void SetState(core::Job& job, common::v1::JobState state) { job.standing().Set(state, "", ""); }

void BeginLineage(core::Job& job, int64_t lineage) {
  common::v1::View view;
  view.set_lineage(lineage);
  view.set_generation(lineage);
  job.lineages().Begin(view, "", 0);
}

TEST_F(MetricsTest, AJobIsCountedThroughItsLifeAndItsSeriesGo) {
  const absl::Time t = absl::FromUnixSeconds(1000);
  core::CoreOptions options;
  core::Submission what;
  what.id = "j-1";
  what.owner = "ann";
  what.spec.set_name("toy");
  core::Job job(what, options);
  job.standing().NoteSubmitted(t);
  metrics_.OnJob(job);  // a waiting job has no series
  EXPECT_THAT(registry_.Scrape(), HasSubstr("capstan_jobs{queue=\"default\",state=\"PENDING\"} 1"));
  EXPECT_THAT(registry_.Scrape(), HasSubstr("capstan_jobs_submitted_total{queue=\"default\"} 1"));
  EXPECT_THAT(registry_.Scrape(), Not(HasSubstr("job_id=\"j-1\"")));
  SetState(job, common::v1::JOB_STATE_RUNNING);
  job.standing().NoteStarted(t + absl::Seconds(3));
  job::v1::ResolvedSpec resolved;
  resolved.set_steps_per_epoch(4);
  resolved.set_total_steps(10);
  job.resolution().Set(resolved);
  BeginLineage(job, 1);
  node::v1::LeadState lead;
  lead.set_step(6);
  lead.set_loss(0.25);
  lead.set_samples_used(96);
  lead.set_skipped_steps(2);
  job.history().SetLead(lead);
  job.history().TakeProgress(resolved);
  job.AddEvent(absl::FromUnixSeconds(1500), "CheckpointSaved", "step 6");
  metrics_.OnJob(job);
  job.lineages().BeginGeneration({}, {});
  metrics_.OnJob(job);
  std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_jobs{queue=\"default\",state=\"PENDING\"} 0"));
  EXPECT_THAT(text, HasSubstr("capstan_jobs{queue=\"default\",state=\"RUNNING\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_job_queue_wait_seconds_sum{queue=\"default\"} 3"));
  EXPECT_THAT(text, HasSubstr("capstan_job_nonfinite_steps_total{job_id=\"j-1\"} 2"));
  EXPECT_THAT(text, HasSubstr("capstan_job_events_total{event=\"CheckpointSaved\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_job_events_total{event=\"CheckpointFailed\"} 0"));
  EXPECT_THAT(text,
              HasSubstr("capstan_job_last_checkpoint_timestamp_seconds{job_id=\"j-1\"} 1500"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "job_name=\"toy\",kvstore=\"device\",model=\"\",queue=\"default\",user=\"ann\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_job_state{job_id=\"j-1\",state=\"RUNNING\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_job_progress_ratio{job_id=\"j-1\"} 0.6"));
  EXPECT_THAT(text, HasSubstr("capstan_job_epoch{job_id=\"j-1\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("capstan_job_loss{job_id=\"j-1\",split=\"train\"} 0.25"));
  EXPECT_THAT(text, HasSubstr("capstan_job_takeovers_total{job_id=\"j-1\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_job_samples_applied_total{job_id=\"j-1\"} 96"));

  job.standing().Set(common::v1::JOB_STATE_FAILED, "Stalled", "");
  job.standing().NoteEnded(t + absl::Seconds(13), absl::ZeroDuration());
  metrics_.OnJob(job);
  metrics_.OnJob(job);  // members still end; no new series appear
  text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_job_state{job_id=\"j-1\",state=\"FAILED\"} 1"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "capstan_jobs_finished_total{queue=\"default\",reason=\"Stalled\",state=\"FAILED\"} 1"));
  registry_.Scrape();
  EXPECT_THAT(registry_.Scrape(), Not(HasSubstr("job_id=\"j-1\"")));
  metrics_.OnForgotten("j-1");
  EXPECT_THAT(registry_.Scrape(), HasSubstr("capstan_jobs{queue=\"default\",state=\"FAILED\"} 0"));
}

core::Job Running(const core::CoreOptions& options) {
  core::Submission what;
  what.id = "j-1";
  core::Job job(what, options);
  SetState(job, common::v1::JOB_STATE_RUNNING);
  job.standing().NoteSubmitted(absl::FromUnixSeconds(1000));
  job.standing().NoteStarted(absl::FromUnixSeconds(1000));
  return job;
}

void SetSamples(core::Job& job, int64_t samples) {
  job.history().Load(job.history().progress(), {}, samples);
}

void SetUpdated(core::Job& job, int64_t seconds) {
  job.history().NoteUpdated(absl::FromUnixSeconds(seconds));
}

TEST_F(MetricsTest, AJobOfTheCoordinatorBeforeThisOneIsThereButWasNotSubmittedHere) {
  core::Job job = Running(core::CoreOptions());
  SetSamples(job, 96);
  metrics_.OnRestored(job);
  SetSamples(job, 112);
  metrics_.OnJob(job);
  const std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_jobs{queue=\"default\",state=\"RUNNING\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_jobs_submitted_total{queue=\"default\"} 0"));
  EXPECT_THAT(text, HasSubstr("capstan_job_queue_wait_seconds_count{queue=\"default\"} 0"));
  EXPECT_THAT(text, HasSubstr("capstan_job_samples_applied_total{job_id=\"j-1\"} 16"));
}

constexpr char kCheckpointTime[] = "capstan_job_last_checkpoint_timestamp_seconds{job_id=\"j-1\"}";
constexpr char kProgressTime[] = "capstan_job_last_progress_timestamp_seconds{job_id=\"j-1\"}";

TEST_F(MetricsTest, TheAgeOfTheLastCheckpointOutlivesTheCoordinator) {
  core::Job job = Running(core::CoreOptions());
  job.AddEvent(absl::FromUnixSeconds(1500), "CheckpointSaved", "step 6");
  job.AddEvent(absl::FromUnixSeconds(1700), "CheckpointSaved", "step 9");
  job.AddEvent(absl::FromUnixSeconds(1800), "CheckpointFailed", "step 12");
  metrics_.OnRestored(job);
  EXPECT_EQ(Value(kCheckpointTime), 1700);
  EXPECT_EQ(Value("capstan_job_events_total{event=\"CheckpointSaved\"}"), 0);  // counted before
}

TEST_F(MetricsTest, ACheckpointOfAnEndedJobMakesNoSeries) {
  core::Job job = Running(core::CoreOptions());
  job.AddEvent(absl::FromUnixSeconds(1500), "CheckpointSaved", "step 6");
  metrics_.OnJob(job);
  SetState(job, common::v1::JOB_STATE_CANCELLED);
  metrics_.OnJob(job);
  // Its last files were written after its end.
  job.AddEvent(absl::FromUnixSeconds(1600), "CheckpointSaved", "step 9");
  metrics_.OnJob(job);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Value(kCheckpointTime), 1500);
  EXPECT_EQ(Value(kCheckpointTime), -1);
  // A retry continues from them.
  SetState(job, common::v1::JOB_STATE_RUNNING);
  metrics_.OnJob(job);
  EXPECT_EQ(Value(kCheckpointTime), 1600);
}

TEST_F(MetricsTest, NoStepIsOwedOfTheTimeWithoutAGang) {
  const absl::Time t = absl::FromUnixSeconds(1000);
  core::Job job = Running(core::CoreOptions());
  job.AddEvent(t, "Admitted", "");
  SetUpdated(job, 1060);
  metrics_.OnJob(job);
  EXPECT_EQ(Value(kProgressTime), 1060);
  SetState(job, common::v1::JOB_STATE_SUSPENDED);
  job.AddEvent(t + absl::Seconds(61), "Suspended", "");
  metrics_.OnJob(job);
  EXPECT_EQ(Value(kProgressTime), 1060);
  SetState(job, common::v1::JOB_STATE_STARTING);
  job.AddEvent(t + absl::Hours(1), "Admitted", "");
  metrics_.OnJob(job);
  EXPECT_EQ(Value(kProgressTime), 4600);
  SetUpdated(job, 4700);
  metrics_.OnJob(job);
  EXPECT_EQ(Value(kProgressTime), 4700);
}

TEST_F(MetricsTest, NoStepIsOwedOfTheTimeWithoutACoordinator) {
  const absl::Time start = absl::Now();
  core::Job job = Running(core::CoreOptions());
  job.AddEvent(job.standing().started_at(), "Started", "");
  SetUpdated(job, 1060);
  metrics_.OnRestored(job);
  EXPECT_GE(Value(kProgressTime), absl::ToUnixSeconds(start));
}

TEST_F(MetricsTest, OneThatFellSilentIsSeenUntilItIsForgottenAndOneThatLeftIsNot) {
  core::NodeTable nodes;
  node::v1::Register reg;
  reg.set_role(common::v1::ROLE_WORKER);
  reg.add_devices()->set_name("cpu");
  for (const char* name : {"w0", "w1", "w2"}) {
    reg.set_name(name);
    nodes.Admit(nodes.size() + 1, reg, {}, 1, absl::ZeroDuration(), absl::FromUnixSeconds(77));
  }
  nodes.Find("w0")->HoldSlot(0, "j-1");
  metrics_.OnNodes(nodes);
  std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_workers{state=\"ready\"} 3"));
  EXPECT_THAT(text, HasSubstr("capstan_worker_last_heartbeat_timestamp_seconds{worker=\"w1\"} 77"));
  EXPECT_THAT(text, HasSubstr("capstan_queue_quota_slots{queue=\"default\"} 3"));
  EXPECT_THAT(text, HasSubstr("capstan_queue_allocated_slots{queue=\"default\"} 1"));
  nodes.Find("w1")->Lose(/*left=*/false);
  nodes.Find("w2")->Lose(/*left=*/true);
  for (int i = 0; i < 2; ++i) metrics_.OnNodes(nodes);
  EXPECT_THAT(registry_.Scrape(), Not(HasSubstr("worker=\"w2\"")));  // not one scrape more
  for (int i = 0; i < 3; ++i) text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_workers{state=\"lost\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_workers{state=\"left\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_node_leases_lost_total{role=\"worker\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_worker_last_heartbeat_timestamp_seconds{worker=\"w1\"} 77"));
  EXPECT_THAT(text, Not(HasSubstr("worker=\"w2\"")));
  EXPECT_THAT(text, HasSubstr("capstan_queue_quota_slots{queue=\"default\"} 1"));
  nodes.Erase("w1");
  metrics_.OnNodes(nodes);
  for (int i = 0; i < 3; ++i) text = registry_.Scrape();
  EXPECT_THAT(text, Not(HasSubstr("worker=\"w1\"")));
}

TEST_F(MetricsTest, ARestartIsCountedOnceItIsOne) {
  core::CoreOptions options;
  core::Submission what;
  what.id = "j-1";
  what.spec.mutable_resources()->set_num_workers(3);
  core::Job job(what, options);
  job.standing().NoteSubmitted(absl::FromUnixSeconds(1000));
  metrics_.OnJob(job);
  EXPECT_THAT(registry_.Scrape(), HasSubstr("capstan_queue_pending_slots{queue=\"default\"} 3"));
  job.standing().NoteStarted(absl::FromUnixSeconds(1001));
  what.spec.mutable_limits()->set_stall_timeout_seconds(20);
  job.ChangeSpec(what.spec);
  BeginLineage(job, 1);
  SetState(job, common::v1::JOB_STATE_RUNNING);
  metrics_.OnJob(job);
  std::string text = registry_.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_queue_pending_slots{queue=\"default\"} 0"));
  EXPECT_THAT(text, HasSubstr("capstan_job_stall_timeout_seconds{job_id=\"j-1\"} 20"));
  EXPECT_THAT(text, HasSubstr("capstan_job_last_progress_timestamp_seconds{job_id=\"j-1\"} 1001"));
  // A shard falls silent and is back in time.
  const std::string lost = "capstan_job_restarts_total{queue=\"default\",reason=\"ShardLost\"} ";
  SetState(job, common::v1::JOB_STATE_RECOVERING);
  job.restarts().Count("ShardLost", 0);
  metrics_.OnJob(job);
  job.restarts().TakeBack();
  SetState(job, common::v1::JOB_STATE_RUNNING);
  metrics_.OnJob(job);
  EXPECT_THAT(registry_.Scrape(), HasSubstr(lost + "0"));
  // Now the shard is lost.
  job.restarts().Count("ShardLost", 0);
  SetState(job, common::v1::JOB_STATE_RECOVERING);
  metrics_.OnJob(job);
  EXPECT_THAT(registry_.Scrape(), HasSubstr(lost + "0"));
  BeginLineage(job, 2);
  metrics_.OnJob(job);
  SetState(job, common::v1::JOB_STATE_RUNNING);
  metrics_.OnJob(job);
  EXPECT_THAT(registry_.Scrape(), HasSubstr(lost + "1"));
}

}  // namespace
}  // namespace capstan::coordinator
