// A stand-in for libnvidia-ml.so.1, with which GPU metrics are tested on machines without a GPU.
//
// $CAPSTAN_FAKE_NVML names a text file. It is read again at every call, so a test changes the world
// by writing the file again:
//
//   # a comment
//   driver 580.95.05
//   init DRIVER_NOT_LOADED
//   gpu uuid=GPU-1 name=NVIDIA_H200 bus=00000000:1B:00.0 total=1000 used=10 util=50 temp=41
//   gpu uuid=GPU-2 energy=NOT_SUPPORTED power=300000 pids=12,34 memory=GPU_IS_LOST
//
// Each GPU has one line. `_` in a name stands for a space. Energy is in mJ, power in mW, total and
// used in bytes, util in percent. Instead of a value there may be one of the errors below. A
// missing value is NOT_SUPPORTED. If there is no file: Uninitialized.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "gpu_worker/nvml/nvml_abi.h"

namespace {

namespace abi = capstan::gpu_worker::nvml_abi;
using abi::Device;
using abi::Return;

struct ErrorName {
  const char* name;
  Return code;
  const char* text;  // as in nvmlErrorString
};
constexpr ErrorName kErrors[] = {
    {"SUCCESS", abi::kSuccess, "Success"},
    {"UNINITIALIZED", abi::kUninitialized, "Uninitialized"},
    {"INVALID_ARGUMENT", abi::kInvalidArgument, "Invalid Argument"},
    {"NOT_SUPPORTED", abi::kNotSupported, "Not Supported"},
    {"NO_PERMISSION", abi::kNoPermission, "Insufficient Permissions"},
    {"INSUFFICIENT_SIZE", abi::kInsufficientSize, "Insufficient Size"},
    {"DRIVER_NOT_LOADED", abi::kDriverNotLoaded, "Driver Not Loaded"},
    {"GPU_IS_LOST", abi::kGpuIsLost, "GPU is lost"},
    {"VERSION_MISMATCH", abi::kVersionMismatch, "Driver/library version mismatch"},
    {"UNKNOWN", abi::kUnknown, "Unknown Error"},
};

using Values = std::map<std::string, std::string>;

struct World {
  bool found = false;
  std::string init = "SUCCESS";
  std::string driver = "0.0";
  std::vector<Values> gpus;
};

Return ErrorCode(const std::string& name) {
  for (const ErrorName& error : kErrors) {
    if (name == error.name) return error.code;
  }
  return abi::kUnknown;
}

World ReadWorld() {
  World world;
  const char* const path = std::getenv("CAPSTAN_FAKE_NVML");
  std::ifstream file(path == nullptr ? "" : path);
  world.found = file.is_open();
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string kind, word;
    words >> kind;
    if (kind == "init") words >> world.init;
    if (kind == "driver") words >> world.driver;
    if (kind != "gpu") continue;
    Values values;
    while (words >> word) {
      const size_t equals = word.find('=');
      values[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
    }
    world.gpus.push_back(values);
  }
  return world;
}

// Gets the text of a value. kNotSupported: there is none. Other codes: the file names that error.
Return Text(Device device, const char* key, std::string& text) {
  const World world = ReadWorld();
  const size_t index = reinterpret_cast<uintptr_t>(device) - 1;
  if (index >= world.gpus.size()) return abi::kGpuIsLost;  // removed from the file meanwhile
  const auto it = world.gpus[index].find(key);
  if (it == world.gpus[index].end()) return abi::kNotSupported;
  for (const ErrorName& error : kErrors) {
    if (it->second == error.name) return error.code;
  }
  text = it->second;
  return abi::kSuccess;
}

template <typename T>
Return Number(Device device, const char* key, T* value) {
  std::string text;
  const Return code = Text(device, key, text);
  if (code == abi::kSuccess) *value = static_cast<T>(std::strtoull(text.c_str(), nullptr, 10));
  return code;
}

Return CopyText(const std::string& text, char* out, unsigned int bytes) {
  if (text.size() + 1 > bytes) return abi::kInsufficientSize;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return abi::kSuccess;
}

}  // namespace

#define CAPSTAN_EXPORT extern "C" __attribute__((visibility("default")))

