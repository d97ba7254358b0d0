// shard-<i>.safetensors: the chunks of one shard in one version, and the optimizer's state.
//
// Tensors: "chunks.<index>" and, where the optimizer has momentum, "momentum.<index>", F32, one for
// each chunk, by its index in the job. Metadata: job_id, lineage, step, digest (hex), shard.
//
// Threads: pure functions of their arguments, but for the file.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "capstan/common/v1/common.pb.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"

namespace capstan::param_store {

struct ShardFileOptions {
  std::string folder;  // <storage_path>/<lineage>-<step>; made where it is missing
  std::string job_id;
  std::string spec_digest;  // 32 bytes
  int32_t shard = 0;
  int64_t lineage = 0;
  int64_t step = 0;
};

// Borrowed; none of it changes meanwhile.
struct ShardTensors {
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  absl::Span<const float> weights;  // from the first float of the run on
  absl::Span<const float> state;    // likewise, the optimizer's; empty: it has none
};

// Writes the file whole or not at all: temporary name, fsync, rename, fsync of the folder. What
// services/files says; the file is the caller's to try again.
absl::StatusOr<common::v1::FileInfo> WriteShardFile(const ShardFileOptions& options,
                                                    const ShardTensors& tensors);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_
