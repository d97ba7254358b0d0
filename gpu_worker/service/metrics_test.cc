#include "gpu_worker/service/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace capstan::gpu_worker {
namespace {

using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

TEST(WorkerMetricsTest, FamiliesAreThoseOfTheDocument) {
  services::MetricsRegistry registry("gpu_worker");
  WorkerMetrics metrics(registry);
  EXPECT_THAT(
      registry.FamilyNames(),
      IsSupersetOf({"capstan_worker_steps_total", "capstan_worker_samples_total",
                    "capstan_worker_step_duration_seconds", "capstan_barrier_wait_seconds",
                    "capstan_worker_phase_seconds_total", "capstan_ps_client_wire_bytes_total",
                    "capstan_ps_client_payload_bytes_total", "capstan_ps_client_retries_total"}));
}

// Tasks send totals; the registry gets what came since, also when a task starts anew at zero.
TEST(WorkerMetricsTest, TotalsOfATaskBecomeIncrements) {
  services::MetricsRegistry registry("gpu_worker");
  WorkerMetrics metrics(registry);
  TaskCounters counters;
  counters.steps = 5;
  counters.step_seconds.Observe(0.002, services::LatencyBuckets());
  counters.exchange.sent_wire_bytes = 1000;
  counters.exchange.retries = 3;
  metrics.Update("j1", 2, counters);
  counters.steps = 7;
  counters.step_seconds.Observe(0.002, services::LatencyBuckets());
  metrics.Update("j1", 2, counters);
  EXPECT_THAT(registry.Scrape(),
              HasSubstr("capstan_worker_steps_total{job_id=\"j1\",rank=\"2\"} 7"));
  TaskCounters again;
  again.steps = 2;
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
  EXPECT_THAT(text, HasSubstr("phase=\"push\",rank=\"2\"} 1.5"));
  EXPECT_THAT(text, HasSubstr("direction=\"tx\",job_id=\"j1\",op=\"push\",rank=\"2\"} 1000"));

  metrics.Retire("j1");
  registry.Scrape();
  registry.Scrape();
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("job_id=\"j1\"")));
}

}  // namespace
}  // namespace capstan::gpu_worker
