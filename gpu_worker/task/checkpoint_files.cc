#include "gpu_worker/task/checkpoint_files.h"

#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "param_store/checkpoint/weights_file.h"
#include "training/codec/sha256.h"

namespace capstan::gpu_worker {
std::string CheckpointFolder(const Job& job, int64_t lineage, int64_t step) {
  return absl::StrCat(job.spec.storage_path(), "/", lineage, "-", step);
}

absl::StatusOr<WrittenWeights> WriteWeightsFile(const Job& job, int64_t lineage, int64_t step,
                                                absl::Span<const float> weights,
                                                param_store::FileStore& files) {
  const auto header = param_store::WeightsFileHeader(
      job.layout, {job.id(), lineage, step, absl::BytesToHexString(job.digest)});
  if (!header.ok()) return header.status();
  std::vector<absl::string_view> parts = {*header};
  std::vector<absl::Span<const float>> tensors;
  for (const training::TensorSlot* slot : job.layout.forward_order()) {
    const absl::Span<const float> values = weights.subspan(slot->offset, slot->size);
    parts.emplace_back(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    tensors.push_back(values);
  }
  auto info = files.Write(CheckpointFolder(job, lineage, step), "weights.safetensors", parts);
  if (!info.ok()) return info.status();
  return WrittenWeights{*std::move(info), training::WeightsSha256(tensors)};
}

}  // namespace capstan::gpu_worker
