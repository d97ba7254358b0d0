// The GPU families of docs/metrics.md, from samples of NVML and reports of tasks.
//
//   capstan_gpu_info                           one series per GPU and user; job_id and rank are
//                                              empty while nothing trains on it
//   capstan_gpu_memory_total_bytes, _used_bytes, capstan_gpu_utilization_ratio,
//   capstan_gpu_temperature_celsius, capstan_gpu_energy_joules_total
//                                              from the driver; absent if it gives no value
//   capstan_gpu_memory_allocated_bytes, _peak_bytes
//                                              from the tasks
//
// Label `gpu` is NVML's index, as in dcgm-exporter, for people. Join on `UUID`. GPUs that
// CUDA_VISIBLE_DEVICES hides are not exported, because two workers on one host share the cards.
//
// Thread-safe.
#ifndef CAPSTAN_GPU_WORKER_NVML_GPU_METRICS_H_
#define CAPSTAN_GPU_WORKER_NVML_GPU_METRICS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "gpu_worker/nvml/nvml.h"
#include "services/metrics/registry.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {

// A task trains on "cuda:<device>". A device may have several users, and a user several devices.
struct GpuUse {
  int device = 0;
  std::string job_id;
  int32_t rank = 0;
  int64_t allocated_bytes = 0;  // what the task's allocator holds there; 0: unknown
};

// The index in "cuda:<index>", 0 for "cuda"; nullopt for any other device.
std::optional<int> CudaIndex(absl::string_view device_name);

class GpuMetrics {
 public:
  // `cuda_order` is the result of CudaOrder. Borrows the registry.
  GpuMetrics(services::MetricsRegistry& registry, std::vector<GpuInfo> gpus,
             std::vector<int> cuda_order);

  // `samples`: from Nvml::Sample. `uses`: all current uses; devices that do not exist are ignored.
  // An outdated series of capstan_gpu_info disappears at once, because two for one UUID would break
  // every join on it. So does an outdated series of allocated memory.
  void Update(const std::vector<GpuSample>& samples, const std::vector<GpuUse>& uses)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Sets a GPU's series, or drops it if there is no value.
  static void SetOrDrop(const services::GaugeFamily& family, const prometheus::Labels& labels,
                        const std::optional<double>& value);
  void UpdateInfo(const std::vector<GpuUse>& uses) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateMemory(const std::vector<GpuUse>& uses) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UpdateEnergy(const GpuSample& sample, const prometheus::Labels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Visible(int gpu) const;
  prometheus::Labels CardLabels(int gpu) const;

  const std::vector<GpuInfo> gpus_;
  const std::vector<int> cuda_order_;
  const services::GaugeFamily info_;
  const services::GaugeFamily memory_total_;
  const services::GaugeFamily memory_used_;
  const services::GaugeFamily memory_allocated_;
  const services::GaugeFamily memory_peak_;
  const services::GaugeFamily utilization_;
  const services::GaugeFamily temperature_;
  const services::CounterFamily energy_;

  mutable Mutex mu_;
  std::vector<prometheus::Labels> info_series_ ABSL_GUARDED_BY(mu_);
  std::map<prometheus::Labels, double> peaks_ ABSL_GUARDED_BY(mu_);  // of the memory series
  std::vector<double> joules_ ABSL_GUARDED_BY(mu_);  // by GPU: the driver's last value
};

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_NVML_GPU_METRICS_H_
