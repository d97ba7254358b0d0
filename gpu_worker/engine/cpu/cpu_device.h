// The CPU as a Device, with its own kernels for 16 samples side by side (blocked/graph_plan.h).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/device/device.h"

namespace capstan::engine {

struct BlockedMath;  // blocked/math.h

// The loops for a word: avx512, avx2 or emulated. All of them compute the same bits.
// InvalidArgument: another word; FailedPrecondition: this processor lacks them. Both messages list
// what it has.
absl::StatusOr<const BlockedMath*> CpuTarget(absl::string_view word);

struct CpuDeviceOptions {
  std::string name = "cpu";
  // The loops, from CpuTarget. Null: the widest that exist.
  const BlockedMath* target = nullptr;
};

std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_
