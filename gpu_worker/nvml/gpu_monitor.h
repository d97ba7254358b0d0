// Updates the GPU metrics of a worker service: one thread asks NVML once a second. A scrape never
// waits for the driver, which is known to hang when a card has fallen off its bus.
//
// Thread-safe.
#ifndef CAPSTAN_GPU_WORKER_NVML_GPU_MONITOR_H_
#define CAPSTAN_GPU_WORKER_NVML_GPU_MONITOR_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "gpu_worker/nvml/gpu_metrics.h"
#include "gpu_worker/nvml/nvml.h"
#include "services/metrics/registry.h"

namespace capstan::gpu_worker {

struct GpuMonitorOptions {
  std::string library = NvmlLibrary();
  absl::Duration period = absl::Seconds(1);
  // Which task trains on which device now; may be empty. Called by the monitor's thread without a
  // lock held.
  std::function<std::vector<GpuUse>()> uses;
};

struct GpuReading {
  GpuSample sample;
  std::optional<double> power_watts;  // from the energy since the previous sample
};

class GpuMonitor {
 public:
  // Returns the errors of Nvml::Open, whose message is one sentence for the log. Borrows the
  // registry.
  static absl::StatusOr<std::unique_ptr<GpuMonitor>> Start(services::MetricsRegistry& registry,
                                                           GpuMonitorOptions options);
  // Ends the thread. If it hangs in the driver for 2 s, it is left behind.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // The GPUs that CUDA programs in this process's environment see, in CUDA's order.
  std::vector<GpuInfo> VisibleGpus() const;
  // The newest reading of each of these; empty before the first.
  std::vector<GpuReading> LastReadings() const;
  const std::string& driver_version() const;

  // False: after `limit`, fewer than `count` samples had been taken since the start.
  bool WaitForSamples(int64_t count, absl::Duration limit) const;

 private:
  struct State;
  explicit GpuMonitor(std::shared_ptr<State> state);
  static void Run(State& state);
  const std::shared_ptr<State> state_;  // shared with the thread; the last owner frees it
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_NVML_GPU_MONITOR_H_
