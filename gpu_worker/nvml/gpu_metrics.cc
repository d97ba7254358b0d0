#include "gpu_worker/nvml/gpu_metrics.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace capstan::gpu_worker {

std::optional<int> CudaIndex(absl::string_view device_name) {
  if (!absl::ConsumePrefix(&device_name, "cuda")) return std::nullopt;
  if (device_name.empty()) return 0;
  int index = 0;
  if (!absl::ConsumePrefix(&device_name, ":") || device_name.size() > 4 ||
      device_name.find_first_not_of("0123456789") != absl::string_view::npos ||
      !absl::SimpleAtoi(device_name, &index)) {
    return std::nullopt;
  }
  return index;
}

GpuMetrics::GpuMetrics(services::MetricsRegistry& registry, std::vector<GpuInfo> gpus,
                       std::vector<int> cuda_order)
    : gpus_(std::move(gpus)),
      cuda_order_(std::move(cuda_order)),
      info_(registry.Gauge("capstan_gpu_info", "Maps a GPU to the job using it, value is always 1.",
                           {"gpu", "UUID", "pci_bus_id", "model_name", "job_id", "rank"})),
      memory_total_(
          registry.Gauge("capstan_gpu_memory_total_bytes", "Device memory size.", {"gpu", "UUID"})),
      memory_used_(registry.Gauge("capstan_gpu_memory_used_bytes",
                                  "Device memory in use by all processes.", {"gpu", "UUID"})),
      memory_allocated_(registry.Gauge("capstan_gpu_memory_allocated_bytes",
                                       "Device memory handed out by the Capstan allocator.",
                                       {"gpu", "UUID", "job_id", "rank"})),
      memory_peak_(registry.Gauge("capstan_gpu_memory_peak_bytes",
                                  "Largest value of allocated bytes since the job started.",
                                  {"gpu", "UUID", "job_id", "rank"})),
      utilization_(registry.Gauge("capstan_gpu_utilization_ratio",
                                  "Share of time a kernel was running, 0 to 1.", {"gpu", "UUID"})),
      temperature_(
          registry.Gauge("capstan_gpu_temperature_celsius", "GPU temperature.", {"gpu", "UUID"})),
      energy_(registry.Counter("capstan_gpu_energy_joules_total", "Energy used by the GPU.",
                               {"gpu", "UUID"})),
      joules_(gpus_.size(), 0) {}

bool GpuMetrics::Visible(int gpu) const {
  return std::find(cuda_order_.begin(), cuda_order_.end(), gpu) != cuda_order_.end();
}

prometheus::Labels GpuMetrics::CardLabels(int gpu) const {
  return {{"gpu", absl::StrCat(gpus_[gpu].index)}, {"UUID", gpus_[gpu].uuid}};
}

void GpuMetrics::SetOrDrop(const services::GaugeFamily& family, const prometheus::Labels& labels,
                           const std::optional<double>& value) {
  if (value.has_value()) {
    family.With(labels).Set(*value);
  } else {
    family.Drop(labels);
  }
}

void GpuMetrics::UpdateEnergy(const GpuSample& sample, const prometheus::Labels& labels) {
  if (!sample.energy_joules.has_value()) return;  // the counter keeps its value
  double& before = joules_[sample.index];
  const double now = *sample.energy_joules;
  // The driver's counter falls after a reload of the driver. Its new value was then used since.
  energy_.With(labels).Increment(now >= before ? now - before : now);
  before = now;
}

void GpuMetrics::UpdateInfo(const std::vector<GpuUse>& uses) {
  std::vector<prometheus::Labels> series;
  for (const int gpu : cuda_order_) {
    prometheus::Labels labels = CardLabels(gpu);
    labels["pci_bus_id"] = gpus_[gpu].pci_bus_id;
    labels["model_name"] = gpus_[gpu].model_name;
    bool used = false;
    for (const GpuUse& use : uses) {
      if (use.device < 0 || use.device >= static_cast<int>(cuda_order_.size()) ||
          cuda_order_[use.device] != gpu) {
        continue;
      }
      labels["job_id"] = use.job_id;
      labels["rank"] = absl::StrCat(use.rank);
      series.push_back(labels);
      used = true;
    }
    if (used) continue;
    labels["job_id"] = "";
    labels["rank"] = "";
    series.push_back(labels);
  }
  for (const prometheus::Labels& old : info_series_) {
    if (std::find(series.begin(), series.end(), old) == series.end()) info_.Drop(old);
  }
  for (const prometheus::Labels& labels : series) info_.With(labels).Set(1);
  info_series_ = std::move(series);
}

void GpuMetrics::Update(const std::vector<GpuSample>& samples, const std::vector<GpuUse>& uses) {
  MutexLock lock(mu_);
  for (const GpuSample& sample : samples) {
    if (sample.index < 0 || sample.index >= static_cast<int>(gpus_.size()) ||
        !Visible(sample.index)) {
      continue;
    }
    const prometheus::Labels labels = CardLabels(sample.index);
    SetOrDrop(memory_total_, labels, sample.memory_total_bytes);
    SetOrDrop(memory_used_, labels, sample.memory_used_bytes);
    SetOrDrop(utilization_, labels, sample.utilization_ratio);
    SetOrDrop(temperature_, labels, sample.temperature_celsius);
    UpdateEnergy(sample, labels);
  }
  UpdateInfo(uses);
  UpdateMemory(uses);
}

void GpuMetrics::UpdateMemory(const std::vector<GpuUse>& uses) {
  std::map<prometheus::Labels, double> peaks;
  for (const GpuUse& use : uses) {
    if (use.device < 0 || use.device >= static_cast<int>(cuda_order_.size()) ||
        use.allocated_bytes <= 0) {
      continue;
    }
    prometheus::Labels labels = CardLabels(cuda_order_[use.device]);
    labels["job_id"] = use.job_id;
    labels["rank"] = absl::StrCat(use.rank);
    const auto known = peaks_.find(labels);
    const double now = static_cast<double>(use.allocated_bytes);
    const double peak = std::max(now, known == peaks_.end() ? 0 : known->second);
    memory_allocated_.With(labels).Set(now);
    memory_peak_.With(labels).Set(peak);
    peaks[labels] = peak;
  }
  for (const auto& entry : peaks_) {
    if (peaks.count(entry.first) > 0) continue;
    memory_allocated_.Drop(entry.first);
    memory_peak_.Drop(entry.first);
  }
  peaks_ = std::move(peaks);
}

}  // namespace capstan::gpu_worker
