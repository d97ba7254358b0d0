#include "gpu_worker/nvml/gpu_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gpu_worker/nvml/fake_nvml_world.h"
#include "gpu_worker/nvml/gpu_monitor.h"

namespace capstan::gpu_worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

std::vector<GpuInfo> TwoGpus() {
  return {{0, "GPU-a", "0:1B:00.0", "NVIDIA H200"}, {1, "GPU-b", "0:1C:00.0", "NVIDIA H200"}};
}

GpuSample Sample(int gpu, double joules) {
  GpuSample sample;
  sample.index = gpu;
  sample.memory_total_bytes = 8192;
  sample.memory_used_bytes = 1024 * (gpu + 1);
  sample.utilization_ratio = 0.25;
  sample.temperature_celsius = 40 + gpu;
  sample.energy_joules = joules;
  return sample;
}

std::string Info(const std::string& gpu, const std::string& uuid, const std::string& bus,
                 const std::string& job, const std::string& rank) {
  return "capstan_gpu_info{UUID=\"" + uuid + "\",gpu=\"" + gpu + "\",job_id=\"" + job +
         "\",model_name=\"NVIDIA H200\",pci_bus_id=\"" + bus + "\",rank=\"" + rank + "\"} 1\n";
}

TEST(GpuMetricsTest, FamiliesAreThoseOfTheDocument) {
  services::MetricsRegistry registry("gpu_worker");
  GpuMetrics metrics(registry, TwoGpus(), {0, 1});
  EXPECT_THAT(registry.FamilyNames(),
              IsSupersetOf({"capstan_gpu_info", "capstan_gpu_memory_total_bytes",
                            "capstan_gpu_memory_used_bytes", "capstan_gpu_memory_allocated_bytes",
                            "capstan_gpu_memory_peak_bytes", "capstan_gpu_utilization_ratio",
                            "capstan_gpu_temperature_celsius", "capstan_gpu_energy_joules_total"}));
}

TEST(GpuMetricsTest, SamplesBecomeSeries) {
  services::MetricsRegistry registry("gpu_worker");
  GpuMetrics metrics(registry, TwoGpus(), {0, 1});
  metrics.Update({Sample(0, 500), Sample(1, 10)}, {});
  metrics.Update({Sample(0, 620.5), Sample(1, 12)}, {});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_gpu_memory_total_bytes{UUID=\"GPU-a\",gpu=\"0\"} 8192\n"));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_memory_used_bytes{UUID=\"GPU-b\",gpu=\"1\"} 2048\n"));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_utilization_ratio{UUID=\"GPU-a\",gpu=\"0\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_temperature_celsius{UUID=\"GPU-b\",gpu=\"1\"} 41\n"));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_energy_joules_total{UUID=\"GPU-a\",gpu=\"0\"} 620.5\n"));
  EXPECT_THAT(text, HasSubstr(Info("0", "GPU-a", "0:1B:00.0", "", "")));
}

// A lost card keeps its counter, which must not fall. Its gauges disappear. After a reload of the
// driver the card counts from 0.
TEST(GpuMetricsTest, ALostCardHasNoGaugesAndItsEnergyGoesOn) {
  services::MetricsRegistry registry("gpu_worker");
  GpuMetrics metrics(registry, TwoGpus(), {0, 1});
  metrics.Update({Sample(0, 500), Sample(1, 10)}, {});
  GpuSample lost;
  lost.index = 0;
  lost.status = absl::UnavailableError("GPU 0: GPU is lost");
  metrics.Update({lost, Sample(1, 11)}, {});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, Not(HasSubstr("capstan_gpu_memory_used_bytes{UUID=\"GPU-a\"")));
  EXPECT_THAT(text, Not(HasSubstr("capstan_gpu_utilization_ratio{UUID=\"GPU-a\"")));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_energy_joules_total{UUID=\"GPU-a\",gpu=\"0\"} 500\n"));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_memory_used_bytes{UUID=\"GPU-b\",gpu=\"1\"} 2048\n"));
  metrics.Update({Sample(0, 30), Sample(1, 12)}, {});
  EXPECT_THAT(registry.Scrape(),
              AllOf(HasSubstr("capstan_gpu_energy_joules_total{UUID=\"GPU-a\",gpu=\"0\"} 530\n"),
                    HasSubstr("capstan_gpu_memory_used_bytes{UUID=\"GPU-a\",gpu=\"0\"} 1024\n")));
}

