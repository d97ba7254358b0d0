// The GPUs of this host as the driver sees them: names, memory, load, temperature, energy.
//
// NVML (libnvidia-ml.so.1) is opened at run time and makes no CUDA context, so a process that reads
// it uses no GPU memory. If NVML is absent, one sentence says so and nothing else changes.
//
// A value that a card does not give is absent, never 0. Energy is the card's own counter (Volta and
// later). For a card without a counter, power is integrated over the calls of Sample, by
// trapezoids.
#ifndef CAPSTAN_GPU_WORKER_NVML_NVML_H_
#define CAPSTAN_GPU_WORKER_NVML_NVML_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace capstan::gpu_worker {

struct GpuInfo {
  int index = 0;           // NVML's: by PCI bus, whatever CUDA_VISIBLE_DEVICES says
  std::string uuid;        // "GPU-..."
  std::string pci_bus_id;  // "00000000:1B:00.0"
  std::string model_name;  // "NVIDIA H200"
};

struct GpuSample {
  int index = 0;
  // Not OK: the card does not answer at all (lost, no permission). The values are then absent.
  absl::Status status;
  std::optional<int64_t> memory_total_bytes;
  std::optional<int64_t> memory_used_bytes;  // of all processes and the driver
  std::optional<double> utilization_ratio;   // 0 to 1: share of time that a kernel was running
  std::optional<double> temperature_celsius;
  std::optional<double> energy_joules;  // falls only after a reload of the driver
  std::vector<int64_t> pids;            // processes with a compute context, ascending
};

// The library to open: $CAPSTAN_NVML_LIBRARY if that is set, else "libnvidia-ml.so.1".
std::string NvmlLibrary();

// Threads: one call at a time.
class Nvml {
 public:
  // Unavailable: the library is missing or too old, or the driver does not answer. NotFound: no
  // GPU. The message is one sentence for people.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open(const std::string& library = NvmlLibrary());
  virtual ~Nvml() = default;
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  // "580.95.05".
  const std::string& driver_version() const { return driver_version_; }
  // Fixed at Open, by index.
  const std::vector<GpuInfo>& List() const { return gpus_; }
  // One entry per GPU of List, in its order. `now` is monotonic, for the integral of power. May
  // block as long as the driver does.
  virtual std::vector<GpuSample> Sample(absl::Duration now) = 0;

 protected:
  Nvml() = default;
  std::string driver_version_;
  std::vector<GpuInfo> gpus_;
};

// The GPUs that CUDA programs in this environment see, in CUDA's order: element i is the index in
// `gpus` of "cuda:<i>". `visible` is the value of CUDA_VISIBLE_DEVICES, or nullopt if it is not
// set: indices, or beginnings of UUIDs. CUDA stops at the first invalid one. CUDA orders by PCI
// bus, as NVML does, only with CUDA_DEVICE_ORDER=PCI_BUS_ID or if all cards are of the same kind.
std::vector<int> CudaOrder(const std::vector<GpuInfo>& gpus,
                           const std::optional<std::string>& visible);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_NVML_NVML_H_
