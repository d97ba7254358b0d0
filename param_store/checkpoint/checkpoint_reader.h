// One pass over the files of a committed checkpoint: whoever wants the chunks of a run gets their
// bytes, out of whatever files of the manifest hold them.
//
// Every byte that is handed out was hashed on its way in; whether the hashes are those of the manifest
// is known at the end, so what was taken means nothing where the pass fails. The manifest carries a
// hash of its own. Memory: one block, and the header of one file.
//
// Threads: a function of its arguments, but for the files. It blocks.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_CHECKPOINT_READER_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/codec/manifest.h"

namespace capstan::param_store {

struct CheckpointPass {
  std::string folder;  // as messages name it
  // Whose it must be; then the folder has the name of its lineage and step, too. Empty: anybody's, if
  // its tensors and chunks are those of `layout`.
  std::string job_id;
  std::string training_digest;  // with job_id: 32 bytes
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  int state_floats_per_weight = 0;  // of the optimizer; above 0: its state is wanted too
  std::function<absl::StatusOr<std::unique_ptr<InputFile>>(const std::string& name)> open;
  // `state`: of the optimizer's. `at`: bytes from the first float, or first state, of the run on. An error
  // ends the pass.
  std::function<absl::Status(bool state, int64_t at, absl::string_view bytes)> take;
};

// The errors of load_checkpoint.h. InvalidSpec: without a job_id, its tensors or chunks are not those
// of the layout, or it does not say which they are. `manifest` is set as soon as it was read.
BaseWeightsError ReadCheckpoint(const CheckpointPass& pass, training::Manifest* manifest);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_CHECKPOINT_READER_H_
