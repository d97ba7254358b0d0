#include "param_store/checkpoint/residual_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "param_store/checkpoint/checkpoint_reader.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/check/check.h"
#include "training/codec/safetensors.h"

namespace capstan::param_store {

absl::StatusOr<common::v1::FileInfo> WriteResidualFile(
    const ResidualFileOptions& options, const training::FlatLayout& layout,
    const std::map<int32_t, absl::Span<const float>>& lanes, FileStore& files) {
  CAPSTAN_CHECK(!lanes.empty());
  std::vector<training::SafetensorsTensor> tensors;
  std::vector<absl::string_view> parts;
  for (const auto& [lane, residual] : lanes) {
    CAPSTAN_CHECK(static_cast<int64_t>(residual.size()) == layout.total_floats());
    training::SafetensorsTensor tensor;
    tensor.name = absl::StrCat(kResidualTensors, ".", lane);
    tensor.shape = {layout.total_floats()};
    tensors.push_back(std::move(tensor));
    parts.emplace_back(reinterpret_cast<const char*>(residual.data()),
                       residual.size() * sizeof(float));
  }
  const auto header = training::EncodeSafetensorsHeader(
      tensors, {{"job_id", options.job_id},
                {"lineage", absl::StrCat(options.lineage)},
                {"step", absl::StrCat(options.step)},
                {"digest", absl::BytesToHexString(options.spec_digest)},
                {"rank", absl::StrCat(options.rank)},
                {kLayoutKey, LayoutDigest(layout)}});
  if (!header.ok()) return header.status();
  parts.insert(parts.begin(), *header);
  return files.Write(options.folder, absl::StrCat(kResidualFiles, options.rank, ".safetensors"),
                     parts);
}

BaseWeightsError LoadResiduals(const ResidualRequest& request,
                               absl::Span<const absl::Span<float>> residuals, int64_t* version) {
  CAPSTAN_CHECK(residuals.size() == request.lanes.size() && !request.job_id.empty());
  CAPSTAN_CHECK(std::is_sorted(request.lanes.begin(), request.lanes.end()));
  CheckpointPass pass;
  pass.folder = request.folder;
  pass.job_id = request.job_id;
  pass.training_digest = request.training_digest;
  pass.layout = request.layout;
  pass.residual_lanes = &request.lanes;
  pass.open = [&request](const std::string& name) {
    return request.files->OpenCheckpointFile(request.folder, name);
  };
  const int64_t lane_bytes = request.layout->total_floats() * static_cast<int64_t>(sizeof(float));
  pass.take = [residuals, lane_bytes](CheckpointPart, int64_t at, absl::string_view bytes) {
    // A piece is of one lane.
    const absl::Span<float> to = residuals[static_cast<size_t>(at / lane_bytes)];
    std::memcpy(reinterpret_cast<char*>(to.data()) + at % lane_bytes, bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  training::Manifest manifest;
  BaseWeightsError error = ReadCheckpoint(pass, &manifest);
  if (error.reason.empty()) *version = manifest.step;
  return error;
}

}  // namespace capstan::param_store
