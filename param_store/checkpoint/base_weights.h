// Makes version 0 of a run of chunks, from the seed and the initializer or from the file that the
// job names. Used by shards, and by tasks of local jobs.
//
// Threads: pure, except that it reads the file.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_BASE_WEIGHTS_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_BASE_WEIGHTS_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"
#include "training/init/init.h"

namespace capstan::param_store {

struct BaseWeightsOptions {
  training::InitOptions init;
  uint64_t seed = 0;
  // file:///... of a safetensors file, of an ONNX file (its name ends with .onnx), or of a
  // checkpoint's folder or manifest.json. Empty: use the initializer. A safetensors file must have every weight and either all running statistics or
  // none. The only other tensor allowed is PyTorch's num_batches_tracked, which is not used.
  std::string initial_weights;
};

// A failure, with its reason from docs/interface.md.
struct BaseWeightsError {
  // InvalidSpec: names or shapes differ. DataMissing: absent, unreadable or damaged. For
  // checkpoints see load_checkpoint.h, and checkpoint_reader.h if only the weights are taken.
  std::string reason;
  absl::Status status;
  // Not a failure: the file has no running statistics, and those of the range begin as 0 and 1.
  bool initial_statistics = false;
};

// Fills `out` with the floats of `range`, which must be a run of whole chunks. Status OK: done.
BaseWeightsError FillBaseWeights(const training::FlatLayout& layout,
                                 const BaseWeightsOptions& options,
                                 const training::FlatRange& range, absl::Span<float> out,
                                 FileStore& files = LocalFiles());

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_BASE_WEIGHTS_H_
