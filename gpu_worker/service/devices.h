// The device slots of a worker.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_
#define CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

struct FoundDevices {
  std::vector<node::v1::Device> devices;
  std::string no_gpu;  // why "auto" found no GPU; empty if it found one or did not look
  // Why "auto" found no GPU although the CUDA plug-in is installed; empty if nothing is missing.
  std::string missing_gpu;
};

// `names` are the values of --devices. "auto" alone stands for every GPU and one cpu, in this
// order, so that jobs for CPUs, and jobs that want more cards than exist, have a slot, too. Opens
// each device once to check that it exists, and closes it, because the service computes nothing.
// NotFound, Unavailable: a device cannot be opened; the message has its name.
absl::StatusOr<FoundDevices> FindDevices(const std::vector<std::string>& names);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_
