#include "gpu_worker/service/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/files/files.h"

namespace capstan::gpu_worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(WorkerMetricsTest, FamiliesAreThoseOfTheDocument) {
  services::MetricsRegistry registry("gpu_worker");
  WorkerMetrics metrics(registry);
  const absl::StatusOr<std::string> catalogue =
      services::ReadWholeFile("docs/metrics.md", 1 << 20);  // tests run in the root of the tree
  ASSERT_TRUE(catalogue.ok()) << catalogue.status();
  for (const std::string& name : registry.FamilyNames()) {
    EXPECT_THAT(*catalogue, HasSubstr("`" + name + "`"));
  }
}

// Tasks send totals; the registry gets the increments, even if a task starts again at zero.
TEST(WorkerMetricsTest, TotalsOfATaskBecomeIncrements) {
  services::MetricsRegistry registry("gpu_worker");
  WorkerMetrics metrics(registry);
  TaskCounters counters;
  counters.steps = 5;
  counters.step_seconds.Observe(0.002, services::LatencyBuckets());
  counters.exchange.sent_wire_bytes = 1000;
  counters.exchange.retries = 3;
  counters.push_seconds.Observe(0.002, services::LatencyBuckets());
  counters.queued_batches = 2;
  counters.cpu_seconds = 4;
  counters.resident_bytes = 5000;
  metrics.Update("j1", 2, counters);
  counters.steps = 7;
  counters.step_seconds.Observe(0.002, services::LatencyBuckets());
  metrics.Update("j1", 2, counters);
  EXPECT_THAT(registry.Scrape(),
              HasSubstr("capstan_worker_steps_total{job_id=\"j1\",rank=\"2\"} 7"));
  TaskCounters again;
  again.steps = 2;
  again.cpu_seconds = 0.5;
  again.resident_bytes = 3000;
  metrics.Update("j1", 2, again);
  node::v1::StepPhases phases;
  phases.set_push(1.5);
  metrics.Update("j1", 2, phases);
  metrics.Update("j1", 2, phases);

  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_worker_steps_total{job_id=\"j1\",rank=\"2\"} 9"));
  EXPECT_THAT(text,
              HasSubstr("capstan_worker_step_duration_seconds_count{job_id=\"j1\",rank=\"2\"} 2"));
  EXPECT_THAT(text, HasSubstr("capstan_ps_client_retries_total{job_id=\"j1\",rank=\"2\"} 3"));
  EXPECT_THAT(text, HasSubstr("capstan_ps_client_request_duration_seconds_count{job_id=\"j1\","
                              "op=\"push\",rank=\"2\"} 1"));
  EXPECT_THAT(text, HasSubstr("capstan_ps_client_request_duration_seconds_count{job_id=\"j1\","
                              "op=\"pull\",rank=\"2\"} 0"));
  EXPECT_THAT(text, HasSubstr("capstan_task_cpu_seconds_total{job_id=\"j1\",rank=\"2\"} 4.5"));
  EXPECT_THAT(text, HasSubstr("capstan_task_resident_memory_bytes{job_id=\"j1\",rank=\"2\"} 3000"));
  EXPECT_THAT(text, HasSubstr("capstan_data_queue_batches{job_id=\"j1\",rank=\"2\"} 0"));
  EXPECT_THAT(text, HasSubstr("phase=\"push\",rank=\"2\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("direction=\"tx\",job_id=\"j1\",op=\"push\",rank=\"2\"} 1000"));

  metrics.Retire("j1");
  registry.Scrape();
  registry.Scrape();
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("job_id=\"j1\"")));
}

}  // namespace
}  // namespace capstan::gpu_worker
