// shard-<i>.safetensors: the chunks of one shard in one version, and the optimizer's state.
//
// It has an F32 tensor for each chunk, by the chunk's index in the job: "chunks.<index>" [floats].
// If the optimizer has state, there is also "momentum.<index>" [floats] with one float of state per
// weight, or "state.<index>" [floats, n] with n of them, in the order of the rule (training/optim).
// The state of a chunk of running statistics is zeros. An asynchronous job also has an I64 tensor
// "marks.<index>" [lanes + 1]: by lane, the next step that the chunk does not have; then the number
// of contributions that it has. Metadata: job_id, lineage, step, digest (hex), shard.
//
// Threads: pure functions of their arguments, except that one writes the file.
#ifndef CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_
#define CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "capstan/common/v1/common.pb.h"
#include "param_store/checkpoint/file_store.h"
#include "training/chunks/flat_layout.h"
#include "training/chunks/placement.h"

namespace capstan::param_store {

// Prefixes of tensor names. Files have weights and momentum since 0.1.0.
inline constexpr absl::string_view kWeightTensors = "chunks";
inline constexpr absl::string_view kMarkTensors = "marks";
// `states`: floats of state per weight.
constexpr absl::string_view StateTensors(int states) { return states > 1 ? "state" : "momentum"; }
// The shape of a tensor of a chunk of `floats` weights, with `states` numbers each.
std::vector<int64_t> ChunkShape(int64_t floats, int states);

struct ShardFileOptions {
  std::string folder;  // <storage_path>/<lineage>-<step>; made if it is missing
  std::string job_id;
  std::string spec_digest;  // 32 bytes
  int32_t shard = 0;
  int64_t lineage = 0;
  int64_t step = 0;
};

// Borrowed. Must not change during the call.
struct ShardTensors {
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  absl::Span<const float> weights;  // beginning with the first float of the run
  absl::Span<const float>
      state;  // likewise; one or more floats of the optimizer per weight; empty: it has no state
  absl::Span<const int64_t> marks;  // by chunk, each the same number of them; empty: none
};

inline constexpr char kLayoutKey[] = "layout";
// Equal for layouts that have the same tensors (name, shape and kind) at the same offsets, in
// chunks of the same size. Then a chunk has the same floats in both. 64 hexadecimal digits.
std::string LayoutDigest(const training::FlatLayout& layout);

// Returns the result of FileStore::Write.
absl::StatusOr<common::v1::FileInfo> WriteShardFile(const ShardFileOptions& options,
                                                    const ShardTensors& tensors,
                                                    FileStore& files = LocalFiles());

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_
