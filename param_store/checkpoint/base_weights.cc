#include "param_store/checkpoint/base_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "param_store/checkpoint/checkpoint_reader.h"
#include "services/check/check.h"
#include "training/codec/local_uri.h"
#include "training/codec/safetensors.h"
#include "training/onnx/onnx_model.h"

namespace capstan::param_store {
namespace {

constexpr char kWeightsFile[] = "weights.safetensors";

// PyTorch's number of steps that a batch normalisation has seen. Nothing is computed from it.
bool IsStepCount(const training::FlatLayout& layout, absl::string_view name) {
  return absl::ConsumeSuffix(&name, ".num_batches_tracked") &&
         layout.Find(absl::StrCat(name, ".running_mean")) != nullptr;
}

bool IsStatistic(const training::TensorSlot& slot) {
  return slot.spec.kind == training::TensorKind::kStat;
}

bool AnyStatistic(const training::FlatLayout& layout, const training::SafetensorsHeader& header) {
  return std::any_of(layout.slots().begin(), layout.slots().end(), [&](const auto& slot) {
    return IsStatistic(slot) && header.Find(slot.spec.name) != nullptr;
  });
}

// Checks that the file has every tensor of the layout with its shape and as F32, and no other
// tensor. Without `statistics`, the running statistics may be missing.
absl::Status CheckTensors(const training::FlatLayout& layout, const std::string& path,
                          const training::SafetensorsHeader& header, bool statistics) {
  for (const training::TensorSlot& slot : layout.slots()) {
    if (IsStatistic(slot) && !statistics) continue;
    const training::SafetensorsTensor* const tensor = header.Find(slot.spec.name);
    if (tensor == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("initial_weights: ", path, " has no tensor ", slot.spec.name,
                       IsStatistic(slot) ? "; want all running statistics, or none of them" : ""));
    }
    if (tensor->dtype != training::SafetensorsDtype::kF32 || tensor->shape != slot.spec.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "initial_weights: ", path, ": ", slot.spec.name, " is ",
          training::SafetensorsDtypeName(tensor->dtype), " [", absl::StrJoin(tensor->shape, ", "),
          "], want F32 [", absl::StrJoin(slot.spec.shape, ", "), "]"));
    }
  }
  for (const training::SafetensorsTensor& tensor : header.tensors) {
    if (layout.Find(tensor.name) == nullptr && !IsStepCount(layout, tensor.name)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "initial_weights: ", path, " has ", tensor.name, ", which the model does not have"));
    }
  }
  return absl::OkStatus();
}

// The run of chunks in `range`.
training::ChunkRun RunOf(const training::FlatLayout& layout, const training::FlatRange& range) {
  training::ChunkRun run;
  while (run.first_chunk < layout.chunk_count() &&
         layout.ChunkRange(run.first_chunk).offset < range.offset) {
    ++run.first_chunk;
  }
  while (run.end() < layout.chunk_count() && layout.ChunkRange(run.end()).end() <= range.end()) {
    ++run.chunk_count;
  }
  CAPSTAN_CHECK(training::RangeOf(layout, run) == range);
  return run;
}

// Reads the file `where`, or with a name, that file of the checkpoint `where`.
BaseWeightsError FillFromFile(const training::FlatLayout& layout, const BaseWeightsOptions& options,
                              const std::string& where, const std::string& name,
                              const training::FlatRange& range, absl::Span<float> out,
                              FileStore& files) {
  const std::string path = name.empty() ? where : absl::StrCat(where, "/", name);
  const auto file = files.OpenInitialWeights(where, name);
  if (!file.ok()) return {"DataMissing", file.status()};
  const int64_t size = (*file)->size_bytes();
  std::string head(std::min<int64_t>(size, training::kSafetensorsPrefixBytes), '\0');
  absl::Status status = (*file)->ReadAt(0, head.data(), static_cast<int64_t>(head.size()));
  if (!status.ok()) return {"DataMissing", status};
  const auto end = training::SafetensorsHeaderEnd(path, head, size);
  if (!end.ok()) return {"DataMissing", end.status()};
  head.resize(*end);
  status = (*file)->ReadAt(0, head.data(), *end);
  if (!status.ok()) return {"DataMissing", status};
  const auto header = training::ParseSafetensorsHeader(path, head, size);
  if (!header.ok()) return {"DataMissing", header.status()};
  const bool statistics = AnyStatistic(layout, *header);
  status = CheckTensors(layout, path, *header, statistics);
  if (!status.ok()) return {"InvalidSpec", status};

  std::fill(out.begin(), out.end(), 0.0f);  // the space between tensors is padding
  // In the order of the file: if it comes over gRPC, a step back would begin the transfer anew.
  std::vector<std::pair<int64_t, const training::TensorSlot*>> slots;
  for (const training::TensorSlot& slot : layout.slots()) {
    if (IsStatistic(slot) && !statistics) continue;
    slots.emplace_back(header->Find(slot.spec.name)->begin, &slot);
  }
  std::sort(slots.begin(), slots.end());
  for (const auto& [begin, its] : slots) {
    const training::TensorSlot& slot = *its;
    const int64_t from = std::max(slot.offset, range.offset);
    const int64_t to = std::min(slot.offset + slot.size, range.end());
    if (from >= to) continue;
    const int64_t at =
        header->data_start + begin + (from - slot.offset) * static_cast<int64_t>(sizeof(float));
    status = (*file)->ReadAt(at, reinterpret_cast<char*>(out.data() + (from - range.offset)),
                             (to - from) * static_cast<int64_t>(sizeof(float)));
    if (!status.ok()) return {"DataMissing", status};
  }
  const int64_t first = std::max(range.offset, layout.statistics_begin());
  if (statistics || first >= range.end()) return {};
  training::InitRange(layout, options.init, options.seed, first, out.subspan(first - range.offset));
  return {.initial_statistics = true};
}