TEST(GpuMetricsTest, InfoFollowsTheJobsWithoutADoubleForOneMoment) {
  services::MetricsRegistry registry("gpu_worker");
  // CUDA_VISIBLE_DEVICES=1,0: cuda:0 is the second card.
  GpuMetrics metrics(registry, TwoGpus(), {1, 0});
  const std::vector<GpuSample> samples = {Sample(0, 0), Sample(1, 0)};
  metrics.Update(samples, {});
  metrics.Update(samples, {{.device = 0, .job_id = "j7", .rank = 3}, {.device = 9, .job_id = "x"}});
  std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr(Info("1", "GPU-b", "0:1C:00.0", "j7", "3")));
  EXPECT_THAT(text, Not(HasSubstr(Info("1", "GPU-b", "0:1C:00.0", "", ""))));
  EXPECT_THAT(text, HasSubstr(Info("0", "GPU-a", "0:1B:00.0", "", "")));
  EXPECT_THAT(text, Not(HasSubstr("\"x\"")));

  // One card may serve two tasks.
  metrics.Update(samples, {{.device = 0, .job_id = "j7", .rank = 3},
                           {.device = 0, .job_id = "j8", .rank = 0}});
  text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr(Info("1", "GPU-b", "0:1C:00.0", "j7", "3")));
  EXPECT_THAT(text, HasSubstr(Info("1", "GPU-b", "0:1C:00.0", "j8", "0")));

  registry.RetireSeries("job_id", "j7");
  metrics.Update(samples, {});
  text = registry.Scrape();
  EXPECT_THAT(text, Not(HasSubstr("j7")));
  EXPECT_THAT(text, HasSubstr(Info("1", "GPU-b", "0:1C:00.0", "", "")));
}

TEST(GpuMetricsTest, HiddenCardsAreNotExported) {
  services::MetricsRegistry registry("gpu_worker");
  GpuMetrics metrics(registry, TwoGpus(), {1});
  metrics.Update({Sample(0, 5), Sample(1, 5)}, {});
  EXPECT_THAT(registry.Scrape(), AllOf(Not(HasSubstr("GPU-a")), HasSubstr("GPU-b")));
}

TEST(GpuMetricsTest, MemoryOfTasksEndsWithTheirJob) {
  services::MetricsRegistry registry("gpu_worker");
  GpuMetrics metrics(registry, TwoGpus(), {0, 1});
  GpuUse use{.device = 1, .job_id = "j7", .rank = 3, .allocated_bytes = 200};
  metrics.Update({}, {use});
  use.allocated_bytes = 100;
  const GpuUse none{.device = 5, .job_id = "j7", .rank = 3, .allocated_bytes = 1};  // no such card
  metrics.Update({}, {use, none});
  const std::string text = registry.Scrape();
  EXPECT_THAT(text, HasSubstr("capstan_gpu_memory_allocated_bytes{UUID=\"GPU-b\",gpu=\"1\","
                              "job_id=\"j7\",rank=\"3\"} 100\n"));
  EXPECT_THAT(text, HasSubstr("capstan_gpu_memory_peak_bytes{UUID=\"GPU-b\",gpu=\"1\","
                              "job_id=\"j7\",rank=\"3\"} 200\n"));
  metrics.Update({}, {});
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("j7")));
}

TEST(CudaIndexTest, ReadsNamesOfDevices) {
  EXPECT_EQ(CudaIndex("cuda:12"), 12);
  EXPECT_EQ(CudaIndex("cuda"), 0);
  for (const char* const name : {"cpu", "cpu:0", "cuda:", "cuda:-1", "cuda:1x", "cudax", ""}) {
    EXPECT_EQ(CudaIndex(name), std::nullopt) << name;
  }
}

TEST(GpuMonitorTest, KeepsTheMetricsFresh) {
  FakeNvmlWorld world("driver 580.1\ngpu uuid=GPU-a name=NVIDIA_H200 total=100 used=10\n");
  services::MetricsRegistry registry("gpu_worker");
  GpuMonitorOptions options;
  options.library = FakeNvmlWorld::Library();
  options.period = absl::Milliseconds(1);
  options.uses = [] { return std::vector<GpuUse>{{.device = 0, .job_id = "j1", .rank = 0}}; };
  auto monitor = GpuMonitor::Start(registry, options);
  ASSERT_TRUE(monitor.ok()) << monitor.status();
  EXPECT_EQ((*monitor)->driver_version(), "580.1");
  ASSERT_EQ((*monitor)->VisibleGpus().size(), 1);
  EXPECT_EQ((*monitor)->VisibleGpus()[0].uuid, "GPU-a");
  ASSERT_TRUE((*monitor)->WaitForSamples(1, absl::Seconds(20)));
  EXPECT_THAT(registry.Scrape(),
              AllOf(HasSubstr("capstan_gpu_memory_used_bytes{UUID=\"GPU-a\",gpu=\"0\"} 10\n"),
                    HasSubstr("job_id=\"j1\"")));

  world.Write("gpu uuid=GPU-a total=100 used=77\n");
  for (int64_t count = 2;; ++count) {
    ASSERT_LE(count, 100000);
    ASSERT_TRUE((*monitor)->WaitForSamples(count, absl::Seconds(20)));
    if (registry.Scrape().find("_used_bytes{UUID=\"GPU-a\",gpu=\"0\"} 77\n") != std::string::npos) {
      break;
    }
  }
}

TEST(GpuMonitorTest, WithoutADriverThereIsOneSentenceAndNoSeries) {
  services::MetricsRegistry registry("gpu_worker");
  GpuMonitorOptions options;
  options.library = "/no/such/library.so";
  const auto monitor = GpuMonitor::Start(registry, options);
  EXPECT_EQ(monitor.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(monitor.status().message()), HasSubstr("no NVIDIA driver here"));
  EXPECT_THAT(registry.Scrape(), Not(HasSubstr("capstan_gpu_")));
}

}  // namespace
}  // namespace capstan::gpu_worker
