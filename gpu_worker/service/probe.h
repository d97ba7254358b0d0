// Answers what a job would train on.
#ifndef CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
#define CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_

#include <string>
#include <vector>

#include "capstan/node/v1/node.pb.h"

namespace capstan::gpu_worker {

// Reads the headers and labels of the data set. A failure carries DataMissing, InvalidSpec or
// another reason; who asked knows the host. Blocks; thread-safe.
node::v1::ProbeResult AnswerProbe(const node::v1::Probe& probe,
                                  const std::vector<std::string>& data_roots);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_SERVICE_PROBE_H_
