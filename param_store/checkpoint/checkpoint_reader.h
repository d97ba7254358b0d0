// Reads the files of a committed checkpoint once and passes on the bytes of the chunks of one run, or
// of the residuals of some lanes, whichever files of the manifest contain them.
//
// Every byte is hashed before it is passed on. Only at the end is it known whether the hashes match
// the manifest, so the bytes mean nothing if the pass fails. The manifest contains a hash of
// itself. Memory: one block, and the header of one file.
//
// Threads: depends only on its arguments and the files. Blocks.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_CHECKPOINT_READER_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_CHECKPOINT_READER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "param_store/checkpoint/base_weights.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"
#include "training/codec/manifest.h"

namespace capstan::param_store {

// What bytes of a checkpoint are.
enum class CheckpointPart {
  kWeights,    // floats
  kState,      // floats of the optimizer, state_floats_per_weight for each weight
  kMarks,      // int64, marks_per_chunk for each chunk
  kResiduals,  // floats of the flat vector, for each lane
};

inline constexpr absl::string_view kResidualTensors = "residual";
inline constexpr absl::string_view kResidualFiles = "residuals-";

struct CheckpointPass {
  std::string folder;  // as in messages
  // The job that it must belong to; then the folder's name must also match its lineage and step.
  // Empty: any job, if its tensors and chunks are those of `layout`.
  std::string job_id;
  std::string training_digest;  // with job_id: 32 bytes
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  int state_floats_per_weight = 0;  // of the optimizer; above 0: its state is read too
  int64_t marks_per_chunk = 0;      // of an asynchronous job; above 0: they are read too
  // Not null: the residuals of these lanes are read, rising, and nothing of the chunks.
  const std::vector<int32_t>* residual_lanes = nullptr;
  std::function<absl::StatusOr<std::unique_ptr<InputFile>>(const std::string& name)> open;
  // Called with the bytes read. `at`: byte offset from the first number of this part of the run, or
  // of the residuals of all wanted lanes, one after the other. An error ends the pass.
  std::function<absl::Status(CheckpointPart part, int64_t at, absl::string_view bytes)> take;
};

// Returns the errors of load_checkpoint.h. InvalidSpec: without a job_id, its tensors or chunks are
// not those of the layout, or it does not say which they are. `manifest` is set as soon as it is
// read.
BaseWeightsError ReadCheckpoint(const CheckpointPass& pass, training::Manifest* manifest);

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_CHECKPOINT_READER_H_
