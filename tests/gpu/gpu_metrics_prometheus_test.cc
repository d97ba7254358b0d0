// GPU metrics as a real Prometheus gets them. The monitor reads the fake NVML, our HTTP server
// serves the metrics, Debian's prometheus scrapes them every second, and promtool checks them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpu_worker/nvml/fake_nvml_world.h"
#include "gpu_worker/nvml/gpu_monitor.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/http/http_server.h"
#include "services/metrics/registry.h"
#include "services/process/process.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {
namespace {

using ::testing::IsEmpty;

constexpr absl::Duration kLimit = absl::Seconds(60);  // for any one wait; a busy machine is slow

// The path of a program in PATH; "" if there is none.
std::string Program(const std::string& name) {
  const char* const path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path == nullptr ? "" : path, ':')) {
    const std::string file = absl::StrCat(folder, "/", name);
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return "";
}

// The lines of a child, and waiting for one of them.
class Output {
 public:
  void Add(absl::string_view line) {
    MutexLock lock(mu_);
    text_.append(line.data(), line.size());
    text_ += '\n';
    changed_.NotifyAll();
  }
  // The rest of the first line after `mark`; nullopt: it did not appear in time.
  std::optional<std::string> WaitFor(const std::string& mark, absl::Duration limit) {
    const absl::Duration end = MonotonicNow() + limit;
    MutexLock lock(mu_);
    for (;;) {
      const size_t found = text_.find(mark);
      if (found != std::string::npos) {
        const size_t begin = found + mark.size();
        return text_.substr(begin, text_.find('\n', begin) - begin);
      }
      const absl::Duration now = MonotonicNow();
      if (now >= end) return std::nullopt;
      changed_.WaitWithTimeout(mu_, end - now);
    }
  }
  std::string text() {
    MutexLock lock(mu_);
    return text_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::string text_ ABSL_GUARDED_BY(mu_);
};

constexpr char kWorld[] =
    "driver 580.95.05\n"
    "gpu uuid=GPU-a name=NVIDIA_H200 bus=00000000:1B:00.0 total=150754820096 used=1073741824 "
    "util=50 temp=41 energy=123456\n"
    "gpu uuid=GPU-b name=NVIDIA_H200 bus=00000000:1C:00.0 total=150754820096 used=4096 util=0 "
    "temp=30 energy=NOT_SUPPORTED power=70000\n";

class PrometheusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    prometheus_ = Program("prometheus");
    promtool_ = Program("promtool");
    if (prometheus_.empty() || promtool_.empty()) {
      GTEST_SKIP() << "NOT TESTED: no prometheus and promtool in PATH; on Debian: apt-get install "
                      "--no-install-recommends prometheus";
    }
    auto dir = services::MakePrivateDir("prom");
    ASSERT_TRUE(dir.ok()) << dir.status();
    dir_ = *dir;

    GpuMonitorOptions options;
    options.library = FakeNvmlWorld::Library();
    options.period = absl::Milliseconds(100);
    options.uses = [] {
      return std::vector<GpuUse>{{.device = 0, .job_id = "j7", .rank = 3, .allocated_bytes = 1000}};
    };
    auto monitor = GpuMonitor::Start(registry_, options);
    ASSERT_TRUE(monitor.ok()) << monitor.status();
    monitor_ = *std::move(monitor);
    ASSERT_TRUE(monitor_->WaitForSamples(2, kLimit));

    services::HttpOptions http;
    http.routes["/metrics"] = services::MetricsHandler([this] { return registry_.Scrape(); });
    auto server = services::HttpServer::Start(std::move(http));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void TearDown() override {
    if (dir_.empty()) return;  // skipped
    EXPECT_TRUE(services::RemoveTree("/tmp", dir_).ok());
  }

  FakeNvmlWorld world_{kWorld};
  std::string prometheus_, promtool_, dir_;
  services::MetricsRegistry registry_{"gpu_worker"};
  std::unique_ptr<GpuMonitor> monitor_;
  std::unique_ptr<services::HttpServer> server_;
};

TEST_F(PrometheusTest, PromtoolHasNothingToSay) {
  ASSERT_TRUE(services::WriteFileAtomically(dir_ + "/metrics", registry_.Scrape()).ok());
  Output output;
  services::ProcessSpawner spawner;
  services::ProcessOptions options;
  options.binary = "/bin/sh";  // promtool reads standard input, which our children do not have
  options.args = {"-c", absl::StrCat("exec '", promtool_, "' check metrics <'", dir_, "/metrics'")};
  options.on_line = [&output](services::OutputStream, absl::string_view line) { output.Add(line); };
  auto promtool = spawner.Spawn(std::move(options));
  ASSERT_TRUE(promtool.ok()) << promtool.status();
  const auto end = (*promtool)->WaitFor(kLimit);
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(end->success()) << end->ToString();
  EXPECT_THAT(output.text(), IsEmpty());
}

