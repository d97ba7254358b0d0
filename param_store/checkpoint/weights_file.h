// weights.safetensors: the whole tensors of one version in forward order under PyTorch's names, as the
// task that owns lane 0 writes them at the end, and as anybody makes them of any checkpoint.
//
// Threads: functions of their arguments, but for the files.
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

// What the file begins with; the tensors follow as they lie in memory, without gaps.
absl::StatusOr<std::string> WeightsFileHeader(const training::FlatLayout& layout,
                                              const WeightsFileId& id);

struct ExportRequest {
  std::string folder;           // <lineage>-<step>, or a path that ends so; for messages
  std::string job_id;           // whose it must be
  std::string training_digest;  // of the resolved spec, 32 bytes
  const training::FlatLayout* layout = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<InputFile>>(const std::string& name)> open;
};
struct ExportedWeights {
  int64_t size_bytes = 0;
  int64_t step = 0;
  std::string weights_sha256;  // hex, of the tensors
};

// Makes that file of a checkpoint, at `path`: whole and durable, or not at all. Memory: a block,
// whatever the size of the model. Errors as of LoadCheckpoint; CheckpointCorrupt also where the tensors
// have not the hash that the manifest says; OutputFailed: `path` cannot be written.
BaseWeightsError ExportWeights(const ExportRequest& request, const std::string& path,
                               ExportedWeights* exported);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_WEIGHTS_FILE_H_