// Takes the weights of an ONNX file, if they are exactly those of the layout. Memory: up to
// three times the file, whatever the range.
BaseWeightsError FillFromOnnx(const training::FlatLayout& layout, const std::string& path,
                              const training::FlatRange& range, absl::Span<float> out,
                              FileStore& files) {
  const auto file = files.OpenInitialWeights(path, "");
  if (!file.ok()) return {"DataMissing", file.status()};
  const training::onnx::OnnxLimits limits;
  if ((*file)->size_bytes() > limits.max_bytes) {
    return {"InvalidSpec", absl::InvalidArgumentError(absl::StrCat(
                               "initial_weights: ", path, " has ", (*file)->size_bytes(),
                               " bytes, limit ", limits.max_bytes))};
  }
  std::string bytes(static_cast<size_t>((*file)->size_bytes()), '\0');
  absl::Status status = (*file)->ReadAt(0, bytes.data(), (*file)->size_bytes());
  if (!status.ok()) return {"DataMissing", status};
  const auto model = training::onnx::ReadOnnx(bytes, limits);
  if (!model.ok()) {
    return {"InvalidSpec", absl::InvalidArgumentError(absl::StrCat("initial_weights: ", path, ": ",
                                                                   model.status().message()))};
  }
  bytes = {};
  training::SafetensorsHeader header;
  for (const training::onnx::OnnxWeight& weight : model->weights) {
    header.tensors.push_back({weight.name, training::SafetensorsDtype::kF32, weight.shape, 0, 0});
  }
  status = CheckTensors(layout, path, header, /*statistics=*/true);
  if (!status.ok()) return {"InvalidSpec", status};
  std::fill(out.begin(), out.end(), 0.0f);
  for (const training::onnx::OnnxWeight& weight : model->weights) {
    const training::TensorSlot& slot = *layout.Find(weight.name);
    const int64_t from = std::max(slot.offset, range.offset);
    const int64_t to = std::min(slot.offset + slot.size, range.end());
    if (from >= to) continue;
    std::copy(weight.values.begin() + (from - slot.offset),
              weight.values.begin() + (to - slot.offset), out.begin() + (from - range.offset));
  }
  return {};
}

// Reads the chunks of a checkpoint of any job, if they are chunks of the same tensors. Otherwise
// reads its weights.safetensors tensor by tensor, if it has that.
BaseWeightsError FillFromCheckpoint(const training::FlatLayout& layout,
                                    const BaseWeightsOptions& options, const std::string& folder,
                                    const training::FlatRange& range, absl::Span<float> out,
                                    FileStore& files) {
  CheckpointPass pass;
  pass.folder = folder;
  pass.layout = &layout;
  pass.run = RunOf(layout, range);
  pass.open = [&](const std::string& name) { return files.OpenInitialWeights(folder, name); };
  pass.take = [out](CheckpointPart, int64_t at, absl::string_view bytes) {
    std::memcpy(reinterpret_cast<char*>(out.data()) + at, bytes.data(), bytes.size());
    return absl::OkStatus();
  };
  training::Manifest manifest;
  BaseWeightsError error = ReadCheckpoint(pass, &manifest);
  if (error.reason == "InvalidSpec") {
    for (const training::ManifestFile& file : manifest.files) {
      if (file.name != kWeightsFile) continue;
      return FillFromFile(layout, options, folder, file.name, range, out, files);
    }
  }
  if (!error.reason.empty()) {
    error.status = absl::Status(error.status.code(),
                                absl::StrCat("initial_weights: ", error.status.message()));
  }
  return error;
}

}  // namespace

BaseWeightsError FillBaseWeights(const training::FlatLayout& layout,
                                 const BaseWeightsOptions& options,
                                 const training::FlatRange& range, absl::Span<float> out,
                                 FileStore& files) {
  CAPSTAN_CHECK(static_cast<int64_t>(out.size()) == range.size);
  if (options.initial_weights.empty()) {
    training::InitRange(layout, options.init, options.seed, range.offset, out);
    return {};
  }
  const absl::StatusOr<std::string> path = training::LocalPath(options.initial_weights);
  if (!path.ok()) {
    return {"InvalidSpec",
            absl::InvalidArgumentError(absl::StrCat("initial_weights ", path.status().message()))};
  }
  if (const std::string folder = training::CheckpointFolderIn(*path); !folder.empty()) {
    return FillFromCheckpoint(layout, options, folder, range, out, files);
  }
  if (absl::EndsWith(*path, ".onnx")) return FillFromOnnx(layout, *path, range, out, files);
  return FillFromFile(layout, options, *path, "", range, out, files);
}

}  // namespace capstan::param_store
