// The CPU as a Device: own kernels, 16 samples side by side (blocked/graph_plan.h).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gpu_worker/engine/device/device.h"

namespace capstan::engine {

// Measured on the LeNets, batch 256: 8 loses a tenth on lenet, 32 gains 4 % there and nothing on lenet_d2l, but
// gives fewer threads something to do. 16 samples also keep their activations in a 1 MiB cache.
inline constexpr int64_t kBlockSamples = 16;
// Descending; the first is kBlockSamples.
inline constexpr std::array<int64_t, 3> kBlockSizes = {16, 8, 4};

struct BlockedMath;  // blocked/math.h

// The loops that a word names: avx512, avx2 or emulated. All of them compute the same bits. InvalidArgument: another
// word; FailedPrecondition: this processor lacks it. Both say what it has.
absl::StatusOr<const BlockedMath*> CpuTarget(absl::string_view word);

struct CpuDeviceOptions {
  std::string name = "cpu";
  bool use_onednn = true;  // false: plain loops, as in a build without oneDNN
  // Chains of the first seven operators by a plan of their own; false: all graphs run in phases.
  bool chain_plan = false;
  // By CpuTarget: all graphs run in phases, by these loops. Null: by the widest that there are.
  const BlockedMath* target = nullptr;
};

std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_
