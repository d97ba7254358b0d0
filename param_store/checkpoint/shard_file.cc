#include "param_store/checkpoint/shard_file.h"

#include <map>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/check/check.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::param_store {

std::string LayoutDigest(const training::FlatLayout& layout) {
  std::string text = absl::StrCat(layout.chunk_floats(), "\n");
  for (const training::TensorSlot* slot : layout.forward_order()) {
    absl::StrAppend(&text, slot->spec.name, " ", absl::StrJoin(slot->spec.shape, ","),
                    slot->spec.kind == training::TensorKind::kStat ? " stat " : " weight ",
                    slot->offset, "\n");
  }
  return training::Sha256Hex(text);
}

std::vector<int64_t> ChunkShape(int64_t floats, int states) {
  if (states > 1) return {floats, states};
  return {floats};
}

absl::StatusOr<common::v1::FileInfo> WriteShardFile(const ShardFileOptions& options,
                                                    const ShardTensors& from, FileStore& files) {
  std::vector<training::SafetensorsTensor> tensors;
  std::vector<absl::string_view> parts;
  const training::FlatRange run = training::RangeOf(*from.layout, from.run);
  const auto states = static_cast<int>(static_cast<int64_t>(from.state.size()) / run.size);
  CAPSTAN_CHECK(static_cast<int64_t>(from.state.size()) == run.size * states);
  const auto add = [&](absl::string_view name, absl::Span<const float> values, int each) {
    for (int32_t chunk = from.run.first_chunk; chunk < from.run.end(); ++chunk) {
      const training::FlatRange range = from.layout->ChunkRange(chunk);
      training::SafetensorsTensor tensor;
      tensor.name = absl::StrCat(name, ".", chunk);
      tensor.shape = ChunkShape(range.size, each);
      tensors.push_back(std::move(tensor));
      parts.emplace_back(
          reinterpret_cast<const char*>(values.data() + (range.offset - run.offset) * each),
          range.size * each * sizeof(float));
    }
  };
  add(kWeightTensors, from.weights, 1);
  if (states > 0) add(StateTensors(states), from.state, states);
  const auto marks = static_cast<int64_t>(from.marks.size()) / from.run.chunk_count;
  CAPSTAN_CHECK(static_cast<int64_t>(from.marks.size()) == from.run.chunk_count * marks);
  for (int32_t i = 0; marks > 0 && i < from.run.chunk_count; ++i) {
    training::SafetensorsTensor tensor;
    tensor.name = absl::StrCat(kMarkTensors, ".", from.run.first_chunk + i);
    tensor.dtype = training::SafetensorsDtype::kI64;
    tensor.shape = {marks};
    tensors.push_back(std::move(tensor));
    parts.emplace_back(reinterpret_cast<const char*>(from.marks.data() + i * marks),
                       marks * sizeof(int64_t));
  }

  const auto header = training::EncodeSafetensorsHeader(
      tensors, {{"job_id", options.job_id},
                {"lineage", absl::StrCat(options.lineage)},
                {"step", absl::StrCat(options.step)},
                {"digest", absl::BytesToHexString(options.spec_digest)},
                {"shard", absl::StrCat(options.shard)},
                {kLayoutKey, LayoutDigest(*from.layout)}});
  if (!header.ok()) return header.status();

  parts.insert(parts.begin(), *header);
  return files.Write(options.folder, absl::StrCat("shard-", options.shard, ".safetensors"), parts);
}

}  // namespace capstan::param_store
