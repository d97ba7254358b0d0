// The coordinator's metric families (docs/metrics.md), filled from job records.
#ifndef CAPSTAN_COORDINATOR_METRICS_H_
#define CAPSTAN_COORDINATOR_METRICS_H_

#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "coordinator/core/job.h"
#include "coordinator/core/node_table.h"
#include "coordinator/core/types.h"
#include "services/metrics/registry.h"

namespace capstan::coordinator {

// There is one queue, "default". The series of a job are retired after its end. Methods are called
// only on the strand; scrapes come from other threads. `registry` is borrowed.
class CoordinatorMetrics {
 public:
  explicit CoordinatorMetrics(services::MetricsRegistry& registry);

  // A job of an earlier coordinator, which has counted it already.
  void OnRestored(const core::Job& job);
  // After every change, including the first.
  void OnJob(const core::Job& job);
  void OnForgotten(const std::string& job_id);
  void OnNodes(const core::NodeTable& nodes);
  // The time that a commit of the journal took.
  void OnCommit(absl::Duration took);
  // Whether the disk of the journal is full.
  void OnDisk(bool full);
  // `reason`: invalid_spec, already_exists, quota. A fixed set.
  void OnRejected(const absl::Status& status);

 private:
  struct JobSeries {
    common::v1::JobState state = common::v1::JOB_STATE_UNSPECIFIED;
    absl::Time started_at = absl::InfinitePast();
    bool started = false;  // it has series
    int64_t samples = 0;
    int64_t generation = 0;
    int64_t lineage = 0;
    int64_t nonfinite = 0;
    int64_t lost_lines = 0;
    int64_t event = 0;                           // number of the last event counted
    absl::Time begun_at = absl::InfinitePast();  // last start of its gang
    absl::Time saved_at = absl::InfinitePast();  // time of its last checkpoint
    int64_t restarts = 0;
    int64_t pending_slots = 0;  // number requested while it waits
  };
  static void NoteTimes(const job::v1::Event& event, JobSeries& series);
  void OnEvents(const core::Job& job, JobSeries& series);
  void OnState(const core::Job& job, JobSeries& series);
  void OnRestarts(const core::Job& job, JobSeries& series);
  void SetPendingSlots(JobSeries& series, int64_t slots);
  prometheus::Gauge& Jobs(common::v1::JobState state) const;

  services::MetricsRegistry& registry_;
  const services::GaugeFamily jobs_;
  const services::CounterFamily submitted_;
  const services::CounterFamily rejected_;
  const services::CounterFamily finished_;
  const services::CounterFamily restarts_;
  const services::HistogramFamily queue_wait_;
  const services::HistogramFamily run_duration_;
  const services::GaugeFamily quota_slots_;
  const services::GaugeFamily allocated_slots_;
  const services::GaugeFamily pending_slots_;
  const services::GaugeFamily workers_;
  const services::GaugeFamily heartbeat_;
  const services::GaugeFamily info_;
  const services::GaugeFamily state_;
  const services::GaugeFamily progress_;
  const services::GaugeFamily step_;
  const services::GaugeFamily epoch_;
  const services::GaugeFamily start_time_;
  const services::GaugeFamily progress_time_;
  const services::GaugeFamily end_time_;
  const services::GaugeFamily stall_timeout_;
  const services::GaugeFamily loss_;
  const services::GaugeFamily accuracy_;
  const services::GaugeFamily learning_rate_;
  const services::GaugeFamily lineage_;
  const services::GaugeFamily generation_;
  const services::CounterFamily takeovers_;
  const services::CounterFamily samples_;
  const services::CounterFamily nonfinite_;
  const services::CounterFamily lost_lines_;
  const services::CounterFamily events_;
  const services::GaugeFamily checkpoint_time_;
  const services::GaugeFamily stores_;
  const services::GaugeFamily store_heartbeat_;
  const services::CounterFamily leases_lost_;
  const services::HistogramFamily commit_family_;
  prometheus::Histogram& commit_;  // its one series
  const services::GaugeFamily disk_family_;
  prometheus::Gauge& disk_;  // its one series

  std::map<std::string, JobSeries> known_;
  struct NodeNames {
    std::set<std::string> ready;   // nodes with a lease
    std::set<std::string> series;  // with a heartbeat; also lost ones, until forgotten
  };
  std::map<common::v1::Role, NodeNames> nodes_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_METRICS_H_
