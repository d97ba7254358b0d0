#include "gpu_worker/task/checkpoint_files.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gpu_worker/data/data_path.h"
#include "gpu_worker/data/failure.h"
#include "services/files/files.h"
#include "training/codec/safetensors.h"
#include "training/codec/sha256.h"

namespace capstan::gpu_worker {
namespace {

struct Part {
  std::string name;
  std::vector<int64_t> shape;
  absl::Span<const float> values;
};

absl::string_view BytesOf(absl::Span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::map<std::string, std::string> Metadata(const Job& job, int64_t lineage, int64_t step) {
  return {{"job_id", job.id()},
          {"lineage", absl::StrCat(lineage)},
          {"step", absl::StrCat(step)},
          {"digest", absl::BytesToHexString(job.digest)}};
}

absl::StatusOr<common::v1::FileInfo> WriteSafetensors(
    const std::string& folder, const std::string& name, absl::Span<const Part> parts,
    const std::map<std::string, std::string>& metadata) {
  std::vector<training::SafetensorsTensor> tensors;
  for (const Part& part : parts) {
    training::SafetensorsTensor tensor;
    tensor.name = part.name;
    tensor.shape = part.shape;
    tensors.push_back(std::move(tensor));
  }
  absl::StatusOr<std::string> header = training::EncodeSafetensorsHeader(tensors, metadata);
  if (!header.ok()) return header.status();
  if (absl::Status status = services::EnsureDir(folder); !status.ok()) return status;
  auto file = services::AtomicFile::Create(absl::StrCat(folder, "/", name));
  if (!file.ok()) return file.status();
  training::Sha256 hash;
  hash.Update(*header);
  absl::Status status = (*file)->Append(*header);
  for (const Part& part : parts) {
    if (!status.ok()) return status;
    hash.Update(BytesOf(part.values));
    status = (*file)->Append(BytesOf(part.values));
  }
  if (status.ok()) status = (*file)->Commit();
  if (!status.ok()) return status;
  const auto digest = hash.Finish();
  common::v1::FileInfo info;
  info.set_name(name);
  info.set_size_bytes((*file)->size_bytes());
  info.set_sha256(digest.data(), digest.size());
  return info;
}

}  // namespace

std::string CheckpointFolder(const Job& job, int64_t lineage, int64_t step) {
  return absl::StrCat(job.spec.storage_path(), "/", lineage, "-", step);
}

absl::StatusOr<WrittenWeights> WriteWeightsFile(const Job& job, int64_t lineage, int64_t step,
                                                absl::Span<const float> weights) {
  std::vector<Part> parts;
  std::vector<absl::Span<const float>> tensors;
  for (const training::TensorSlot* slot : job.layout.forward_order()) {
    parts.push_back({slot->spec.name, slot->spec.shape, weights.subspan(slot->offset, slot->size)});
    tensors.push_back(parts.back().values);
  }
  std::map<std::string, std::string> metadata = Metadata(job, lineage, step);
  metadata["format"] = "pt";  // what PyTorch's own writer says of row-major tensors
  auto info = WriteSafetensors(CheckpointFolder(job, lineage, step), "weights.safetensors", parts,
                               metadata);
  if (!info.ok()) return info.status();
  return WrittenWeights{*std::move(info), training::WeightsSha256(tensors)};
}

absl::StatusOr<common::v1::FileInfo> WriteShardFile(const Job& job, int64_t lineage, int64_t step,
                                                    absl::Span<const float> weights,
                                                    absl::Span<const float> momentum) {
  std::vector<Part> parts;
  for (const bool state : {false, true}) {
    const absl::Span<const float> values = state ? momentum : weights;
    for (int32_t chunk = 0; chunk < job.layout.chunk_count(); ++chunk) {
      const training::FlatRange range = job.layout.ChunkRange(chunk);
      if (range.end() > static_cast<int64_t>(values.size())) break;
      parts.push_back({absl::StrCat(state ? "momentum." : "chunks.", chunk),
                       {range.size},
                       values.subspan(range.offset, range.size)});
    }
  }
  std::map<std::string, std::string> metadata = Metadata(job, lineage, step);
  metadata["shard"] = "0";
  return WriteSafetensors(CheckpointFolder(job, lineage, step), "shard-0.safetensors", parts,
                          metadata);
}

absl::Status ReadInitialWeights(const Job& job, const std::string& uri, absl::Span<float> weights) {
  absl::StatusOr<std::string> path = data::ParseDataUri(uri);
  if (!path.ok()) return path.status();
  // The header is small beside the tensors; 64 MiB more than these is no file of this model.
  const int64_t limit = 4 * job.layout.total_floats() + (int64_t{64} << 20);
  absl::StatusOr<std::string> bytes = services::ReadWholeFile(*path, limit);
  if (!bytes.ok()) {
    return data::DataMissing(bytes.status().code(), bytes.status().message());
  }
  const int64_t size = static_cast<int64_t>(bytes->size());
  auto header = training::ParseSafetensorsHeader(*path, *bytes, size);
  if (!header.ok()) return header.status();
  std::fill(weights.begin(), weights.end(), 0.0f);
  for (const training::TensorSlot& slot : job.layout.slots()) {
    const training::SafetensorsTensor* tensor = header->Find(slot.spec.name);
    if (tensor == nullptr) {
      return data::InvalidSpec(absl::StrCat(*path, ": tensor '", slot.spec.name, "' is missing"));
    }
    if (tensor->dtype != training::SafetensorsDtype::kF32 || tensor->shape != slot.spec.shape) {
      return data::InvalidSpec(absl::StrCat(*path, ": tensor '", slot.spec.name, "' is ",
                                            training::SafetensorsDtypeName(tensor->dtype), " [",
                                            absl::StrJoin(tensor->shape, ", "), "], want F32 [",
                                            absl::StrJoin(slot.spec.shape, ", "), "]"));
    }
    std::memcpy(weights.data() + slot.offset, bytes->data() + header->data_start + tensor->begin,
                sizeof(float) * slot.size);
  }
  if (header->tensors.size() != job.layout.slots().size()) {
    return data::InvalidSpec(absl::StrCat(*path, ": ", header->tensors.size(), " tensors, want ",
                                          job.layout.slots().size()));
  }
  return absl::OkStatus();
}

}  // namespace capstan::gpu_worker
