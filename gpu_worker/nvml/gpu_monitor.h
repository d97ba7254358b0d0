// Keeps the GPU metrics of a worker service fresh: one thread asks NVML once a second. A scrape
// never waits for the driver, which is known to hang with a card that fell off its bus.
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
  // Who trains on which device now; empty: nobody. Called by the monitor's thread, no lock held.
  std::function<std::vector<GpuUse>()> uses;
};

struct GpuReading {
  GpuSample sample;
  std::optional<double> power_watts;  // by the energy since the sample before
};

class GpuMonitor {
 public:
  // Errors of Nvml::Open, whose message is one sentence for the log. Borrows the registry.
  static absl::StatusOr<std::unique_ptr<GpuMonitor>> Start(services::MetricsRegistry& registry,
                                                           GpuMonitorOptions options);
  // Ends the thread; one that the driver does not give back within 2 s is left to it.
  ~GpuMonitor();
  GpuMonitor(const GpuMonitor&) = delete;
  GpuMonitor& operator=(const GpuMonitor&) = delete;

  // Those that CUDA programs of this process's environment see, in CUDA's order.
  std::vector<GpuInfo> VisibleGpus() const;
  // The newest of each of these; empty before the first.
  std::vector<GpuReading> LastReadings() const;
  const std::string& driver_version() const;
  GpuMetrics& metrics();

  // False: fewer than `count` samples were taken since the start after `limit`.
  bool WaitForSamples(int64_t count, absl::Duration limit) const;

 private:
  struct State;
  explicit GpuMonitor(std::shared_ptr<State> state);
  static void Run(State& state);
  const std::shared_ptr<State> state_;  // the thread's too: whoever ends later frees it
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_NVML_GPU_MONITOR_H_
