// `model.layers`: a chain of layers, each of which reads the one before it.
//
// An entry is the name of a layer, or a group of one key, the name, with the layer's attributes:
//
//   layers:
//     - conv: {out_channels: 6, kernel_shape: 5}
//     - relu
//     - gemm                 the last one has model.num_classes outputs, or model.num_outputs
//
// A layer is an operator with one input, which is no Parameter. Its name is the operator's in lower
// case with underscores: BatchNormalization is batch_normalization. Attributes are the operator's.
// A single number may stand for a list: the same number for height and width, and for all sides of
// a window. If the last entry is no loss, softmax_cross_entropy_loss follows it, or
// mean_squared_error_loss where targets are numbers. If the entry in front of the loss is a gemm
// without out_features, it has as many as the job has classes, or as a target has numbers.
//
// Nodes are named by their operators and counted from 1: conv1, relu1, pool1, fc1 (Gemm), bn1
// (BatchNormalization), else like the layer: layer_normalization1. The loss is `loss`.
#ifndef CAPSTAN_TRAINING_SPEC_LAYERS_H_
#define CAPSTAN_TRAINING_SPEC_LAYERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/spec/job_file.h"
#include "training/spec/yaml_tree.h"

namespace capstan::training::spec {

inline constexpr absl::string_view kLayersPath = "model.layers";

// "batch_normalization" of "BatchNormalization", "lrn" of "LRN".
std::string LayerName(absl::string_view op);

// The names of all layers, sorted.
std::vector<std::string> LayerNames();

// What the layer in front of the loss has outputs for.
struct LayerOutputs {
  int64_t num_classes = 10;  // model.num_classes
  int64_t num_outputs = 1;   // model.num_outputs
  // Targets are numbers, as training.loss says. So does a list that ends with such a loss.
  bool numbers = false;
};

// Makes the nodes of the list. Appends to `errors` what is wrong, each with the entry's path and
// place, at most 16; `graph` is valid only if nothing is. What depends on shapes is not checked.
void ReadLayers(const YamlNode& node, const LayerOutputs& outputs, job::v1::Graph& graph,
                std::vector<FileError>& errors);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_LAYERS_H_
