// Version 0 of a run of chunks: from the seed and the initializer, or from the file that the job
// names. For shards, and for a task that is its own store.
//
// Threads: pure, but for the file.
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
  // file:///... of a safetensors file, or of a checkpoint's folder or manifest.json; empty: the
  // initializer. A safetensors file has every weight, all running statistics or none, and nothing
  // else but PyTorch's num_batches_tracked, which is not used.
  std::string initial_weights;
};

// A failure, with its reason of docs/interface.md.
struct BaseWeightsError {
  // InvalidSpec: names or shapes differ; DataMissing: absent, unreadable or damaged. Of a
  // checkpoint: see load_checkpoint.h; checkpoint_reader.h for one that only gives the weights.
  std::string reason;
  absl::Status status;
  // No failure: the file has no running statistics, and those of the range begin as 0 and 1.
  bool initial_statistics = false;
};

// Fills `out` with the floats of `range`, which is a run of whole chunks. OK status: done.
BaseWeightsError FillBaseWeights(const training::FlatLayout& layout,
                                 const BaseWeightsOptions& options,
                                 const training::FlatRange& range, absl::Span<float> out,
                                 FileStore& files = LocalFiles());

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_BASE_WEIGHTS_H_