CAPSTAN_EXPORT Return nvmlInit_v2() {
  const World world = ReadWorld();
  return world.found ? ErrorCode(world.init) : abi::kUninitialized;
}
CAPSTAN_EXPORT Return nvmlShutdown() { return abi::kSuccess; }

CAPSTAN_EXPORT const char* nvmlErrorString(Return code) {
  for (const ErrorName& error : kErrors) {
    if (code == error.code) return error.text;
  }
  return "Unknown Error";
}

CAPSTAN_EXPORT Return nvmlSystemGetDriverVersion(char* text, unsigned int bytes) {
  return CopyText(ReadWorld().driver, text, bytes);
}

CAPSTAN_EXPORT Return nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = static_cast<unsigned int>(ReadWorld().gpus.size());
  return abi::kSuccess;
}

CAPSTAN_EXPORT Return nvmlDeviceGetHandleByIndex_v2(unsigned int index, Device* device) {
  if (index >= ReadWorld().gpus.size()) return abi::kInvalidArgument;
  *device = reinterpret_cast<Device>(static_cast<uintptr_t>(index) + 1);
  return abi::kSuccess;
}

CAPSTAN_EXPORT Return nvmlDeviceGetUUID(Device device, char* text, unsigned int bytes) {
  std::string value;
  const Return code = Text(device, "uuid", value);
  return code == abi::kSuccess ? CopyText(value, text, bytes) : code;
}

CAPSTAN_EXPORT Return nvmlDeviceGetName(Device device, char* text, unsigned int bytes) {
  std::string value;
  const Return code = Text(device, "name", value);
  for (char& c : value) c = c == '_' ? ' ' : c;
  return code == abi::kSuccess ? CopyText(value, text, bytes) : code;
}

CAPSTAN_EXPORT Return nvmlDeviceGetPciInfo_v3(Device device, abi::PciInfo* info) {
  *info = {};
  std::string value;
  const Return code = Text(device, "bus", value);
  return code == abi::kSuccess ? CopyText(value, info->bus_id, sizeof(info->bus_id)) : code;
}

CAPSTAN_EXPORT Return nvmlDeviceGetMemoryInfo(Device device, abi::Memory* memory) {
  std::string error;
  if (const Return code = Text(device, "memory", error); code != abi::kNotSupported) return code;
  if (const Return code = Number(device, "total", &memory->total)) return code;
  if (const Return code = Number(device, "used", &memory->used)) return code;
  memory->free = memory->total - memory->used;
  return abi::kSuccess;
}

CAPSTAN_EXPORT Return nvmlDeviceGetUtilizationRates(Device device, abi::Utilization* utilization) {
  utilization->memory = 0;
  return Number(device, "util", &utilization->gpu);
}

CAPSTAN_EXPORT Return nvmlDeviceGetTemperature(Device device, unsigned int sensor,
                                               unsigned int* celsius) {
  if (sensor != abi::kTemperatureGpu) return abi::kInvalidArgument;
  return Number(device, "temp", celsius);
}

// NOLINTNEXTLINE(runtime/int): the type of the interface
CAPSTAN_EXPORT Return nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long* mj) {
  return Number(device, "energy", mj);
}

CAPSTAN_EXPORT Return nvmlDeviceGetPowerUsage(Device device, unsigned int* milliwatts) {
  return Number(device, "power", milliwatts);
}

CAPSTAN_EXPORT Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned int* count,
                                                              abi::ProcessInfo* infos) {
  std::string text;
  if (const Return code = Text(device, "pids", text)) return code;
  std::vector<abi::ProcessInfo> found;
  std::istringstream words(text);
  std::string word;
  while (std::getline(words, word, ',')) {
    found.push_back({static_cast<unsigned int>(std::atoi(word.c_str())), 1 << 20, ~0u, ~0u});
  }
  const unsigned int room = infos == nullptr ? 0 : *count;
  *count = static_cast<unsigned int>(found.size());
  if (found.size() > room) return abi::kInsufficientSize;
  for (size_t i = 0; i < found.size(); ++i) infos[i] = found[i];
  return abi::kSuccess;
}
