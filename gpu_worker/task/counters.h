// The counts of a task for /metrics of its worker service, which has the HTTP port. The task sends
// all of them every second. Both sides are the same binary.
//
// Threads: a value.
#ifndef CAPSTAN_GPU_WORKER_TASK_COUNTERS_H_
#define CAPSTAN_GPU_WORKER_TASK_COUNTERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "exchange/exchange.h"

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
  // push_seconds: from the first of a step's frames given to gRPC until it took the last.
  // pull_seconds: from the first to the last frame of the weights. Empty if the task stores its own
  // weights.
  SecondsHistogram push_seconds;
  SecondsHistogram pull_seconds;
  SecondsHistogram reduce_seconds;  // sums of a step's lanes on the host
  int64_t reduce_bytes = 0;
  int64_t read_bytes = 0;      // from the data set
  int64_t queued_batches = 0;  // read ahead, at present
  double cpu_seconds = 0;      // of this process, since its start
  int64_t resident_bytes = 0;  // of this process, at present
  exchange::ExchangeStats exchange;
  std::vector<int64_t> planned_bytes;  // memory of the plan, by device of the task
};

std::string EncodeCounters(const TaskCounters& counters);
// InvalidArgument: not a result of EncodeCounters.
absl::StatusOr<TaskCounters> DecodeCounters(absl::string_view bytes);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_COUNTERS_H_
