// The metric families of the worker service (docs/metrics.md).
//
// Thread-safe by its owner's strand.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_METRICS_H_
#define CAPSTAN_GPU_WORKER_SERVICE_METRICS_H_

#include <cstdint>
#include <map>
#include <string>

#include "capstan/node/v1/node.pb.h"
#include "gpu_worker/task/counters.h"
#include "services/metrics/registry.h"

namespace capstan::gpu_worker {

class WorkerMetrics {
 public:
  // Borrows the registry.
  explicit WorkerMetrics(services::MetricsRegistry& registry);

  // The counts of a task since its start.
  void Update(const std::string& job_id, int32_t rank, const TaskCounters& counters);
  void Update(const std::string& job_id, int32_t rank, const node::v1::StepPhases& phases);
  // The task has ended. Its series disappear after two more scrapes.
  void Retire(const std::string& job_id);

 private:
  struct Last {
    TaskCounters counters;
    std::map<std::string, double> phases;
  };

  services::MetricsRegistry& registry_;
  const services::CounterFamily steps_;
  const services::CounterFamily samples_;
  const services::HistogramFamily step_seconds_;
  const services::HistogramFamily barrier_seconds_;
  const services::CounterFamily phase_seconds_;
  const services::GaugeFamily queued_batches_;
  const services::CounterFamily read_bytes_;
  const services::CounterFamily cpu_seconds_;
  const services::GaugeFamily resident_bytes_;
  const services::HistogramFamily collective_seconds_;
  const services::CounterFamily collective_bytes_;
  const services::HistogramFamily request_seconds_;
  const services::CounterFamily wire_bytes_;
  const services::CounterFamily payload_bytes_;
  const services::CounterFamily retries_;
  const services::GaugeFamily shared_streams_;
  std::map<std::string, Last> last_;  // by job
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_METRICS_H_
