#include "gpu_worker/nvml/nvml.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gpu_worker/nvml/nvml_abi.h"

namespace capstan::gpu_worker {
namespace {

namespace abi = nvml_abi;

// The library's functions. An old library may lack those of the second group.
struct Functions {
  abi::InitFn init;
  abi::ShutdownFn shutdown;
  abi::ErrorStringFn error_string;
  abi::CountFn count;
  abi::HandleFn handle;
  abi::TextFn uuid;
  abi::TextFn name;
  abi::MemoryFn memory;

  abi::DriverVersionFn driver_version;
  abi::PciInfoFn pci_info;
  abi::UtilizationFn utilization;
  abi::TemperatureFn temperature;
  abi::EnergyFn energy;
  abi::PowerFn power;
  abi::ProcessesFn processes;
};

template <typename Function>
bool Find(void* library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, symbol));
  return function != nullptr;
}

// The name of the first required function that is missing, else null.
const char* FindAll(void* library, Functions& f) {
  if (!Find(library, "nvmlInit_v2", f.init)) return "nvmlInit_v2";
  if (!Find(library, "nvmlShutdown", f.shutdown)) return "nvmlShutdown";
  if (!Find(library, "nvmlErrorString", f.error_string)) return "nvmlErrorString";
  if (!Find(library, "nvmlDeviceGetCount_v2", f.count)) return "nvmlDeviceGetCount_v2";
  if (!Find(library, "nvmlDeviceGetHandleByIndex_v2", f.handle)) {
    return "nvmlDeviceGetHandleByIndex_v2";
  }
  if (!Find(library, "nvmlDeviceGetUUID", f.uuid)) return "nvmlDeviceGetUUID";
  if (!Find(library, "nvmlDeviceGetName", f.name)) return "nvmlDeviceGetName";
  if (!Find(library, "nvmlDeviceGetMemoryInfo", f.memory)) return "nvmlDeviceGetMemoryInfo";
  Find(library, "nvmlSystemGetDriverVersion", f.driver_version);
  Find(library, "nvmlDeviceGetPciInfo_v3", f.pci_info);
  Find(library, "nvmlDeviceGetUtilizationRates", f.utilization);
  Find(library, "nvmlDeviceGetTemperature", f.temperature);
  Find(library, "nvmlDeviceGetTotalEnergyConsumption", f.energy);
  Find(library, "nvmlDeviceGetPowerUsage", f.power);
  Find(library, "nvmlDeviceGetComputeRunningProcesses_v3", f.processes);
  return nullptr;
}

