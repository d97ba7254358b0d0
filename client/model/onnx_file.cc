#include "client/model/onnx_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/files/files.h"
#include "training/ops/flatten/flatten.h"

namespace capstan::client {

namespace {

// Data sets give images. So a network of [features] gets a Flatten of [1, 1, features] in front.
void AcceptImages(training::onnx::OnnxModel& model) {
  if (model.input_shape.size() != 1) return;
  std::string name = "input_flatten";
  for (int i = 1; std::any_of(model.nodes.begin(), model.nodes.end(),
                              [&](const training::GraphNode& node) { return node.name == name; });
       ++i) {
    name = absl::StrCat("input_flatten", i);
  }
  for (training::GraphNode& node : model.nodes) {
    for (training::ValueId& input : node.inputs) ++input;
  }
  model.nodes.insert(model.nodes.begin(), {name, training::Flatten(), {0}});
  model.input_shape = {1, 1, model.input_shape[0]};
}

}  // namespace

bool IsOnnxFile(const std::string& path) { return absl::EndsWith(path, ".onnx"); }

absl::StatusOr<OnnxFile> ReadOnnxFile(const std::string& path, training::onnx::OnnxLoss loss) {
  const absl::StatusOr<std::string> bytes =
      services::ReadWholeFile(path, training::onnx::OnnxLimits().max_bytes);
  if (!bytes.ok()) return absl::InvalidArgumentError(bytes.status().message());
  absl::StatusOr<training::onnx::OnnxModel> model = training::onnx::ReadOnnx(*bytes, {}, loss);
  if (!model.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", model.status().message()));
  }
  AcceptImages(*model);
  absl::StatusOr<training::Graph> graph =
      training::onnx::WithLoss(*model, std::filesystem::path(path).filename().string());
  if (!graph.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", graph.status().message()));
  }
  return OnnxFile{*std::move(model), *std::move(graph)};
}

}  // namespace capstan::client
