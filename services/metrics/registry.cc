#include "services/metrics/registry.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "prometheus/check_names.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"
#include "services/check/check.h"
#include "services/process/own_usage.h"
#include "services/version/version.h"

namespace capstan::services {
namespace {

constexpr int kScrapesBeforeRemoval = 2;
constexpr absl::Duration kRetiredFor = absl::Minutes(10);  // if nobody scrapes

// Seconds since the epoch at the start of this process: /proc/self/stat field 22, in ticks after
// boot.
double ProcessStartSeconds() {
  double boot = 0;
  if (FILE* file = std::fopen("/proc/stat", "re")) {
    char line[512];
    while (std::fgets(line, sizeof(line), file) != nullptr) {
      if (std::sscanf(line, "btime %lf", &boot) == 1) break;
    }
    std::fclose(file);
  }
  unsigned long long ticks = 0;  // NOLINT(runtime/int): what %llu takes
  if (FILE* file = std::fopen("/proc/self/stat", "re")) {
    char text[2048];
    const size_t size = std::fread(text, 1, sizeof(text) - 1, file);
    text[size] = '\0';
    // The second field is the name in brackets and may contain anything, so start after the last
    // bracket.
    if (const char* rest = std::strrchr(text, ')')) {
      int skip = 20;  // fields 3 .. 21 and the bracket itself
      while (skip-- > 0 && (rest = std::strchr(rest + 1, ' ')) != nullptr) {
      }
      if (rest != nullptr) std::sscanf(rest, " %llu", &ticks);
    }
    std::fclose(file);
  }
  return boot + static_cast<double>(ticks) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double OpenFds() {
  double count = -3;  // ".", ".." and the descriptor of the folder itself
  if (DIR* dir = opendir("/proc/self/fd")) {
    while (readdir(dir) != nullptr) ++count;
    closedir(dir);
  }
  return std::max(0.0, count);
}

prometheus::MetricFamily Single(const char* name, const char* help, prometheus::MetricType type,
                                double value) {
  prometheus::MetricFamily family;
  family.name = name;
  family.help = help;
  family.type = type;
  prometheus::ClientMetric metric;
  metric.counter.value = value;
  metric.gauge.value = value;
  family.metric.push_back(metric);
  return family;
}

void AppendProcessMetrics(std::vector<prometheus::MetricFamily>& out) {
  static const double start_seconds = ProcessStartSeconds();
  out.push_back(Single("process_cpu_seconds_total",
                       "Total user and system CPU time spent in seconds.",
                       prometheus::MetricType::Counter, OwnCpuSeconds()));
  out.push_back(Single("process_resident_memory_bytes", "Resident memory size in bytes.",
                       prometheus::MetricType::Gauge, static_cast<double>(OwnResidentBytes())));
  out.push_back(Single("process_open_fds", "Number of open file descriptors.",
                       prometheus::MetricType::Gauge, OpenFds()));
  out.push_back(Single("process_start_time_seconds",
                       "Start time of the process since unix epoch in seconds.",
                       prometheus::MetricType::Gauge, start_seconds));
}

}  // namespace

std::vector<double> LatencyBuckets() {
  return {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60};
}

std::vector<double> StepBuckets() { return {0, 1, 2, 4, 8, 16, 32, 64}; }

std::vector<double> LongBuckets() {
  return {1, 5, 15, 30, 60, 300, 900, 1800, 3600, 7200, 21600, 86400};
}

template <typename T>
T& MetricFamily<T>::Child(const prometheus::Labels& labels) const {
  if constexpr (std::is_same_v<T, prometheus::Histogram>) {
    return family_->Add(labels, buckets_);
  } else {
    return family_->Add(labels);
  }
}

template <typename T>
T& MetricFamily<T>::With(const prometheus::Labels& labels) const {
  std::vector<std::string> names;
  for (const auto& [name, value] : labels) names.push_back(name);  // a map is sorted
  CAPSTAN_CHECK(names == label_names_);
  MutexLock lock(registry_->mu_);  // held for both: a scrape between could end a retired child
  T* const metric = &Child(labels);
  const auto [it, fresh] = registry_->children_.try_emplace(metric);
  MetricsRegistry::Child& child = it->second;
  if (fresh) {
    child.labels = labels;
    child.remove = [family = family_, metric] { family->Remove(metric); };
  }
  child.scrapes_left = -1;  // in use again, so no longer retired
  return *metric;
}

template <typename T>
void MetricFamily<T>::Drop(const prometheus::Labels& labels) const {
  MutexLock lock(registry_->mu_);
  if (!family_->Has(labels)) return;
  T* const metric = &Child(labels);
  registry_->children_.erase(metric);
  family_->Remove(metric);
}

template class MetricFamily<prometheus::Counter>;
template class MetricFamily<prometheus::Gauge>;
template class MetricFamily<prometheus::Histogram>;

MetricsRegistry::MetricsRegistry(absl::string_view component, std::function<absl::Duration()> now)
    : now_(std::move(now)) {
  Gauge("capstan_build_info", "Build information, value is always 1.",
        {"version", "revision", "component"})
      .With({{"version", std::string(Version())},
             {"revision", std::string(Revision())},
             {"component", std::string(component)}})
      .Set(1);
}

void MetricsRegistry::CheckFamily(const std::string& name, const std::string& help, bool counter,
                                  const std::vector<std::string>& label_names) {
  CAPSTAN_CHECK(prometheus::CheckMetricName(name));
  CAPSTAN_CHECK(absl::StartsWith(name, "capstan_") || absl::StartsWith(name, "grpc_") ||
                absl::StartsWith(name, "process_"));
  CAPSTAN_CHECK(absl::EndsWith(name, "_total") == counter);
  CAPSTAN_CHECK(!help.empty());
  for (const std::string& label : label_names) {
    CAPSTAN_CHECK(prometheus::CheckLabelName(label));
    // Prometheus renames the first two of a target. The third one is used by histograms.
    CAPSTAN_CHECK(label != "job" && label != "instance" && label != "le");
  }
  MutexLock lock(mu_);
  CAPSTAN_CHECK(std::find(names_.begin(), names_.end(), name) == names_.end());  // made once
  names_.push_back(name);
}

CounterFamily MetricsRegistry::Counter(const std::string& name, const std::string& help,
                                       std::vector<std::string> label_names) {
  CheckFamily(name, help, /*counter=*/true, label_names);
  std::sort(label_names.begin(), label_names.end());
  CounterFamily family;
  family.registry_ = this;
  family.family_ = &prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  family.label_names_ = std::move(label_names);
  return family;
}

GaugeFamily MetricsRegistry::Gauge(const std::string& name, const std::string& help,
                                   std::vector<std::string> label_names) {
  CheckFamily(name, help, /*counter=*/false, label_names);
  std::sort(label_names.begin(), label_names.end());
  GaugeFamily family;
  family.registry_ = this;
  family.family_ = &prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  family.label_names_ = std::move(label_names);
  return family;
}

HistogramFamily MetricsRegistry::Histogram(const std::string& name, const std::string& help,
                                           std::vector<double> buckets,
                                           std::vector<std::string> label_names) {
  CheckFamily(name, help, /*counter=*/false, label_names);
  CAPSTAN_CHECK(std::is_sorted(buckets.begin(), buckets.end()));
  std::sort(label_names.begin(), label_names.end());
  HistogramFamily family;
  family.registry_ = this;
  family.family_ = &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  family.label_names_ = std::move(label_names);
  family.buckets_ = std::move(buckets);
  return family;
}

void MetricsRegistry::RetireSeries(const std::string& label, const std::string& value) {
  const absl::Duration now = now_();
  MutexLock lock(mu_);
  for (auto it = children_.begin(); it != children_.end();) {
    Child& child = it->second;
    const bool retired = child.scrapes_left >= 0;
    if (retired && now - child.retired_at > kRetiredFor) {
      child.remove();
      it = children_.erase(it);
      continue;
    }
    const auto found = child.labels.find(label);
    if (!retired && found != child.labels.end() && found->second == value) {
      child.scrapes_left = kScrapesBeforeRemoval;
      child.retired_at = now;
    }
    ++it;
  }
}

std::string MetricsRegistry::Scrape() {
  {
    MutexLock lock(mu_);
    for (auto it = children_.begin(); it != children_.end();) {
      Child& child = it->second;
      if (child.scrapes_left < 0 || child.scrapes_left-- > 0) {
        ++it;
      } else {
        child.remove();
        it = children_.erase(it);
      }
    }
  }
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  AppendProcessMetrics(families);
  return prometheus::TextSerializer().Serialize(families);
}

std::vector<std::string> MetricsRegistry::FamilyNames() const {
  std::vector<std::string> names = {"process_cpu_seconds_total", "process_resident_memory_bytes",
                                    "process_open_fds", "process_start_time_seconds"};
  MutexLock lock(mu_);
  names.insert(names.end(), names_.begin(), names_.end());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace capstan::services
