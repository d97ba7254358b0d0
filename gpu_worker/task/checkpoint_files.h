// weights.safetensors, the file that a task writes at version T. (The shard file of `local` and
// `device` is that of param_store/checkpoint.)
//
// Threads: functions that are pure except for the file system. They block, so they run off the
// strand.
#ifndef CAPSTAN_GPU_WORKER_TASK_CHECKPOINT_FILES_H_
#define CAPSTAN_GPU_WORKER_TASK_CHECKPOINT_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "capstan/common/v1/common.pb.h"
#include "gpu_worker/task/job.h"
#include "param_store/checkpoint/file_store.h"

namespace capstan::gpu_worker {

struct WrittenWeights {
  common::v1::FileInfo file;
  std::string weights_sha256;  // hex
};

// "<storage_path>/<lineage>-<step>".
std::string CheckpointFolder(const Job& job, int64_t lineage, int64_t step);

// Writes <folder>/weights.safetensors: forward order, PyTorch's names, contiguous tensors.
// `weights` is the flat vector. Returns the errors of FileStore::Write.
absl::StatusOr<WrittenWeights> WriteWeightsFile(
    const Job& job, int64_t lineage, int64_t step, absl::Span<const float> weights,
    param_store::FileStore& files = param_store::LocalFiles());

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_CHECKPOINT_FILES_H_
