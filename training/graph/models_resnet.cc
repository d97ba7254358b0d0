#include "training/graph/models_resnet.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/check/check.h"
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

constexpr int64_t kStemChannels = 64;
constexpr int64_t kExpansion = 4;  // output channels of a bottleneck per inner channel

class ResnetBuilder {
 public:
  explicit ResnetBuilder(const ResnetOptions& options) : options_(options) {}

  std::vector<GraphNode> Build() {
    ValueId x = Stem();
    channels_ = kStemChannels;
    int64_t width = kStemChannels;
    for (size_t stage = 0; stage < options_.blocks.size(); ++stage) {
      for (int block = 0; block < options_.blocks[stage]; ++block) {
        const std::string name = absl::StrCat("layer", stage + 1, ".", block, ".");
        const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
        x = options_.pre_activation ? PreActivationBlock(name, x, width, stride)
            : options_.bottleneck   ? BottleneckBlock(name, x, width, stride)
                                    : BasicBlock(name, x, width, stride);
      }
      width *= 2;
    }
    if (options_.pre_activation) x = AddNode("relu_last", Relu(), AddNorm("bn_last", x));
    x = AddNode("avgpool", GlobalAveragePool(), x);
    x = AddNode("flatten", Flatten(), x);
    if (options_.dropout > 0) x = AddNode("dropout", Dropout{options_.dropout}, x);
    Gemm fc;
    fc.out_features = options_.num_classes;
    x = AddNode("fc", fc, x);
    AddNode("loss", SoftmaxCrossEntropyLoss(), x);
    return std::move(nodes_);
  }

 private:
  ValueId AddNode(std::string name, Operator op, ValueId x) {
    nodes_.push_back({std::move(name), std::move(op), {x}});
    return static_cast<ValueId>(nodes_.size());
  }
  // Keeps height and width, except for the stride.
  ValueId AddConv(std::string name, ValueId x, int64_t kernel, int64_t channels, int64_t stride) {
    const int64_t pad = kernel / 2;
    Conv conv;
    conv.out_channels = channels;
    conv.window.kernel_shape = {kernel, kernel};
    conv.window.strides = {stride, stride};
    conv.window.pads = {pad, pad, pad, pad};
    conv.bias = false;
    return AddNode(std::move(name), conv, x);
  }
  ValueId AddNorm(std::string name, ValueId x) {
    return AddNode(std::move(name), BatchNormalization(), x);
  }
  ValueId AddSum(const std::string& block, ValueId a, ValueId b) {
    nodes_.push_back({block + "add", Add(), {a, b}});
    return static_cast<ValueId>(nodes_.size());
  }

  ValueId Stem() {
    constexpr ValueId kInput = 0;
    // The first block of version 2 normalises its input itself.
    if (options_.pre_activation && !options_.large_stem) {
      return AddConv("conv1", kInput, 3, kStemChannels, 1);
    }
    ValueId x = AddConv("conv1", kInput, options_.large_stem ? 7 : 3, kStemChannels,
                        options_.large_stem ? 2 : 1);
    x = AddNode("relu", Relu(), AddNorm("bn1", x));
    if (!options_.large_stem) return x;
    MaxPool pool;
    pool.window.kernel_shape = {3, 3};
    pool.window.strides = {2, 2};
    pool.window.pads = {1, 1, 1, 1};
    return AddNode("maxpool", pool, x);
  }

  // The shortcut that a block of version 1 adds at its end. Its nodes follow the block's own
  // layers, as in torchvision's list of parameters.
  ValueId Shortcut(const std::string& block, ValueId x, int64_t channels, int64_t stride) {
    if (stride == 1 && channels == channels_) return x;
    return AddNorm(block + "downsample.1", AddConv(block + "downsample.0", x, 1, channels, stride));
  }

  ValueId BasicBlock(const std::string& block, ValueId x, int64_t width, int64_t stride) {
    ValueId y = AddNorm(block + "bn1", AddConv(block + "conv1", x, 3, width, stride));
    y = AddNode(block + "relu1", Relu(), y);
    y = AddNorm(block + "bn2", AddConv(block + "conv2", y, 3, width, 1));
    const ValueId shortcut = Shortcut(block, x, width, stride);
    channels_ = width;
    return AddNode(block + "relu2", Relu(), AddSum(block, y, shortcut));
  }

  ValueId BottleneckBlock(const std::string& block, ValueId x, int64_t width, int64_t stride) {
    ValueId y = AddNorm(block + "bn1", AddConv(block + "conv1", x, 1, width, 1));
    y = AddNode(block + "relu1", Relu(), y);
    y = AddNorm(block + "bn2", AddConv(block + "conv2", y, 3, width, stride));
    y = AddNode(block + "relu2", Relu(), y);
    y = AddNorm(block + "bn3", AddConv(block + "conv3", y, 1, width * kExpansion, 1));
    const ValueId shortcut = Shortcut(block, x, width * kExpansion, stride);
    channels_ = width * kExpansion;
    return AddNode(block + "relu3", Relu(), AddSum(block, y, shortcut));
  }

  // If a block changes the shape, its shortcut begins after the first normalisation and has none of
  // its own.
  ValueId PreActivationBlock(const std::string& block, ValueId x, int64_t width, int64_t stride) {
    CAPSTAN_CHECK(!options_.bottleneck);
    const ValueId normal = AddNode(block + "relu1", Relu(), AddNorm(block + "bn1", x));
    ValueId y = AddConv(block + "conv1", normal, 3, width, stride);
    y = AddNode(block + "relu2", Relu(), AddNorm(block + "bn2", y));
    y = AddConv(block + "conv2", y, 3, width, 1);
    const bool same = stride == 1 && width == channels_;
    const ValueId shortcut = same ? x : AddConv(block + "downsample.0", normal, 1, width, stride);
    channels_ = width;
    return AddSum(block, y, shortcut);
  }

  const ResnetOptions& options_;
  std::vector<GraphNode> nodes_;
  int64_t channels_ = 0;  // channels of the next block's input
};

}  // namespace

std::vector<GraphNode> ResnetNodes(const ResnetOptions& options) {
  return ResnetBuilder(options).Build();
}

}  // namespace capstan::training
