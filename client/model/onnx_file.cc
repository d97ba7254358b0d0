#include "client/model/onnx_file.h"

#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/files/files.h"

namespace capstan::client {

bool IsOnnxFile(const std::string& path) { return absl::EndsWith(path, ".onnx"); }

absl::StatusOr<OnnxFile> ReadOnnxFile(const std::string& path) {
  const absl::StatusOr<std::string> bytes =
      services::ReadWholeFile(path, training::onnx::OnnxLimits().max_bytes);
  if (!bytes.ok()) return absl::InvalidArgumentError(bytes.status().message());
  absl::StatusOr<training::onnx::OnnxModel> model = training::onnx::ReadOnnx(*bytes);
  if (!model.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", model.status().message()));
  }
  absl::StatusOr<training::Graph> graph =
      training::onnx::WithLoss(*model, std::filesystem::path(path).filename().string());
  if (!graph.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", graph.status().message()));
  }
  return OnnxFile{*std::move(model), *std::move(graph)};
}

}  // namespace capstan::client