// The shared library, closed by the destructor.
struct Library {
  explicit Library(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~Library() {
    if (initialized) functions.shutdown();
    if (handle != nullptr) dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void* const handle;
  Functions functions = {};
  bool initialized = false;
};

struct EnergyIntegral {
  bool started = false;
  absl::Duration at;
  double watts = 0;
  double joules = 0;
};

class LoadedNvml : public Nvml {
 public:
  explicit LoadedNvml(std::unique_ptr<Library> library)
      : library_(std::move(library)), f_(library_->functions) {}

  absl::Status ReadGpus();
  std::vector<GpuSample> Sample(absl::Duration now) override;

 private:
  absl::Status Error(absl::string_view call, abi::Return code) const {
    const char* const text = f_.error_string(code);
    return absl::UnavailableError(
        absl::StrCat(call, ": ", text == nullptr ? "unknown error" : text, " (", code, ")"));
  }
  std::optional<double> Energy(size_t gpu, absl::Duration now);
  std::vector<int64_t> Pids(abi::Device device) const;

  const std::unique_ptr<Library> library_;
  const Functions& f_;
  std::vector<abi::Device> devices_;       // null: NVML gave no handle
  std::vector<EnergyIntegral> integrals_;  // for cards without a counter
};

absl::Status LoadedNvml::ReadGpus() {
  char text[abi::kTextBytes + 1] = {};
  if (f_.driver_version != nullptr && f_.driver_version(text, abi::kDriverTextBytes) == 0) {
    driver_version_ = text;
  }
  unsigned int count = 0;
  if (const abi::Return code = f_.count(&count); code != abi::kSuccess) {
    return Error("nvmlDeviceGetCount_v2", code);
  }
  if (count == 0) {
    return absl::NotFoundError(
        absl::StrCat("the NVIDIA driver ", driver_version_, " reports no GPU"));
  }
  for (unsigned int i = 0; i < count; ++i) {
    GpuInfo gpu;
    gpu.index = static_cast<int>(i);
    abi::Device device = nullptr;
    if (f_.handle(i, &device) != abi::kSuccess) device = nullptr;
    if (device != nullptr) {
      std::fill(std::begin(text), std::end(text), '\0');
      if (f_.uuid(device, text, abi::kTextBytes) == abi::kSuccess) gpu.uuid = text;
      std::fill(std::begin(text), std::end(text), '\0');
      if (f_.name(device, text, abi::kTextBytes) == abi::kSuccess) gpu.model_name = text;
      abi::PciInfo pci = {};
      if (f_.pci_info != nullptr && f_.pci_info(device, &pci) == abi::kSuccess) {
        pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
        gpu.pci_bus_id = pci.bus_id;
      }
    }
    gpus_.push_back(std::move(gpu));
    devices_.push_back(device);
  }
  integrals_.resize(count);
  return absl::OkStatus();
}

std::optional<double> LoadedNvml::Energy(size_t gpu, absl::Duration now) {
  unsigned long long millijoules = 0;  // NOLINT(runtime/int): what NVML writes
  if (f_.energy != nullptr && f_.energy(devices_[gpu], &millijoules) == abi::kSuccess) {
    return static_cast<double>(millijoules) * 1e-3;
  }
  unsigned int milliwatts = 0;
  if (f_.power == nullptr || f_.power(devices_[gpu], &milliwatts) != abi::kSuccess) {
    return std::nullopt;
  }
  EnergyIntegral& integral = integrals_[gpu];
  const double watts = milliwatts * 1e-3;
  if (integral.started && now > integral.at) {
    integral.joules += absl::ToDoubleSeconds(now - integral.at) * 0.5 * (watts + integral.watts);
  }
  integral = {true, now, watts, integral.joules};
  return integral.joules;
}

std::vector<int64_t> LoadedNvml::Pids(abi::Device device) const {
  if (f_.processes == nullptr) return {};
  std::vector<abi::ProcessInfo> infos(64);
  // A process may start between the answer "too small" and the next call, so leave spare room.
  for (int attempt = 0; attempt < 3; ++attempt) {
    unsigned int count = static_cast<unsigned int>(infos.size());
    const abi::Return code = f_.processes(device, &count, infos.data());
    if (code == abi::kInsufficientSize && count <= 65536) {
      infos.resize(count + 64);
      continue;
    }
    if (code != abi::kSuccess) return {};
    std::set<int64_t> pids;  // a process with several contexts appears several times
    for (size_t i = 0; i < std::min<size_t>(count, infos.size()); ++i) pids.insert(infos[i].pid);
    return {pids.begin(), pids.end()};
  }
  return {};
}

std::vector<GpuSample> LoadedNvml::Sample(absl::Duration now) {
  std::vector<GpuSample> samples;
  for (size_t i = 0; i < devices_.size(); ++i) {
    GpuSample sample;
    sample.index = gpus_[i].index;
    const abi::Device device = devices_[i];
    abi::Memory memory = {};
    if (device == nullptr) {
      sample.status = absl::UnavailableError(absl::StrCat("GPU ", i, ": NVML gives no handle"));
    } else if (const abi::Return code = f_.memory(device, &memory);
               code != abi::kSuccess && code != abi::kNotSupported) {
      const absl::Status error = Error("nvmlDeviceGetMemoryInfo", code);
      sample.status = absl::UnavailableError(absl::StrCat("GPU ", i, ": ", error.message()));
    } else {
      if (code == abi::kSuccess) {
        sample.memory_total_bytes = static_cast<int64_t>(memory.total);
        sample.memory_used_bytes = static_cast<int64_t>(memory.used);
      }
      abi::Utilization utilization = {};
      if (f_.utilization != nullptr && f_.utilization(device, &utilization) == abi::kSuccess) {
        sample.utilization_ratio = std::min(1.0, utilization.gpu * 0.01);
      }
      unsigned int celsius = 0;
      if (f_.temperature != nullptr &&
          f_.temperature(device, abi::kTemperatureGpu, &celsius) == abi::kSuccess) {
        sample.temperature_celsius = celsius;
      }
      sample.energy_joules = Energy(i, now);
      sample.pids = Pids(device);
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

}  // namespace

std::string NvmlLibrary() {
  const char* const path = std::getenv("CAPSTAN_NVML_LIBRARY");
  return path != nullptr && path[0] != '\0' ? path : "libnvidia-ml.so.1";
}

absl::StatusOr<std::unique_ptr<Nvml>> Nvml::Open(const std::string& path) {
  auto library = std::make_unique<Library>(path);
  if (library->handle == nullptr) {
    const char* const why = dlerror();
    return absl::UnavailableError(
        absl::StrCat("no NVIDIA driver here: ", why == nullptr ? path : why));
  }
  if (const char* const missing = FindAll(library->handle, library->functions)) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver is too old: ", path, " lacks ", missing));
  }
  if (const abi::Return code = library->functions.init(); code != abi::kSuccess) {
    const char* const why = library->functions.error_string(code);
    return absl::UnavailableError(absl::StrCat(
        "the NVIDIA driver does not answer: nvmlInit_v2: ", why == nullptr ? "unknown error" : why,
        " (", code, ")"));
  }
  library->initialized = true;
  auto nvml = std::make_unique<LoadedNvml>(std::move(library));
  if (absl::Status status = nvml->ReadGpus(); !status.ok()) return status;
  return nvml;
}

std::vector<int> CudaOrder(const std::vector<GpuInfo>& gpus,
                           const std::optional<std::string>& visible) {
  std::vector<int> order;
  if (!visible.has_value()) {
    for (size_t i = 0; i < gpus.size(); ++i) order.push_back(static_cast<int>(i));
    return order;
  }
  for (absl::string_view word : absl::StrSplit(*visible, ',')) {
    word = absl::StripAsciiWhitespace(word);
    int place = -1;
    if (absl::StartsWith(word, "GPU-")) {
      for (size_t i = 0; i < gpus.size(); ++i) {
        if (!absl::StartsWith(gpus[i].uuid, word)) continue;
        place = place < 0 ? static_cast<int>(i) : -2;  // -2: a prefix of several UUIDs
        if (place == -2) break;
      }
    } else if (!absl::SimpleAtoi(word, &place) || place >= static_cast<int>(gpus.size())) {
      place = -1;
    }
    // CUDA sees the entries before the first invalid one, and nothing if the list names one GPU
    // twice.
    if (place < 0) break;
    if (std::find(order.begin(), order.end(), place) != order.end()) return {};
    order.push_back(place);
  }
  return order;
}

}  // namespace capstan::gpu_worker
