#include "gpu_worker/service/metrics.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace capstan::gpu_worker {
namespace {

using prometheus::Labels;

void Add(prometheus::Counter& counter, double now, double before) {
  if (now > before) counter.Increment(now - before);
}

void AddHistogram(prometheus::Histogram& histogram, const SecondsHistogram& now,
                  const SecondsHistogram& before) {
  if (now.buckets.empty()) return;
  std::vector<double> increments(now.buckets.size());
  for (size_t i = 0; i < increments.size(); ++i) {
    const int64_t old = i < before.buckets.size() ? before.buckets[i] : 0;
    increments[i] = static_cast<double>(std::max<int64_t>(0, now.buckets[i] - old));
  }
  histogram.ObserveMultiple(increments, std::max(0.0, now.sum - before.sum));
}

}  // namespace

WorkerMetrics::WorkerMetrics(services::MetricsRegistry& registry)
    : registry_(registry),
      steps_(registry.Counter("capstan_worker_steps_total", "Training steps finished.",
                              {"job_id", "rank"})),
      samples_(registry.Counter("capstan_worker_samples_total", "Training samples processed.",
                                {"job_id", "rank"})),
      step_seconds_(registry.Histogram("capstan_worker_step_duration_seconds",
                                       "Wall time of one training step.",
                                       services::LatencyBuckets(), {"job_id", "rank"})),
      barrier_seconds_(registry.Histogram("capstan_barrier_wait_seconds",
                                          "Time blocked waiting for the other workers (dist_sync).",
                                          services::LatencyBuckets(), {"job_id", "rank"})),
      phase_seconds_(registry.Counter("capstan_worker_phase_seconds_total",
                                      "Wall time by phase of the step.",
                                      {"job_id", "rank", "phase"})),
      queued_batches_(registry.Gauge("capstan_data_queue_batches",
                                     "Batches ready in the prefetch queue.", {"job_id", "rank"})),
      read_bytes_(registry.Counter("capstan_data_read_bytes_total", "Bytes read from the data set.",
                                   {"job_id", "rank"})),
      cpu_seconds_(registry.Counter("capstan_task_cpu_seconds_total",
                                    "User and system CPU time of the task's process.",
                                    {"job_id", "rank"})),
      resident_bytes_(registry.Gauge("capstan_task_resident_memory_bytes",
                                     "Resident memory of the task's process.", {"job_id", "rank"})),
      collective_seconds_(registry.Histogram("capstan_collective_duration_seconds",
                                             "Time of one local collective (NCCL or CPU).",
                                             services::LatencyBuckets(), {"job_id", "rank", "op"})),
      collective_bytes_(registry.Counter("capstan_collective_bytes_total",
                                         "Payload bytes of local collectives.",
                                         {"job_id", "rank", "op"})),
      request_seconds_(registry.Histogram("capstan_ps_client_request_duration_seconds",
                                          "Push or pull as seen by the worker (all shards).",
                                          services::LatencyBuckets(), {"job_id", "rank", "op"})),
      wire_bytes_(registry.Counter("capstan_ps_client_wire_bytes_total",
                                   "Bytes on the wire, compressed, without transport framing.",
                                   {"job_id", "rank", "op", "direction"})),
      payload_bytes_(registry.Counter("capstan_ps_client_payload_bytes_total",
                                      "Tensor bytes before compression or quantisation.",
                                      {"job_id", "rank", "op", "direction"})),
      retries_(registry.Counter("capstan_ps_client_retries_total",
                                "Streams to shards that were opened again.", {"job_id", "rank"})),
      shared_streams_(registry.Gauge("capstan_ps_client_shared_streams",
                                     "Streams to shards on this host that use shared memory.",
                                     {"job_id", "rank"})) {}

void WorkerMetrics::Update(const std::string& job_id, int32_t rank, const TaskCounters& now) {
  TaskCounters& before = last_[job_id].counters;
  if (now.steps < before.steps) before = TaskCounters();  // a new process runs the task
  const Labels labels = {{"job_id", job_id}, {"rank", absl::StrCat(rank)}};
  Add(steps_.With(labels), now.steps, before.steps);
  Add(samples_.With(labels), now.samples, before.samples);
  AddHistogram(step_seconds_.With(labels), now.step_seconds, before.step_seconds);
  AddHistogram(barrier_seconds_.With(labels), now.barrier_seconds, before.barrier_seconds);
  queued_batches_.With(labels).Set(static_cast<double>(now.queued_batches));
  Add(read_bytes_.With(labels), now.read_bytes, before.read_bytes);
  Add(cpu_seconds_.With(labels), now.cpu_seconds, before.cpu_seconds);
  resident_bytes_.With(labels).Set(static_cast<double>(now.resident_bytes));
  Labels reduce = labels;
  reduce["op"] = "all_reduce";
  AddHistogram(collective_seconds_.With(reduce), now.reduce_seconds, before.reduce_seconds);
  Add(collective_bytes_.With(reduce), now.reduce_bytes, before.reduce_bytes);
  Labels push = labels;
  push["op"] = "push";
  AddHistogram(request_seconds_.With(push), now.push_seconds, before.push_seconds);
  push["direction"] = "tx";
  Labels pull = labels;
  pull["op"] = "pull";
  AddHistogram(request_seconds_.With(pull), now.pull_seconds, before.pull_seconds);
  pull["direction"] = "rx";
  const auto& is = now.exchange;
  const auto& was = before.exchange;
  Add(wire_bytes_.With(push), is.sent_wire_bytes, was.sent_wire_bytes);
  Add(wire_bytes_.With(pull), is.received_wire_bytes, was.received_wire_bytes);
  Add(payload_bytes_.With(push), is.sent_payload_bytes, was.sent_payload_bytes);
  Add(payload_bytes_.With(pull), is.received_payload_bytes, was.received_payload_bytes);
  Add(retries_.With(labels), is.retries, was.retries);
  shared_streams_.With(labels).Set(static_cast<double>(is.shared_streams));
  before = now;
}

void WorkerMetrics::Update(const std::string& job_id, int32_t rank,
                           const node::v1::StepPhases& phases) {
  const std::pair<const char*, double> now[] = {{"data_wait", phases.data_wait()},
                                                {"forward_backward", phases.forward_backward()},
                                                {"forward", phases.forward()},
                                                {"backward", phases.backward()},
                                                {"local_reduce", phases.local_reduce()},
                                                {"push", phases.push()},
                                                {"barrier_wait", phases.barrier_wait()},
                                                {"pull", phases.pull()},
                                                {"update", phases.update()},
                                                {"evaluate", phases.evaluate()}};
  for (const auto& entry : now) {
    double& before = last_[job_id].phases[entry.first];
    Add(phase_seconds_.With(
            {{"job_id", job_id}, {"rank", absl::StrCat(rank)}, {"phase", entry.first}}),
        entry.second, before);
    before = std::max(before, entry.second);
  }
}

void WorkerMetrics::Retire(const std::string& job_id) {
  last_.erase(job_id);
  registry_.RetireSeries("job_id", job_id);
}

}  // namespace capstan::gpu_worker
