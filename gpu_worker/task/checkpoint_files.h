// The files that a task writes at the last version: weights.safetensors, and with `local` and
// `device` the one shard file too.
//
// Threads: pure functions but for the file system; they block, so they run off the strand.
#ifndef CAPSTAN_GPU_WORKER_TASK_CHECKPOINT_FILES_H_
#define CAPSTAN_GPU_WORKER_TASK_CHECKPOINT_FILES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "capstan/common/v1/common.pb.h"
#include "gpu_worker/task/job.h"

namespace capstan::gpu_worker {

struct WrittenWeights {
  common::v1::FileInfo file;
  std::string weights_sha256;  // hex
};

// "<storage_path>/<lineage>-<step>".
std::string CheckpointFolder(const Job& job, int64_t lineage, int64_t step);

// Writes <folder>/weights.safetensors: forward order, PyTorch's names, tensors contiguous.
// `weights` is the flat vector. An error of services/files; nothing is left behind then.
absl::StatusOr<WrittenWeights> WriteWeightsFile(const Job& job, int64_t lineage, int64_t step,
                                                absl::Span<const float> weights);

// Writes <folder>/shard-0.safetensors with all chunks: tensors `chunks.<index>` and, where
// `momentum` is not empty, `momentum.<index>`.
absl::StatusOr<common::v1::FileInfo> WriteShardFile(const Job& job, int64_t lineage, int64_t step,
                                                    absl::Span<const float> weights,
                                                    absl::Span<const float> momentum);

// Reads the tensors of a weights file into the flat vector; names and shapes must match, no tensor
// may be missing or too many. `uri` is a path or file://. Errors name the file: DataMissing where
// it cannot be read, InvalidSpec where it is of another model (data/failure.h), DataLoss where
// damaged.
absl::Status ReadInitialWeights(const Job& job, const std::string& uri, absl::Span<float> weights);

}  // namespace capstan::gpu_worker

#endif  // CAPSTAN_GPU_WORKER_TASK_CHECKPOINT_FILES_H_
