// The metrics of a process: families with fixed labels, each made once, and their text for a
// scrape.
//
//   MetricsRegistry metrics("param_store");
//   const auto dropped = metrics.Counter("capstan_ps_gradients_dropped_total", "Gradients not
//   applied.",
//                                        {"job_id", "reason"});
//   prometheus::Counter& stale = dropped.With({{"job_id", "j7"}, {"reason", "stale"}});  // keep it
//   stale.Increment();
//
// Names, labels, help and units follow docs/metrics.md. A violation is a bug of ours and ends the
// process. Rules: the prefix is capstan_, grpc_ or process_; counters, and only they, end in
// _total; help is not empty; no label is named job, instance or le. Every registry has
// capstan_build_info and process_*.
//
// Thread-safe. The registry must outlive its families and their children.
#ifndef CAPSTAN_SERVICES_METRICS_REGISTRY_H_
#define CAPSTAN_SERVICES_METRICS_REGISTRY_H_

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/labels.h"
#include "prometheus/registry.h"
#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::services {

std::vector<double> LatencyBuckets();  // 0.5 ms .. 60 s
std::vector<double> LongBuckets();     // 1 s .. 1 day
std::vector<double> StepBuckets();     // 0, 1, 2, 4 .. 64 steps

class MetricsRegistry;

// A family of counters, gauges or histograms. Copyable; borrows the registry.
template <typename T>
class MetricFamily {
 public:
  // The child with exactly these labels, made by the first call. Slow, so keep the reference. It is
  // valid until the registry is destroyed or MetricsRegistry::RetireSeries ends the child.
  T& With(const prometheus::Labels& labels) const;
  // Removes the child with these labels at once, if it exists, because its series would be wrong
  // from now on. References to it must not be used after this call.
  void Drop(const prometheus::Labels& labels) const;

 private:
  T& Child(const prometheus::Labels& labels) const;

  friend class MetricsRegistry;
  MetricsRegistry* registry_ = nullptr;
  prometheus::Family<T>* family_ = nullptr;
  std::vector<std::string> label_names_;  // sorted
  std::vector<double> buckets_;           // of histograms
};

using CounterFamily = MetricFamily<prometheus::Counter>;
using GaugeFamily = MetricFamily<prometheus::Gauge>;
using HistogramFamily = MetricFamily<prometheus::Histogram>;

class MetricsRegistry {
 public:
  // `component`: coordinator, param_store, gpu_worker. `now` is for tests.
  explicit MetricsRegistry(absl::string_view component,
                           std::function<absl::Duration()> now = MonotonicNow);
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  CounterFamily Counter(const std::string& name, const std::string& help,
                        std::vector<std::string> label_names = {});
  GaugeFamily Gauge(const std::string& name, const std::string& help,
                    std::vector<std::string> label_names = {});
  HistogramFamily Histogram(const std::string& name, const std::string& help,
                            std::vector<double> buckets, std::vector<std::string> label_names = {});

  // Ends every series that carries `label` = `value` (job_id of a job that ended) after two more
  // scrapes, so that its last values are seen. If nobody scrapes, a later call ends series that
  // were retired more than ten minutes before it. References to such a child must not be used after
  // this call.
  void RetireSeries(const std::string& label, const std::string& value);

  // The text format 0.0.4 of all metrics; counts as a scrape.
  std::string Scrape();
  // Names of all families, sorted, for the metric-list test.
  std::vector<std::string> FamilyNames() const;

 private:
  template <typename T>
  friend class MetricFamily;

  struct Child {
    prometheus::Labels labels;
    std::function<void()> remove;
    int scrapes_left = -1;  // -1: not retired
    absl::Duration retired_at;
  };

  void CheckFamily(const std::string& name, const std::string& help, bool counter,
                   const std::vector<std::string>& label_names);

  const std::function<absl::Duration()> now_;
  prometheus::Registry registry_;
  mutable Mutex mu_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<const void*, Child> children_ ABSL_GUARDED_BY(mu_);  // by metric
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_METRICS_REGISTRY_H_
