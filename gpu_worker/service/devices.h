// The slots of a worker.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_
#define CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

struct FoundDevices {
  std::vector<node::v1::Device> devices;
  std::string no_gpu;  // why "auto" found no GPU; empty: it found one, or did not look
  // Why "auto" found no GPU though the CUDA plug-in is installed; empty: nothing is missing.
  std::string missing_gpu;
};

// `names` as --devices gives them; "auto" alone stands for every GPU and one cpu, in this order: jobs
// for CPUs and jobs that want more cards than there are have a place, too. Each is opened
// once to see that it is there, and closed: the service computes nothing. NotFound, Unavailable: a
// device that cannot be opened, with its name.
absl::StatusOr<FoundDevices> FindDevices(const std::vector<std::string>& names);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_
