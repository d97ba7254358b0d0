// A committed checkpoint, read back: the chunks that one shard needs, out of whatever files of the
// manifest hold them. The number of shards that wrote them does not matter.
//
// Every byte that is used was hashed on its way in, and the hash compared with the manifest's before
// anything is handed out; the manifest itself carries a hash of its own. Memory beyond the result:
// one block, and the header of one file.
//
// Threads: a function of its arguments, but for the files. It blocks.
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
  std::string job_id;           // whose it must be
  std::string training_digest;  // of the resolved spec, 32 bytes
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  int state_floats_per_weight = 0;   // of the optimizer; above 0: its state is wanted too
  FileStore* files = &LocalFiles();  // borrowed
};

struct LoadedCheckpoint {
  int64_t version = 0;
  training::LeadSnapshot snapshot;
};

// Fills `weights` and, where it is wanted, `state`, the optimizer's: both begin with the first float of the run
// and have its size, the state times its floats per weight. On an error their content means nothing. Messages name file and check.
//   DataMissing        the manifest, or a file that it names, is absent or may not be read
//   CheckpointCorrupt  a size, hash, header or tensor is not what it should be; the checkpoint is of
//                      another job, another training or another folder
//   InternalError      the host cannot read at all (descriptors, memory, no way to the coordinator)
BaseWeightsError LoadCheckpoint(const CheckpointRequest& request, absl::Span<float> weights,
                                absl::Span<float> state, LoadedCheckpoint* loaded);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_LOAD_CHECKPOINT_H_
