#include "training/graph/models_mobilenet.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

constexpr int64_t kMobilenetStemChannels = 32;

// Blocks of equal width. The first one of each stage except the first stage halves the image.
struct MobilenetStage {
  int blocks;
  int64_t channels;
};
constexpr MobilenetStage kStages[] = {{1, 64}, {2, 128}, {2, 256}, {6, 512}, {2, 1024}};

class MobilenetBuilder {
 public:
  explicit MobilenetBuilder(const MobilenetOptions& options) : options_(options) {}

  std::vector<GraphNode> Build() {
    AddConv("conv_stem", {.kernel = 3, .stride = options_.large_stem ? 2 : 1},
            kMobilenetStemChannels);
    AddNormRelu("", 1);
    int64_t channels = kMobilenetStemChannels;
    int stage = 0;
    for (const MobilenetStage& of : kStages) {
      for (int block = 0; block < of.blocks; ++block) {
        const std::string name = absl::StrCat("blocks.", stage, ".", block, ".");
        AddConv(name + "conv_dw",
                {.kernel = 3, .stride = stage > 0 && block == 0 ? 2 : 1, .group = channels},
                channels);
        AddNormRelu(name, 1);
        AddConv(name + "conv_pw", {}, of.channels);
        AddNormRelu(name, 2);
        channels = of.channels;
      }
      ++stage;
    }
    AddNode("avgpool", GlobalAveragePool());
    AddNode("flatten", Flatten());
    if (options_.dropout > 0) AddNode("dropout", Dropout{options_.dropout});
    Gemm classifier;
    classifier.out_features = options_.num_classes;
    AddNode("classifier", classifier);
    AddNode("loss", SoftmaxCrossEntropyLoss());
    return std::move(nodes_);
  }

 private:
  struct ConvShape {
    int64_t kernel = 1, stride = 1, group = 1;
  };

  void AddNode(std::string name, Operator op) {
    const auto input = static_cast<ValueId>(nodes_.size());
    nodes_.push_back({std::move(name), std::move(op), {input}});
  }
  // Keeps height and width, except for the stride.
  void AddConv(std::string name, const ConvShape& shape, int64_t channels) {
    const int64_t pad = shape.kernel / 2;
    Conv conv;
    conv.out_channels = channels;
    conv.window.kernel_shape = {shape.kernel, shape.kernel};
    conv.window.strides = {shape.stride, shape.stride};
    conv.window.pads = {pad, pad, pad, pad};
    conv.group = shape.group;
    conv.bias = false;
    AddNode(std::move(name), conv);
  }
  void AddNormRelu(const std::string& block, int number) {
    AddNode(absl::StrCat(block, "bn", number), BatchNormalization());
    AddNode(absl::StrCat(block, "relu", number), Relu());
  }

  const MobilenetOptions& options_;
  std::vector<GraphNode> nodes_;
};

}  // namespace

std::vector<GraphNode> MobilenetV1Nodes(const MobilenetOptions& options) {
  return MobilenetBuilder(options).Build();
}

}  // namespace capstan::training
