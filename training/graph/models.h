// The built-in models.
//
//   lenet      Conv 5x5/6, Relu, MaxPool 2, Conv 3x3/16, Relu, MaxPool 2, Gemm 120, 84, classes
//              with Relu between: 60 170 parameters in conv1 conv2 fc1 fc2 fc3 for [1, 28, 28] and
//              10 classes
//   lenet_d2l  Conv 3x3/20, Relu, AveragePool 2, Conv 5x5/50, Relu, AveragePool 2, Gemm 128,
//              classes: 129 068 parameters in conv1 conv2 fc1 fc2 (the LeNet of "Dive into Deep
//              Learning", MXNet edition)
//   mlp        Flatten, Gemm 128, 64, classes, Relu between: 109 386 parameters in fc1 fc2 fc3
// These convolutions do not pad. Pooling windows are 2x2 with stride 2 and drop an odd last row or
// column.
//
//   resnet18_v1, resnet34_v1   of basic blocks (3x3, 3x3): 11 689 512 and 21 797 672 trained
//                              parameters for [3, 224, 224] and 1000 classes
//   resnet50_v1                of bottlenecks (1x1, 3x3, 1x1): 25 557 032
//   resnet18_v2                normalisation and Relu before each convolution: 11 687 848
// He et al. 2015, arXiv:1512.03385; version 2: He et al. 2016, arXiv:1603.05027. There are four
// stages of 64 to 512 channels; the output of a bottleneck has four times as many. The last three
// stages halve the height. Then follow the mean over the image, and `fc`. Convolutions have no
// bias. For images of at least 64 rows, the stem is conv1 7x7 with stride 2, bn1, Relu and MaxPool
// 3x3 with stride 2. For smaller images it is conv1 3x3 with stride 1, bn1 and Relu: 11 173 962
// parameters of resnet18_v1 for [3, 32, 32] and 10 classes.
//
// Version 1 has torchvision's names and shapes (conv1 bn1 layer1.0.conv1 layer2.0.downsample.0 fc),
// without num_batches_tracked. As there, the stride of a bottleneck is in its 3x3. torchvision has
// no version 2; its names here are similar, and its last normalisation is bn_last. If a block
// changes the shape, its shortcut is a convolution behind the block's first normalisation, as in
// Gluon's. The input is not normalised, and the stem of small images is conv1 alone.
//
//   alexnet        five convolutions and three dense layers: 61 100 840 parameters for
//                  [3, 224, 224] and 1000 classes (Krizhevsky 2014, arXiv:1404.5997)
//   vgg16          13 convolutions 3x3 and three dense layers: 138 357 544 (configuration D of
//                  Simonyan and Zisserman 2014, arXiv:1409.1556)
//   mobilenet_v1   a stem and 13 blocks, each a depthwise convolution 3x3 and a convolution 1x1,
//                  with normalisation and Relu behind each: 4 231 976 trained parameters (Howard et
//                  al. 2017, arXiv:1704.04861, width 1)
// alexnet and vgg16 have torchvision's names and shapes (features.0, classifier.6). They are chains.
// The dense layers read what the convolutions leave, at most 6x6 places in alexnet and 7x7 in
// vgg16. An average pooling of equal windows limits larger images to that. It is torchvision's
// adaptive pooling if height and width of the places are multiples of 6 or 7. A pooling that would
// leave nothing of an image is left out. For images below 64 rows, alexnet begins with 3x3 and
// stride 1, its poolings are 2x2, and its dense layers have 1024 instead of 4096 numbers; those of
// vgg16 have 512. mobilenet_v1 has timm's names (conv_stem bn1 blocks.0.0.conv_dw
// blocks.0.0.conv_pw classifier). Its convolutions have no bias. The stem has stride 1 for images
// below 64 rows, else 2.
//
//   gpt_nano   a language model on the characters of a text, with the sizes of minGPT's gpt-nano: 3
//              blocks of 3 heads and width 48, for samples of as many tokens as the input has
//              numbers: 94 224 trained parameters for 64 tokens and 65 characters (models_gpt.h)
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

// The layers of a built-in model, for people. Empty: there is no such text, or no such model.
absl::string_view AboutModel(absl::string_view name);

// Whether the model has an operator that couples the samples of a lane (OpDef::couples_samples).
// False for unknown names.
bool ModelCouplesSamples(absl::string_view name);

// Whether the model reads tokens, i.e. small whole numbers, and not an image. False for unknown
// names.
bool ModelReadsTokens(absl::string_view name);

// Whether `op` is an operator of chains. A graph with another operator, or with a node that reads
// anything except the value before it, is no chain.
bool IsChainOperator(absl::string_view op);

// `dropout` above 0 is the ratio of a Dropout, the node `dropout` in front of the model's last
// dense layer. alexnet and vgg16 have two, `dropout` and `dropout2`, where torchvision has them: in
// front of the first two dense layers of alexnet and of the last two of vgg16. Of gpt_nano it is
// the ratio of several nodes. The names and shapes of parameters do not change. The network is then
// no longer a chain of the first seven operators.
//
// NotFound: no model has this name; the message lists the names. InvalidArgument: fewer than 2
// classes, a dropout outside [0, 1), or an input shape that the layers do not accept; the message
// names the layer.
absl::StatusOr<Graph> MakeModel(absl::string_view name, int64_t num_classes,
                                const Shape& input_shape, double dropout = 0);

// The same with a MeanSquaredErrorLoss, and `num_outputs` >= 1 numbers in place of the logits.
// InvalidArgument also: the model's loss reads more than its logits, as that of gpt_nano.
absl::StatusOr<Graph> MakeRegressor(absl::string_view name, int64_t num_outputs,
                                    const Shape& input_shape, double dropout = 0);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_GRAPH_MODELS_H_
