// The CPU as a Device: oneDNN primitives and own kernels, one thread per block of samples (rule
// R5).
//
// A lane is cut into blocks of kBlockSamples; what is left goes into the smallest of kBlockSizes
// that holds it, padded with zeros whose loss does not count. Each block runs on one thread through
// the whole net, and the gradients of the blocks are added in the order of the blocks, so the bits
// know nothing of threads.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "gpu_worker/engine/device/device.h"

namespace capstan::engine {

// Measured on the LeNets, batch 256: 8 loses a tenth on lenet, 32 gains 4 % there and nothing on lenet_d2l, but
// gives fewer threads something to do. 16 samples also keep their activations in a 1 MiB cache.
inline constexpr int64_t kBlockSamples = 16;
// Descending; the first is kBlockSamples.
inline constexpr std::array<int64_t, 3> kBlockSizes = {16, 8, 4};

struct CpuDeviceOptions {
  std::string name = "cpu";
  bool use_onednn = true;  // false: plain loops, as in a build without oneDNN
};

std::unique_ptr<Device> MakeCpuDevice(const CpuDeviceOptions& options);

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_CPU_DEVICE_H_
