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
#include "training/chunks/flat_layout.h"
#include "training/init/init.h"

namespace capstan::param_store {

struct BaseWeightsOptions {
  training::InitOptions init;
  uint64_t seed = 0;
  std::string initial_weights;  // file:///... of a safetensors file; empty: the initializer
};

// A failure, with its reason of docs/interface.md.
struct BaseWeightsError {
  // InvalidSpec: names or shapes differ; DataMissing: absent, unreadable or damaged. Of a
  // checkpoint: see load_checkpoint.h.
  std::string reason;
  absl::Status status;
};

// Fills `out` with the floats of `range`. OK status: done.
BaseWeightsError FillBaseWeights(const training::FlatLayout& layout,
                                 const BaseWeightsOptions& options,
                                 const training::FlatRange& range, absl::Span<float> out);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_BASE_WEIGHTS_H_
