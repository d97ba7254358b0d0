// The built-in models.
//
//   lenet      Conv 5x5/6, Relu, MaxPool 2, Conv 3x3/16, Relu, MaxPool 2, Gemm 120, 84, classes with
//              Relu between: 60 170 parameters in conv1 conv2 fc1 fc2 fc3 for [1, 28, 28] and 10
//              classes
//   lenet_d2l  Conv 3x3/20, Relu, AveragePool 2, Conv 5x5/50, Relu, AveragePool 2, Gemm 128,
//              classes: 129 068 parameters in conv1 conv2 fc1 fc2 (the LeNet of "Dive into Deep Learning",
//              MXNet edition)
//   mlp        Flatten, Gemm 128, 64, classes, Relu between: 109 386 parameters in fc1 fc2 fc3
// No convolution pads; pooling windows are 2x2 with stride 2 and drop an odd last row or column.
#ifndef CAPSTAN_TRAINING_GRAPH_MODELS_H_
#define CAPSTAN_TRAINING_GRAPH_MODELS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "training/graph/graph.h"

namespace capstan::training {

// The names that MakeModel knows, sorted.
std::vector<absl::string_view> ModelNames();

// NotFound: no model of this name; the message lists them. InvalidArgument: fewer than 2 classes,
// or an input shape that the layers do not take; the message names the layer.
absl::StatusOr<Graph> MakeModel(absl::string_view name, int64_t num_classes,
                                const Shape& input_shape);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_H_
