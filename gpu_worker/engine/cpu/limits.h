// What the processor can do at most, to compare kernels with.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_LIMITS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_LIMITS_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/cpu/blocked/math.h"
#include "gpu_worker/engine/device/device.h"

namespace capstan::engine {

// Measures with the instruction set of `math` and `threads` threads, 1 to 1024. Each figure is the
// best of several tries, since other work on the machine only makes a try slower. Memory: 256 MiB
// are copied to another 256 MiB, in parts that all threads share. A last-level cache that holds much of
// them makes the figure larger than that of the memory behind it.
//
// `emulated`: the kernels' multiply-adds are calls of the C library there, and the limit is that of
// a multiplication and an addition. InvalidArgument: threads. ResourceExhausted: no memory.
absl::StatusOr<DeviceLimits> MeasureCpuLimits(const BlockedMath& math, int threads);

// The value of the first line "model name : VALUE" of /proc/cpuinfo. Empty: there is none, or it
// is empty.
std::string ProcessorName(absl::string_view cpuinfo);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_LIMITS_H_
