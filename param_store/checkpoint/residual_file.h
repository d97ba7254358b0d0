// residuals-<rank>.safetensors: what error feedback has left out of the gradients of a task's lanes,
// in one version (E3).
//
// It has an F32 tensor "residual.<lane>" [floats of the flat vector] for each lane. Unscaled: without
// the loss scale. Metadata: job_id, lineage, step, digest (hex), rank, layout. A task writes the
// lanes that it owns. Whoever continues the job reads a lane from whatever file of the manifest has
// it, so the number of workers does not matter.
//
// Threads: depend only on their arguments and the files. They block.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_RESIDUAL_FILE_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_RESIDUAL_FILE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "capstan/common/v1/common.pb.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"

namespace capstan::param_store {

struct ResidualFileOptions {
  std::string folder;  // <storage_path>/<lineage>-<step>; made if it is missing
  std::string job_id;
  std::string spec_digest;  // 32 bytes
  int32_t rank = 0;
  int64_t lineage = 0;
  int64_t step = 0;
};

// `lanes`: by lane, layout.total_floats() numbers each; not empty. Returns the result of
// FileStore::Write.
absl::StatusOr<common::v1::FileInfo> WriteResidualFile(
    const ResidualFileOptions& options, const training::FlatLayout& layout,
    const std::map<int32_t, absl::Span<const float>>& lanes, FileStore& files = LocalFiles());

struct ResidualRequest {
  std::string folder;           // <storage_path>/<lineage>-<step>
  std::string job_id;           // the job that it must belong to
  std::string training_digest;  // of the resolved spec, 32 bytes
  const training::FlatLayout* layout = nullptr;
  std::vector<int32_t> lanes;        // that are wanted, rising
  FileStore* files = &LocalFiles();  // borrowed
};

// Fills residuals[i] with that of lanes[i]; each has layout.total_floats() numbers. Sets the version
// that they are of. Errors are those of load_checkpoint.h. A lane that no file has is
// CheckpointCorrupt: without it the job would go on with other bits.
BaseWeightsError LoadResiduals(const ResidualRequest& request,
                               absl::Span<const absl::Span<float>> residuals, int64_t* version);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_RESIDUAL_FILE_H_
