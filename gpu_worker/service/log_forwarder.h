// Forwards log lines of a job's task to the coordinator, in batches and at a limited rate. Excess
// lines are dropped and counted.
//
// Threads: none of its own; runs on the owner's strand.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_LOG_FORWARDER_H_
#define CAPSTAN_GPU_WORKER_SERVICE_LOG_FORWARDER_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

struct LogLimits {
  double lines_per_second = 100;
  double burst_lines = 500;
  int max_batch_lines = 200;
  size_t max_line_bytes = 8 * 1024;
};

class LogForwarder {
 public:
  LogForwarder(std::string job_id, int32_t rank, std::string host, LogLimits limits = {});

  // `now` is monotonic; `time` is the line's time. The level is that of the line's "level=", else
  // "warning", because a library or the system wrote the line.
  void Add(absl::string_view line, absl::Duration now, absl::Time time);
  // The lines so far, or nullopt if there are none and none was dropped.
  std::optional<node::v1::LogBatch> Take();
  int64_t line_count() const { return batch_.lines_size(); }
  int64_t dropped() const { return batch_.dropped(); }

 private:
  const std::string job_id_;
  const int32_t rank_;
  const std::string host_;
  const LogLimits limits_;
  double tokens_;
  absl::Duration filled_at_ = absl::ZeroDuration();
  node::v1::LogBatch batch_;
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_LOG_FORWARDER_H_
