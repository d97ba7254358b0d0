#include "gpu_worker/task/checkpoint_files.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
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

}  // namespace capstan::gpu_worker
