// The slots of a worker.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_
#define CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

// `names` as --devices gives them; "auto" alone stands for every GPU, else one cpu. Each is opened
// once to see that it is there, and closed: the service computes nothing. NotFound, Unavailable: a
// device that cannot be opened, with its name.
absl::StatusOr<std::vector<node::v1::Device>> FindDevices(const std::vector<std::string>& names);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_DEVICES_H_
