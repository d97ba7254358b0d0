#include "training/graph/models_deep_chains.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

// Appends nodes in a chain. As in torchvision, a layer is named by its place in `features` or
// `classifier`, where a Dropout has a place even if there is none.
class DeepChainBuilder {
 public:
  explicit DeepChainBuilder(const DeepChainOptions& options)
      : options_(options),
        size_{options.input.size() == 3 ? options.input[1] : 1,
              options.input.size() == 3 ? options.input[2] : 1} {}

  void ConvRelu(int64_t channels, int64_t kernel, int64_t stride, int64_t pad) {
    Conv conv;
    conv.out_channels = channels;
    conv.window.kernel_shape = {kernel, kernel};
    conv.window.strides = {stride, stride};
    conv.window.pads = {pad, pad, pad, pad};
    AddNode(absl::StrCat("features.", place_++), conv);
    AddNode(absl::StrCat("features.", place_++), Relu());
    // A size of an image that is too small counts as 1: Graph::Build refuses the layer.
    for (int64_t& size : size_) {
      size = std::max<int64_t>(1, (size + 2 * pad - kernel) / stride + 1);
    }
  }

  // Left out if it would leave nothing of an image.
  void Pool(int64_t kernel) {
    const int place = place_++;
    if (size_[0] < kernel || size_[1] < kernel) return;
    MaxPool pool;
    pool.window.kernel_shape = {kernel, kernel};
    pool.window.strides = {2, 2};
    AddNode(absl::StrCat("features.", place), pool);
    for (int64_t& size : size_) size = (size - kernel) / 2 + 1;
  }

  // Leaves at most `most` rows and columns, the means of equal windows.
  void LimitSize(int64_t most) {
    if (size_[0] <= most && size_[1] <= most) return;
    AveragePool pool;
    for (int axis = 0; axis < 2; ++axis) {
      const int64_t cells = std::min(size_[axis], most);
      pool.window.strides[axis] = size_[axis] / cells;
      pool.window.kernel_shape[axis] = size_[axis] - (cells - 1) * pool.window.strides[axis];
    }
    AddNode("avgpool", pool);
  }

  void Classify(int64_t width, bool dropout_first) {
    AddNode("flatten", Flatten());
    place_ = 0;
    for (int layer = 0; layer < 2; ++layer) {
      if (dropout_first) AddDropout(layer);
      Dense(width);
      AddNode(absl::StrCat("classifier.", place_++), Relu());
      if (!dropout_first) AddDropout(layer);
    }
    Dense(options_.num_classes);
    AddNode("loss", SoftmaxCrossEntropyLoss());
  }

  std::vector<GraphNode> Take() { return std::move(nodes_); }

 private:
  void AddNode(std::string name, Operator op) {
    const auto input = static_cast<ValueId>(nodes_.size());
    nodes_.push_back({std::move(name), std::move(op), {input}});
  }
  void Dense(int64_t width) {
    Gemm gemm;
    gemm.out_features = width;
    AddNode(absl::StrCat("classifier.", place_++), gemm);
  }
  void AddDropout(int layer) {
    ++place_;
    if (options_.dropout == 0) return;
    AddNode(layer == 0 ? "dropout" : "dropout2", Dropout{options_.dropout});
  }

  const DeepChainOptions& options_;
  std::vector<GraphNode> nodes_;
  std::array<int64_t, 2> size_;  // rows and columns of the last value
  int place_ = 0;                // the next one in `features` or `classifier`
};

}  // namespace

std::vector<GraphNode> AlexnetNodes(const DeepChainOptions& options) {
  const bool large = options.large_image;
  const int64_t pool = large ? 3 : 2;
  DeepChainBuilder chain(options);
  if (large) {
    chain.ConvRelu(64, 11, 4, 2);
  } else {
    chain.ConvRelu(64, 3, 1, 1);
  }
  chain.Pool(pool);
  chain.ConvRelu(192, 5, 1, 2);
  chain.Pool(pool);
  chain.ConvRelu(384, 3, 1, 1);
  chain.ConvRelu(256, 3, 1, 1);
  chain.ConvRelu(256, 3, 1, 1);
  chain.Pool(pool);
  chain.LimitSize(6);
  chain.Classify(large ? 4096 : 1024, /*dropout_first=*/true);
  return chain.Take();
}

std::vector<GraphNode> Vgg16Nodes(const DeepChainOptions& options) {
  constexpr int kConvs[] = {2, 2, 3, 3, 3};
  DeepChainBuilder chain(options);
  int64_t channels = 64;
  for (const int convs : kConvs) {
    for (int i = 0; i < convs; ++i) chain.ConvRelu(channels, 3, 1, 1);
    chain.Pool(2);
    channels = channels < 512 ? 2 * channels : channels;
  }
  chain.LimitSize(7);
  chain.Classify(options.large_image ? 4096 : 512, /*dropout_first=*/false);
  return chain.Take();
}

}  // namespace capstan::training
