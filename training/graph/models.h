// The built-in models.
//
//   lenet      Conv 5x5/6, Relu, MaxPool 2, Conv 3x3/16, Relu, MaxPool 2, Gemm 120, 84, classes with
//              Relu between: 60 170 parameters in conv1 conv2 fc1 fc2 fc3 for [1, 28, 28] and 10
//              classes
//   lenet_d2l  Conv 3x3/20, Relu, AveragePool 2, Conv 5x5/50, Relu, AveragePool 2, Gemm 128,
//              classes: 129 068 parameters in conv1 conv2 fc1 fc2 (the LeNet of "Dive into Deep Learning",
//              MXNet edition)
//   mlp        Flatten, Gemm 128, 64, classes, Relu between: 109 386 parameters in fc1 fc2 fc3
// No convolution of these pads; pooling windows are 2x2 with stride 2 and drop an odd last row or column.
//
//   resnet18_v1, resnet34_v1   of basic blocks (3x3, 3x3): 11 689 512 and 21 797 672 trained
//                              parameters for [3, 224, 224] and 1000 classes
//   resnet50_v1                of bottlenecks (1x1, 3x3, 1x1): 25 557 032
//   resnet18_v2                normalisation and Relu before each convolution: 11 687 848
// He et al. 2015, arXiv:1512.03385; version 2: He et al. 2016, arXiv:1603.05027. Four stages of 64 to
// 512 channels (bottlenecks put out four times as many), the later three of which halve the height;
// then the mean over the image, and `fc`. Convolutions have no bias. The stem of images of at least 64
// rows is conv1 7x7 with stride 2, bn1, Relu and MaxPool 3x3 with stride 2; of smaller ones conv1 3x3
// with stride 1, bn1 and Relu: 11 173 962 parameters of resnet18_v1 for [3, 32, 32] and 10 classes.
//
// Version 1 has torchvision's names and shapes (conv1 bn1 layer1.0.conv1 layer2.0.downsample.0 fc), without
// num_batches_tracked; the stride of a bottleneck is in its 3x3, as there. Version 2 has no such module in
// torchvision; its names are alike, its last normalisation is bn_last. Where a block changes the shape its
// shortcut is a convolution behind the block's first normalisation, as in Gluon's; the input is not
// normalised, and the stem of small images is conv1 alone.
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

// What a built-in chain is made of, for people. Empty: another model, or none of this name.
absl::string_view AboutModel(absl::string_view name);

// Whether it is a chain. False for names that are no model's. Without dropout: with it no model is one.
bool IsChainModel(absl::string_view name);

// Whether it has an operator that couples the samples of a lane (OpDef::couples_samples). False for names that are no
// model's.
bool ModelCouplesSamples(absl::string_view name);

// The operators of chains. A graph with another one, or with a node that reads anything else than the value before it,
// is no chain. Devices of GPUs carry out chains alone (gpu_worker/engine/device/chain.h).
bool IsChainOperator(absl::string_view op);

// `dropout` above 0 is the ratio of a Dropout, the node `dropout` in front of the last dense layer of
// any of them; parameters have the same names and shapes with it. The network is then no chain of the
// first seven operators.
//
// NotFound: no model of this name; the message lists them. InvalidArgument: fewer than 2 classes, a
// dropout outside [0, 1), or an input shape that the layers do not take; the message names the layer.
absl::StatusOr<Graph> MakeModel(absl::string_view name, int64_t num_classes,
                                const Shape& input_shape, double dropout = 0);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_H_
