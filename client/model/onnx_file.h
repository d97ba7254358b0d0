// ONNX files on this host, as networks of job files.
#ifndef CAPSTAN_CLIENT_MODEL_ONNX_FILE_H_
#define CAPSTAN_CLIENT_MODEL_ONNX_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "training/graph/graph.h"
#include "training/onnx/onnx_model.h"

namespace capstan::client {

// Whether the name of a file ends with .onnx.
bool IsOnnxFile(const std::string& path);

struct OnnxFile {
  training::onnx::OnnxModel model;
  training::Graph graph;  // the model with its loss
};

// `loss` is that of the network. A network whose input is [features] gets a node in front, and
// reads images [1, 1, features]. InvalidArgument: the file cannot be read or cannot be a network
// here. The message begins with the path.
absl::StatusOr<OnnxFile> ReadOnnxFile(
    const std::string& path,
    training::onnx::OnnxLoss loss = training::onnx::OnnxLoss::kSoftmaxCrossEntropy);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_MODEL_ONNX_FILE_H_
