// One training step on this machine, kernel by kernel, beside what the machine can do at most.
//
// The roofline (Williams, Waterman & Patterson 2009, doi:10.1145/1498765.1498785): a kernel of F
// operations that moves B bytes takes at least
//
//   limit = max(F / flops_per_second, B / memory_bytes_per_second)
//
// and the larger term is its bound. `reached` is the limit over the measured time. It is above 1
// where tensors stay in a cache, or where a kernel needs fewer multiplications than the definition
// of its operator (Winograd). Pure.
#ifndef CAPSTAN_CLIENT_BENCH_STEP_REPORT_H_
#define CAPSTAN_CLIENT_BENCH_STEP_REPORT_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "gpu_worker/engine/device/device.h"
#include "training/ops/types.h"

namespace capstan::client {

// A part of the step. Times are medians.
struct StepRow {
  std::string name;    // "conv1 to pool1"
  std::string kernel;  // "direct, with pooling"
  double forward_seconds = 0;
  double backward_seconds = 0;
  double flops = 0;  // of both passes, over the batch; a multiply-add is 2
  double bytes = 0;  // moved at least

  double seconds() const { return forward_seconds + backward_seconds; }
};

struct StepReport {
  std::string model;
  training::Shape input;
  int64_t num_classes = 0;       // or outputs, where
  bool numeric_targets = false;  // targets are numbers
  int64_t batch = 0;             // samples, all in one lane
  int threads = 0;
  std::string optimizer;
  engine::DeviceLimits limits;
  std::vector<StepRow> rows;  // in the order of the step; each took some time
  int64_t steps = 0;          // that were measured
  // Of a step as a whole, by the clock: the median, and where 10 % and 90 % of the steps were
  // faster.
  double step_seconds = 0, step_p10_seconds = 0, step_p90_seconds = 0;

  double samples_per_second() const {
    return step_seconds > 0 ? static_cast<double>(batch) / step_seconds : 0;
  }
};

// The two terms of the roofline, in seconds, and the larger one.
struct RowLimit {
  double compute_seconds = 0;
  double memory_seconds = 0;

  bool by_compute() const { return compute_seconds > memory_seconds; }
  double seconds() const { return by_compute() ? compute_seconds : memory_seconds; }
  absl::string_view bound() const { return by_compute() ? "compute" : "memory"; }
};
RowLimit LimitOf(const StepRow& row, const engine::DeviceLimits& limits);

// The sums of all rows. Its limit is the sum of theirs, since they follow each other.
struct StepTotal {
  double forward_seconds = 0, backward_seconds = 0, flops = 0, bytes = 0, limit_seconds = 0;

  double seconds() const { return forward_seconds + backward_seconds; }
};
StepTotal TotalOf(const StepReport& report);

// A line for each row, the total, and what was measured how. `wide`: also how each kernel computes.
// `width`: see TextTable.
std::string StepText(const StepReport& report, bool wide, int width);

// {"model", "input", "num_classes", "batch", "threads", "optimizer", "processor",
// "instruction_set", "peak_flops_per_second", "memory_bytes_per_second", "steps", "step_seconds",
// "step_p10_seconds", "step_p90_seconds", "samples_per_second", "rows": [{"name", "kernel",
// "forward_seconds", "backward_seconds", "share", "flops", "bytes", "flops_per_second", "bound",
// "limit_seconds", "reached"}], "total": {"forward_seconds", "backward_seconds", "flops", "bytes",
// "flops_per_second", "limit_seconds", "reached"}}. The bound is "compute" or "memory".
nlohmann::ordered_json StepJson(const StepReport& report);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_BENCH_STEP_REPORT_H_
