#include "gpu_worker/nvml/gpu_monitor.h"

#include <cstdlib>
#include <optional>
#include <thread>
#include <utility>

#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/sync/mutex.h"

namespace capstan::gpu_worker {
namespace {

constexpr absl::Duration kDriverPatience = absl::Seconds(2);

std::optional<std::string> VisibleDevices() {
  const char* const value = std::getenv("CUDA_VISIBLE_DEVICES");
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace

struct GpuMonitor::State {
  State(services::MetricsRegistry& registry, std::unique_ptr<Nvml> library,
        GpuMonitorOptions monitor_options)
      : options(std::move(monitor_options)),
        nvml(std::move(library)),
        cuda_order(CudaOrder(nvml->List(), VisibleDevices())),
        metrics(registry, nvml->List(), cuda_order) {}

  void Take(const std::vector<GpuSample>& samples, absl::Duration now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const GpuMonitorOptions options;
  const std::unique_ptr<Nvml> nvml;
  const std::vector<int> cuda_order;
  GpuMetrics metrics;  // no longer used once `stopped` is set and `in_driver` is not
  std::thread thread;

  mutable Mutex mu;
  mutable CondVar changed;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  bool in_driver ABSL_GUARDED_BY(mu) = false;
  bool done ABSL_GUARDED_BY(mu) = false;
  int64_t samples ABSL_GUARDED_BY(mu) = 0;
  std::vector<GpuReading> readings ABSL_GUARDED_BY(mu);  // by NVML's index
  absl::Duration read_at ABSL_GUARDED_BY(mu);
};

absl::StatusOr<std::unique_ptr<GpuMonitor>> GpuMonitor::Start(services::MetricsRegistry& registry,
                                                              GpuMonitorOptions options) {
  auto nvml = Nvml::Open(options.library);
  if (!nvml.ok()) return nvml.status();
  auto state = std::make_shared<State>(registry, *std::move(nvml), std::move(options));
  std::unique_ptr<GpuMonitor> monitor(new GpuMonitor(state));
  state->thread = std::thread([state] { Run(*state); });
  return monitor;
}

GpuMonitor::GpuMonitor(std::shared_ptr<State> state) : state_(std::move(state)) {}

void GpuMonitor::State::Take(const std::vector<GpuSample>& samples, absl::Duration now) {
  std::vector<GpuReading> taken;
  for (size_t i = 0; i < samples.size(); ++i) {
    GpuReading reading{samples[i], std::nullopt};
    if (i < readings.size()) {
      const std::optional<double>& before = readings[i].sample.energy_joules;
      const std::optional<double>& joules = samples[i].energy_joules;
      if (before.has_value() && joules.has_value() && *joules >= *before && now > read_at) {
        reading.power_watts = (*joules - *before) / absl::ToDoubleSeconds(now - read_at);
      }
    }
    taken.push_back(std::move(reading));
  }
  readings = std::move(taken);
  read_at = now;
}

void GpuMonitor::Run(State& state) {
  std::vector<bool> lost(state.nvml->List().size(), false);
  for (;;) {
    {
      MutexLock lock(state.mu);
      if (state.stopped) break;
      state.in_driver = true;
    }
    const absl::Duration read_at = MonotonicNow();
    const std::vector<GpuSample> samples = state.nvml->Sample(read_at);
    {
      MutexLock lock(state.mu);
      state.in_driver = false;
      if (state.stopped) break;
    }
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].status.ok() == lost[i]) {
        lost[i] = !lost[i];
        services::Log(lost[i] ? services::kWarning : services::kInfo,
                      lost[i] ? "gpu_lost" : "gpu_found")
            .Kv("gpu", samples[i].index)
            .Kv("status", samples[i].status);
      }
    }
    state.metrics.Update(samples,
                         state.options.uses ? state.options.uses() : std::vector<GpuUse>());
    const absl::Duration next = MonotonicNow() + state.options.period;
    MutexLock lock(state.mu);
    state.Take(samples, read_at);
    ++state.samples;
    state.changed.NotifyAll();
    for (absl::Duration now = MonotonicNow(); !state.stopped && now < next; now = MonotonicNow()) {
      state.changed.WaitWithTimeout(state.mu, next - now);
    }
  }
  MutexLock lock(state.mu);
  state.done = true;
  state.changed.NotifyAll();
}

GpuMonitor::~GpuMonitor() {
  State& state = *state_;
  bool done = false;
  {
    const absl::Duration end = MonotonicNow() + kDriverPatience;
    MutexLock lock(state.mu);
    state.stopped = true;
    state.changed.NotifyAll();
    // Only the driver may be abandoned. Outside it the thread uses the registry, so it must be
    // awaited.
    while (!state.done && (MonotonicNow() < end || !state.in_driver)) {
      state.changed.WaitWithTimeout(state.mu, absl::Milliseconds(100));
    }
    done = state.done;
  }
  if (done) {
    state.thread.join();
  } else {
    services::Log(services::kWarning, "gpu_driver_hangs");
    state.thread.detach();
  }
}

std::vector<GpuInfo> GpuMonitor::VisibleGpus() const {
  std::vector<GpuInfo> gpus;
  for (const int place : state_->cuda_order) gpus.push_back(state_->nvml->List()[place]);
  return gpus;
}

std::vector<GpuReading> GpuMonitor::LastReadings() const {
  MutexLock lock(state_->mu);
  std::vector<GpuReading> readings;
  for (const int place : state_->cuda_order) {
    if (static_cast<size_t>(place) < state_->readings.size()) {
      readings.push_back(state_->readings[static_cast<size_t>(place)]);
    }
  }
  return readings;
}

const std::string& GpuMonitor::driver_version() const { return state_->nvml->driver_version(); }

bool GpuMonitor::WaitForSamples(int64_t count, absl::Duration limit) const {
  const absl::Duration end = MonotonicNow() + limit;
  MutexLock lock(state_->mu);
  for (absl::Duration now = MonotonicNow(); state_->samples < count && now < end;
       now = MonotonicNow()) {
    state_->changed.WaitWithTimeout(state_->mu, end - now);
  }
  return state_->samples >= count;
}

}  // namespace capstan::gpu_worker
