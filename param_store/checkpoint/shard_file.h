// shard-<i>.safetensors: the chunks of one shard in one version, and the optimizer's state.
//
// Tensors, F32, one for each chunk, by its index in the job: "chunks.<index>" [floats] and, where the
// optimizer has state, "momentum.<index>" [floats] with one float of it per weight, or
// "state.<index>" [floats, n] with n of them, in the order that the rule says (training/optim). Zeros
// for a chunk of running statistics. Metadata: job_id, lineage, step, digest (hex), shard.
//
// Threads: pure functions of their arguments, but for the file.
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

// What tensors are named after. Weights and momentum lie in files since 0.1.0.
inline constexpr absl::string_view kWeightTensors = "chunks";
// `states`: floats per weight.
constexpr absl::string_view StateTensors(int states) { return states > 1 ? "state" : "momentum"; }
// Of a tensor of a chunk of `floats` weights with `states` numbers each.
std::vector<int64_t> ChunkShape(int64_t floats, int states);

struct ShardFileOptions {
  std::string folder;  // <storage_path>/<lineage>-<step>; made where it is missing
  std::string job_id;
  std::string spec_digest;  // 32 bytes
  int32_t shard = 0;
  int64_t lineage = 0;
  int64_t step = 0;
};

// Borrowed; none of it changes meanwhile.
struct ShardTensors {
  const training::FlatLayout* layout = nullptr;
  training::ChunkRun run;
  absl::Span<const float> weights;  // from the first float of the run on
  absl::Span<const float>
      state;  // likewise, the optimizer's, one or more floats per weight; empty: it has none
};

inline constexpr char kLayoutKey[] = "layout";
// Equal for layouts with the same tensors, by name, shape and kind, at the same places and in chunks
// of the same size: then a chunk has the same floats in both. 64 hexadecimal digits.
std::string LayoutDigest(const training::FlatLayout& layout);

// What FileStore::Write says.
absl::StatusOr<common::v1::FileInfo> WriteShardFile(const ShardFileOptions& options,
                                                    const ShardTensors& tensors,
                                                    FileStore& files = LocalFiles());

}  // namespace capstan::param_store

#endif  // CAPSTAN_PARAM_STORE_CHECKPOINT_SHARD_FILE_H_
