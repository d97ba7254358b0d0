#include "param_store/checkpoint/shard_file.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::param_store {

absl::StatusOr<common::v1::FileInfo> WriteShardFile(const ShardFileOptions& options,
                                                    const ShardTensors& from) {
  std::vector<training::SafetensorsTensor> tensors;
  std::vector<absl::string_view> parts;
  const int64_t first_float = training::RangeOf(*from.layout, from.run).offset;
  const auto add = [&](absl::string_view name, absl::Span<const float> values) {
    for (int32_t chunk = from.run.first_chunk; chunk < from.run.end(); ++chunk) {
      const training::FlatRange range = from.layout->ChunkRange(chunk);
      training::SafetensorsTensor tensor;
      tensor.name = absl::StrCat(name, ".", chunk);
      tensor.shape = {range.size};
      tensors.push_back(std::move(tensor));
      parts.emplace_back(reinterpret_cast<const char*>(values.data() + range.offset - first_float),
                         range.size * sizeof(float));
    }
  };
  add("chunks", from.weights);
  if (!from.state.empty()) add("momentum", from.state);

  const auto header = training::EncodeSafetensorsHeader(
      tensors, {{"job_id", options.job_id},
                {"lineage", absl::StrCat(options.lineage)},
                {"step", absl::StrCat(options.step)},
                {"digest", absl::BytesToHexString(options.spec_digest)},
                {"shard", absl::StrCat(options.shard)}});
  if (!header.ok()) return header.status();

  if (absl::Status status = services::EnsureDir(options.folder); !status.ok()) return status;
  common::v1::FileInfo info;
  info.set_name(absl::StrCat("shard-", options.shard, ".safetensors"));
  auto file = services::AtomicFile::Create(absl::StrCat(options.folder, "/", info.name()));
  if (!file.ok()) return file.status();
  training::Sha256 sha;
  parts.insert(parts.begin(), *header);
  for (const absl::string_view part : parts) {
    sha.Update(part);
    if (absl::Status status = (*file)->Append(part); !status.ok()) return status;
  }
  if (absl::Status status = (*file)->Commit(); !status.ok()) return status;
  info.set_size_bytes((*file)->size_bytes());
  const auto digest = sha.Finish();
  info.set_sha256(digest.data(), digest.size());
  return info;
}

}  // namespace capstan::param_store
