// The metrics of the parameter store (docs/metrics.md), and the series of one job.
//
// Thread-safe, as the registry is; a JobMetrics is of its job's strand.
#ifndef CAPSTAN_PARAM_STORE_SHARD_METRICS_H_
#define CAPSTAN_PARAM_STORE_SHARD_METRICS_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "exchange/shard/shard_core.h"
#include "param_store/shard_storage.h"
#include "services/metrics/registry.h"

namespace capstan::param_store {

// One for each process, before the server starts.
class ShardMetrics {
 public:
  explicit ShardMetrics(services::MetricsRegistry& registry);

  // The series of a job end two scrapes after it has.
  void Retire(const std::string& job_id) { registry_.RetireSeries("job_id", job_id); }

 private:
  friend class JobMetrics;
  services::MetricsRegistry& registry_;
  services::HistogramFamily request_duration_;
  services::HistogramFamily apply_duration_;
  services::CounterFamily dropped_;
  services::GaugeFamily inflight_;
  prometheus::Gauge* pushes_under_way_;  // of the process
  prometheus::Gauge* pulls_under_way_;
  services::GaugeFamily model_version_;
  services::GaugeFamily waiting_workers_;
  services::GaugeFamily slow_readers_;
  services::CounterFamily missed_versions_;
  services::HistogramFamily staleness_;
  services::GaugeFamily max_staleness_;
  services::GaugeFamily resident_bytes_;
  services::HistogramFamily checkpoint_duration_;
  services::GaugeFamily checkpoint_size_;
  services::GaugeFamily checkpoint_success_;
  services::CounterFamily checkpoint_failures_;
};

// All series that a job can come to have exist from the start, with 0.
class JobMetrics {
 public:
  // Borrows `metrics`, which may be null: nothing is counted.
  JobMetrics(ShardMetrics* metrics, const exchange::shard::ShardPlan& plan);

  ~JobMetrics();
  JobMetrics(const JobMetrics&) = delete;
  JobMetrics& operator=(const JobMetrics&) = delete;

  // Any thread: a message has come, or was handled.
  void MessageCame();
  void MessageHandled();

  void Pushed(absl::Duration took);  // a frame, from its bytes to its sums
  void Pulled(absl::Duration took);  // a version, put into messages for one worker
  void Applied(absl::Duration took);
  void Saved(absl::Duration took, int64_t size_bytes);
  void SaveFailed();
  void Restored(absl::Duration took);
  void RestoreFailed();
  // Gauges, and what the counts have grown by since the last call.
  // `pulls`: streams that a version is being written to.
  void Update(const exchange::shard::ShardCore& core, const ShardStorage::Bytes& bytes, int pulls);

 private:
  struct Series {
    prometheus::Histogram* push;
    prometheus::Histogram* pull;
    prometheus::Histogram* apply;
    prometheus::Histogram* save;
    prometheus::Histogram* restore;
    prometheus::Gauge* version;
    prometheus::Gauge* waiting;
    prometheus::Gauge* slow_readers;
    prometheus::Counter* missed_versions;
    prometheus::Histogram* staleness;  // null: the job is synchronous, or this is not the lead
    prometheus::Gauge* max_staleness;  // likewise
    prometheus::Gauge* weights;
    prometheus::Gauge* optimizer;
    prometheus::Gauge* pending;
    prometheus::Gauge* checkpoint_size;
    prometheus::Gauge* checkpoint_success;
    prometheus::Counter* save_failures;
    prometheus::Counter* restore_failures;
    prometheus::Counter* stale;
    prometheus::Counter* duplicate;
    prometheus::Counter* corrupt;
    prometheus::Counter* ahead;
    prometheus::Counter* wrong_shard;
    prometheus::Counter* invalid;
    prometheus::Counter* fenced;
  };
  void SetPulls(int pulls);

  ShardMetrics* const metrics_;
  Series series_ = {};
  const bool on_;
  std::atomic<int> messages_{0};  // in the gauge of the process, as are pulls_
  int pulls_ = 0;
  exchange::shard::DropCounts counted_;
  int64_t counted_missed_ = 0;
  std::vector<int64_t> counted_staleness_;
};

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_SHARD_METRICS_H_
