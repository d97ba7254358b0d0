#include "services/metrics/registry.h"

#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan::services {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsRegistryTest, TextHasHelpTypeAndValues) {
  MetricsRegistry metrics("param_store");
  const CounterFamily dropped =
      metrics.Counter("capstan_ps_gradients_dropped_total", "Gradients not applied.", {"reason"});
  prometheus::Counter& stale = dropped.With({{"reason", "stale"}});
  stale.Increment();
  dropped.With({{"reason", "stale"}}).Increment(2);  // the same child
  dropped.With({{"reason", "corrupt"}});             // exists from the start, with 0
  metrics.Histogram("capstan_ps_apply_duration_seconds", "Update time.", {0.5, 1})
      .With({})
      .Observe(0.7);
  metrics.Gauge("capstan_jobs", "Jobs.", {"state"}).With({{"state", "RUNNING"}}).Set(2);

  EXPECT_THAT(metrics.Scrape(),
              AllOf(HasSubstr("# HELP capstan_ps_gradients_dropped_total Gradients not applied.\n"
                              "# TYPE capstan_ps_gradients_dropped_total counter\n"),
                    HasSubstr("capstan_ps_gradients_dropped_total{reason=\"stale\"} 3\n"),
                    HasSubstr("capstan_ps_gradients_dropped_total{reason=\"corrupt\"} 0\n"),
                    HasSubstr("capstan_ps_apply_duration_seconds_bucket{le=\"0.5\"} 0\n"),
                    HasSubstr("capstan_ps_apply_duration_seconds_bucket{le=\"1\"} 1\n"),
                    HasSubstr("capstan_jobs{state=\"RUNNING\"} 2\n"),
                    HasSubstr("component=\"param_store\"")));
}

TEST(MetricsRegistryTest, ProcessMetricsAreThere) {
  MetricsRegistry metrics("coordinator");
  const std::string text = metrics.Scrape();
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_open_fds", "process_start_time_seconds"}) {
    const size_t at = text.find(std::string("\n") + name + " ");
    ASSERT_NE(at, std::string::npos) << name;
    EXPECT_GT(std::stod(text.substr(at + 2 + std::string(name).size())), 0) << name;
  }
  // Started after 2020 and not in the future.
  const size_t at = text.find("\nprocess_start_time_seconds ");
  const double start = std::stod(text.substr(at + 28));
  EXPECT_GT(start, 1.58e9);
  EXPECT_LE(start, static_cast<double>(time(nullptr)) + 2);
}

TEST(MetricsRegistryTest, SeriesOfAnEndedJobGoAfterTwoScrapes) {
  MetricsRegistry metrics("gpu_worker");
  const CounterFamily steps =
      metrics.Counter("capstan_worker_steps_total", "Training steps finished.", {"job_id", "rank"});
  steps.With({{"job_id", "j1"}, {"rank", "0"}}).Increment(5);
  steps.With({{"job_id", "j2"}, {"rank", "0"}}).Increment(7);
  metrics.RetireSeries("job_id", "j1");
  EXPECT_THAT(metrics.Scrape(), HasSubstr("job_id=\"j1\""));
  EXPECT_THAT(metrics.Scrape(), HasSubstr("job_id=\"j1\""));
  EXPECT_THAT(metrics.Scrape(), AllOf(Not(HasSubstr("job_id=\"j1\"")), HasSubstr("job_id=\"j2\"")));
  steps.With({{"job_id", "j1"}, {"rank", "0"}}).Increment();  // returns as a new series
  EXPECT_THAT(metrics.Scrape(),
              HasSubstr("capstan_worker_steps_total{job_id=\"j1\",rank=\"0\"} 1\n"));
}

TEST(MetricsRegistryTest, ADroppedSeriesIsGoneAtTheNextScrape) {
  MetricsRegistry metrics("gpu_worker");
  const GaugeFamily info = metrics.Gauge("capstan_gpu_info", "Maps.", {"job_id"});
  info.With({{"job_id", "j1"}}).Set(1);
  info.With({{"job_id", "j2"}}).Set(1);
  metrics.RetireSeries("job_id", "j1");
  info.Drop({{"job_id", "j1"}});
  info.Drop({{"job_id", "never there"}});
  EXPECT_THAT(metrics.Scrape(), AllOf(Not(HasSubstr("j1")), HasSubstr("job_id=\"j2\"} 1\n")));
  info.With({{"job_id", "j1"}}).Set(3);
  for (int scrape = 0; scrape < 4; ++scrape) {
    EXPECT_THAT(metrics.Scrape(), HasSubstr("job_id=\"j1\"} 3\n"));
  }
}

