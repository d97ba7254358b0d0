// The data set of a job file, as gpu_worker/data knows it.
#ifndef CAPSTAN_GPU_WORKER_JOB_DATA_JOB_DATA_H_
#define CAPSTAN_GPU_WORKER_JOB_DATA_JOB_DATA_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "capstan/common/v1/common.pb.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "gpu_worker/data/dataset.h"

namespace capstan::gpu_worker {

// Where the samples are and of which kind. `spec` must be valid. `roots`: see DatasetOptions.
data::DatasetOptions MakeDatasetOptions(const job::v1::JobSpec& spec,
                                        std::vector<std::string> roots);

// What a plan needs to know of the job's data set. Errors of ProbeDataset; InvalidSpec: more than
// 2^31 - 1 samples or classes.
absl::StatusOr<common::v1::DatasetInfo> ProbeJobData(const job::v1::JobSpec& spec,
                                                     std::vector<std::string> roots);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_JOB_DATA_JOB_DATA_H_
