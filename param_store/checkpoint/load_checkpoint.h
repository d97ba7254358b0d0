// Loads the chunks that one shard needs from a committed checkpoint, whichever files of the
// manifest contain them. The number of shards that wrote the files does not matter.
//
// Every byte is hashed as it is read, and the hash is compared with the manifest before the
// function returns. The manifest contains a hash of itself. Memory besides the result: one block,
// and the header of one file.
//
// Threads: depends only on its arguments and the files. Blocks.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_LOAD_CHECKPOINT_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_LOAD_CHECKPOINT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/lead/lead.h"

namespace capstan::param_store {

struct CheckpointRequest {
  std::string folder;           // <storage_path>/<lineage>-<step>
  std::string job_id;           // the job that it must belong to
  std::string training_digest;  // of the resolved spec, 32 bytes
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  int state_floats_per_weight = 0;   // of the optimizer; above 0: its state is read too
  int64_t marks_per_chunk = 0;       // of an asynchronous job; above 0: they are read too
  FileStore* files = &LocalFiles();  // borrowed
};

struct LoadedCheckpoint {
  int64_t version = 0;
  training::LeadSnapshot snapshot;
  std::vector<int64_t> marks;  // of the run's chunks
};

// Fills `weights` and, if it is wanted, `state` of the optimizer. Both begin with the first float
// of the run and have its size; the state is that size times its floats per weight. After an error
// their content means nothing. Messages name file and check.
//   DataMissing        the manifest, or a file that it names, is absent or may not be read
//   CheckpointCorrupt  a size, hash, header or tensor is wrong, or the checkpoint is of another
//                      job, training or folder
//   InternalError      the host cannot read at all (descriptors, memory, no way to the coordinator)
BaseWeightsError LoadCheckpoint(const CheckpointRequest& request, absl::Span<float> weights,
                                absl::Span<float> state, LoadedCheckpoint* loaded);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_LOAD_CHECKPOINT_H_