// Ten minutes hold ten of these jobs. The eleventh is the one that ends now.
TEST(MetricsRegistryTest, SeriesOfEndedJobsGoWhereNobodyScrapes) {
  absl::Duration now;
  MetricsRegistry metrics("coordinator", [&now] { return now; });
  const GaugeFamily family = metrics.Gauge("capstan_x", "Of jobs.", {"job_id", "n"});
  family.With({{"job_id", "lives"}, {"n", "0"}}).Set(1);
  for (int job = 0; job < 10000; ++job) {
    const std::string id = absl::StrCat("j", job);
    for (int n = 0; n < 28; ++n) family.With({{"job_id", id}, {"n", absl::StrCat(n)}}).Set(1);
    metrics.RetireSeries("job_id", id);
    now += absl::Minutes(1);
  }
  const std::string text = metrics.Scrape();
  size_t series = 0;
  for (size_t at = 0; (at = text.find("\ncapstan_x{", at)) != std::string::npos; ++at) ++series;
  EXPECT_EQ(series, 1 + 11 * 28);
  EXPECT_THAT(text,
              AllOf(HasSubstr("{job_id=\"lives\",n=\"0\"} 1\n"),
                    HasSubstr("{job_id=\"j9999\",n=\"27\"} 1\n"),
                    HasSubstr("{job_id=\"j9989\",n=\"0\"} 1\n"), Not(HasSubstr("\"j9988\""))));
}

TEST(MetricsRegistryTest, OneThatIsAskedForAgainLivesOn) {
  absl::Duration now;
  MetricsRegistry metrics("coordinator", [&now] { return now; });
  const GaugeFamily family = metrics.Gauge("capstan_x", "Of jobs.", {"job_id"});
  family.With({{"job_id", "j1"}}).Set(1);
  metrics.RetireSeries("job_id", "j1");
  now += absl::Minutes(9);
  family.With({{"job_id", "j1"}}).Set(2);  // the job was retried
  now += absl::Hours(1);
  metrics.RetireSeries("job_id", "j2");
  EXPECT_THAT(metrics.Scrape(), HasSubstr("{job_id=\"j1\"} 2\n"));
}

// A scrape ends a retired child at the same moment as With finds it again.
TEST(MetricsRegistryTest, WhatWithReturnsOutlivesAScrapeAtTheSameTime) {
  MetricsRegistry metrics("coordinator");
  const GaugeFamily family = metrics.Gauge("capstan_x", "Of jobs.", {"job_id"});
  std::atomic<bool> ends{false};
  std::thread scraper([&] {
    while (!ends) metrics.Scrape();
  });
  int missing = 0;
  for (int i = 0; i < 3000; ++i) {
    family.With({{"job_id", "j1"}}).Set(i);
    missing += !absl::StrContains(metrics.Scrape(), absl::StrCat("{job_id=\"j1\"} ", i, "\n"));
    metrics.RetireSeries("job_id", "j1");
    metrics.Scrape();
  }
  ends = true;
  scraper.join();
  EXPECT_EQ(missing, 0);
}

TEST(MetricsRegistryTest, NamesAreListedForTheCatalogueTest) {
  MetricsRegistry metrics("coordinator");
  metrics.Gauge("capstan_jobs", "Jobs.");
  EXPECT_THAT(
      metrics.FamilyNames(),
      ::testing::ElementsAre("capstan_build_info", "capstan_jobs", "process_cpu_seconds_total",
                             "process_open_fds", "process_resident_memory_bytes",
                             "process_start_time_seconds"));
}

TEST(MetricsRegistryDeathTest, BreachesOfTheRulesEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  MetricsRegistry metrics("coordinator");
  EXPECT_DEATH(metrics.Counter("capstan_steps", "No _total."), "check failed");
  EXPECT_DEATH(metrics.Gauge("steps", "No prefix."), "check failed");
  EXPECT_DEATH(metrics.Gauge("capstan_x", ""), "check failed");
  EXPECT_DEATH(metrics.Gauge("capstan_x", "Label job.", {"job"}), "check failed");
  const GaugeFamily jobs = metrics.Gauge("capstan_jobs", "Jobs.", {"state"});
  EXPECT_DEATH(jobs.With({{"queue", "q"}}), "check failed");
  EXPECT_DEATH(metrics.Gauge("capstan_jobs", "Again."), "check failed");
}

}  // namespace
}  // namespace capstan::services
