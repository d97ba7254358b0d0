// Our own declarations of the entry points of NVML that the metrics need. The library comes with
// the driver, but its header comes with a package that few machines have. Nothing links the
// library.
//
// Names, layouts and numbers are those of NVIDIA's public interface (NVML API reference, driver 510
// and later; the same as in NVIDIA's Python binding nvidia-ml-py 13).
#ifndef CAPSTAN_GPU_WORKER_NVML_NVML_ABI_H_
#define CAPSTAN_GPU_WORKER_NVML_NVML_ABI_H_

namespace capstan::gpu_worker::nvml_abi {

// NOLINTBEGIN(runtime/int): the types of the interface
using Return = int;
using Device = void*;

inline constexpr Return kSuccess = 0;
inline constexpr Return kUninitialized = 1;
inline constexpr Return kInvalidArgument = 2;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNoPermission = 4;
inline constexpr Return kInsufficientSize = 7;
inline constexpr Return kDriverNotLoaded = 9;
inline constexpr Return kGpuIsLost = 15;
inline constexpr Return kVersionMismatch = 18;  // library and kernel module
inline constexpr Return kUnknown = 999;

inline constexpr unsigned int kTemperatureGpu = 0;    // the sensor
inline constexpr unsigned int kTextBytes = 96;        // of a name, a UUID
inline constexpr unsigned int kDriverTextBytes = 80;  // of the driver's version

struct Memory {  // bytes
  unsigned long long total, free, used;
};
struct Utilization {  // percent of the last sample period
  unsigned int gpu, memory;
};
struct PciInfo {
  char legacy_bus_id[16];
  unsigned int domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
struct ProcessInfo {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};
static_assert(sizeof(Memory) == 24 && sizeof(PciInfo) == 68 && sizeof(ProcessInfo) == 24);

using InitFn = Return (*)();      // nvmlInit_v2
using ShutdownFn = Return (*)();  // nvmlShutdown
using ErrorStringFn = const char* (*)(Return);
using DriverVersionFn = Return (*)(char* text, unsigned int bytes);
using CountFn = Return (*)(unsigned int* count);
using HandleFn = Return (*)(unsigned int index, Device* device);
using TextFn = Return (*)(Device device, char* text, unsigned int bytes);  // name, UUID
using PciInfoFn = Return (*)(Device device, PciInfo* info);                // .._v3
using MemoryFn = Return (*)(Device device, Memory* memory);
using UtilizationFn = Return (*)(Device device, Utilization* utilization);
using TemperatureFn = Return (*)(Device device, unsigned int sensor, unsigned int* celsius);
using EnergyFn = Return (*)(Device device, unsigned long long* millijoules);  // since driver load
using PowerFn = Return (*)(Device device, unsigned int* milliwatts);
// `count` in: capacity, out: processes. kInsufficientSize: there are more than the capacity.
using ProcessesFn = Return (*)(Device device, unsigned int* count, ProcessInfo* infos);  // .._v3
// NOLINTEND(runtime/int)

}  // namespace capstan::gpu_worker::nvml_abi

#endif  // CAPSTAN_GPU_WORKER_NVML_NVML_ABI_H_