// A Prometheus for this test: loopback, a port chosen by the system, data in the test's folder.
class OwnPrometheus {
 public:
  OwnPrometheus(const std::string& binary, const std::string& dir, int target_port) {
    std::ofstream(dir + "/prometheus.yml")
        << "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n"
        << "- job_name: capstan\n  static_configs: [{targets: ['127.0.0.1:" << target_port
        << "']}]\n";
    services::ProcessOptions options;
    options.binary = binary;
    options.args = {"--config.file=" + dir + "/prometheus.yml", "--storage.tsdb.path=" + dir + "/d",
                    "--web.listen-address=127.0.0.1:0", "--log.level=info"};
    options.on_line = [this](services::OutputStream, absl::string_view line) { output_.Add(line); };
    auto process = spawner_.Spawn(std::move(options));
    if (!process.ok()) {
      ADD_FAILURE() << process.status();
      return;
    }
    process_ = *std::move(process);
    const auto port = output_.WaitFor("msg=\"Listening on\" address=127.0.0.1:", kLimit);
    if (!port.has_value() || !absl::SimpleAtoi(*port, &port_)) {
      ADD_FAILURE() << "prometheus does not listen:\n" << output_.text();
    }
  }
  ~OwnPrometheus() {
    if (process_ == nullptr) return;
    process_->Kill(SIGTERM);
    if (!process_->WaitFor(absl::Seconds(10)).has_value()) process_->Kill(SIGKILL);
  }

  bool running() const { return port_ > 0; }

  // The result of an instant query, each series as "{labels} value". Empty while there is none.
  nlohmann::json Query(const std::string& expression) {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(10);
    const auto reply = client.Get("/api/v1/query", {{"query", expression}}, httplib::Headers());
    if (!reply || reply->status != 200) return nlohmann::json::array();
    return nlohmann::json::parse(reply->body)["data"]["result"];
  }

  // Queries until there are results. An empty list: none within the limit.
  nlohmann::json WaitFor(const std::string& expression) {
    const absl::Duration end = MonotonicNow() + kLimit;
    nlohmann::json result = Query(expression);
    while (result.empty() && MonotonicNow() < end) {
      // Pauses until the child's next line, or for a tenth of a second. Scrapes print no lines.
      (void)output_.WaitFor("no such line", absl::Milliseconds(100));
      result = Query(expression);
    }
    return result;
  }

 private:
  Output output_;
  services::ProcessSpawner spawner_;
  std::unique_ptr<services::Process> process_;
  int port_ = 0;
};

TEST_F(PrometheusTest, ScrapesEveryFamily) {
  OwnPrometheus prometheus(prometheus_, dir_, server_->endpoint().port);
  ASSERT_TRUE(prometheus.running());
  const auto value = [&prometheus](const std::string& expression) {
    const nlohmann::json result = prometheus.WaitFor(expression);
    if (result.size() != 1) return absl::StrCat(result.size(), " series");
    return result[0]["value"][1].get<std::string>();
  };
  EXPECT_EQ(value("capstan_gpu_memory_total_bytes{UUID='GPU-a'}"), "150754820096");
  EXPECT_EQ(value("capstan_gpu_memory_used_bytes{UUID='GPU-b'}"), "4096");
  EXPECT_EQ(value("capstan_gpu_utilization_ratio{UUID='GPU-a'}"), "0.5");
  EXPECT_EQ(value("capstan_gpu_temperature_celsius{UUID='GPU-b'}"), "30");
  EXPECT_EQ(value("capstan_gpu_energy_joules_total{UUID='GPU-a'}"), "123.456");
  EXPECT_EQ(value("capstan_gpu_memory_allocated_bytes{job_id='j7',rank='3'}"), "1000");
  EXPECT_EQ(value("capstan_gpu_memory_peak_bytes{job_id='j7',rank='3'}"), "1000");
  // The join in docs/metrics.md: whose memory is it?
  EXPECT_EQ(value("sum by (job_id, rank) (capstan_gpu_memory_used_bytes * on (UUID) group_left "
                  "(job_id, rank) max by (UUID, job_id, rank) (capstan_gpu_info{job_id='j7'}))"),
            "1073741824");
  EXPECT_EQ(value("count(capstan_gpu_info)"), "2");
  // 70 W, integrated from power: at most 70 J for every second of this test.
  EXPECT_EQ(value("capstan_gpu_energy_joules_total{UUID='GPU-b'} > 0 < bool 70 * 3600"), "1");

  world_.Write("gpu uuid=GPU-a total=150754820096 used=2147483648 util=100\n");
  EXPECT_EQ(value("capstan_gpu_memory_used_bytes{UUID='GPU-a'} == 2147483648"), "2147483648");
  EXPECT_EQ(value("capstan_gpu_utilization_ratio{UUID='GPU-a'} == 1"), "1");
  EXPECT_EQ(value("count(capstan_gpu_memory_used_bytes) == 1"), "1");  // GPU-b is lost
}

}  // namespace
}  // namespace capstan::gpu_worker
