// What a task counts for /metrics of its worker service, which holds the HTTP port. The task sends
// all of it every second; both sides are the same binary.
//
// Threads: a value.
#ifndef CAPSTAN_GPU_WORKER_TASK_COUNTERS_H_
#define CAPSTAN_GPU_WORKER_TASK_COUNTERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "param_store/client/exchange.h"

namespace capstan::gpu_worker {

// A histogram of seconds by `bounds` of the metrics registry; one more bucket than bounds.
struct SecondsHistogram {
  std::vector<int64_t> buckets;
  double sum = 0;

  void Observe(double seconds, const std::vector<double>& bounds);
};

// Since the start of the task.
struct TaskCounters {
  int64_t steps = 0;
  int64_t samples = 0;
  SecondsHistogram step_seconds;
  SecondsHistogram barrier_seconds;
  // A step's frames given to gRPC until it took the last; its weights from the first frame to the
  // last. Empty where the task is its own store.
  SecondsHistogram push_seconds;
  SecondsHistogram pull_seconds;
  SecondsHistogram reduce_seconds;  // sums of a step's lanes on the host
  int64_t reduce_bytes = 0;
  int64_t read_bytes = 0;      // of the data set
  int64_t queued_batches = 0;  // read ahead, just now
  double cpu_seconds = 0;      // of this process, since its start
  int64_t resident_bytes = 0;  // of this process, just now
  param_store::client::ExchangeStats exchange;
  std::vector<int64_t> planned_bytes;  // by device of the task: what its plan holds
};

std::string EncodeCounters(const TaskCounters& counters);
// InvalidArgument: not what EncodeCounters gives.
absl::StatusOr<TaskCounters> DecodeCounters(absl::string_view bytes);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_COUNTERS_H_
