// weights.safetensors: the whole tensors of one version, in forward order and under PyTorch's
// names. The task that owns lane 0 writes it at the end of a job. Anybody can make it from any
// checkpoint.
//
// Threads: depends only on the arguments and the files.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_WEIGHTS_FILE_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_WEIGHTS_FILE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"

namespace capstan::param_store {

struct WeightsFileId {
  std::string job_id;
  int64_t lineage = 0;
  int64_t step = 0;
  std::string spec_digest_hex;
};

// The beginning of the file. The tensors follow without gaps, as they are in memory.
absl::StatusOr<std::string> WeightsFileHeader(const training::FlatLayout& layout,
                                              const WeightsFileId& id);

struct ExportRequest {
  std::string folder;           // <lineage>-<step>, or a path that ends like this; for messages
  std::string job_id;           // the job that it must belong to
  std::string training_digest;  // of the resolved spec, 32 bytes
  const training::FlatLayout* layout = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<InputFile>>(const std::string& name)> open;
};
struct ExportedWeights {
  int64_t size_bytes = 0;
  int64_t step = 0;
  std::string weights_sha256;  // hex, of the tensors
};

// Makes that file from a checkpoint, at `path`, atomically and durably. Memory: one block, whatever
// the size of the model. Errors are those of LoadCheckpoint. CheckpointCorrupt: also if the hash of
// the tensors is not the manifest's. OutputFailed: `path` cannot be written.
BaseWeightsError ExportWeights(const ExportRequest& request, const std::string& path,
                               ExportedWeights* exported);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_WEIGHTS_FILE_H_
