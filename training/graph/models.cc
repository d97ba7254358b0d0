#include "training/graph/models.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/graph/models_deep_chains.h"
#include "training/graph/models_gpt.h"
#include "training/graph/models_mobilenet.h"
#include "training/graph/models_resnet.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

struct ModelOptions {
  int64_t num_classes = 0;
  double dropout = 0;
};

// Appends nodes in a chain.
class Chain {
 public:
  void Add(std::string name, Operator op) {
    const ValueId input = static_cast<ValueId>(nodes_.size());
    nodes_.push_back({std::move(name), std::move(op), {input}});
  }
  void AddConv(int layer, int64_t kernel, int64_t out_channels) {
    Conv conv;
    conv.out_channels = out_channels;
    conv.window.kernel_shape = {kernel, kernel};
    Add(absl::StrCat("conv", layer), conv);
    Add(absl::StrCat("conv", layer, "_relu"), Relu());
  }
  template <typename Pool>
  void AddPool(int layer) {
    Pool pool;
    pool.window.kernel_shape = {2, 2};
    pool.window.strides = {2, 2};
    Add(absl::StrCat("pool", layer), pool);
  }
  // Dense layers with Relu between them, and the loss. A dropout of 0 adds no node.
  void AddHead(const std::vector<int64_t>& widths, double dropout) {
    Add("flatten", Flatten());
    for (size_t i = 0; i < widths.size(); ++i) {
      Gemm gemm;
      gemm.out_features = widths[i];
      if (i + 1 == widths.size() && dropout > 0) Add("dropout", Dropout{dropout});
      Add(absl::StrCat("fc", i + 1), gemm);
      if (i + 1 < widths.size()) Add(absl::StrCat("fc", i + 1, "_relu"), Relu());
    }
    Add("loss", SoftmaxCrossEntropyLoss());
  }
  std::vector<GraphNode> Take() { return std::move(nodes_); }

 private:
  std::vector<GraphNode> nodes_;
};

void AddLenet(Chain& chain, const ModelOptions& options) {
  chain.AddConv(1, 5, 6);
  chain.AddPool<MaxPool>(1);
  chain.AddConv(2, 3, 16);
  chain.AddPool<MaxPool>(2);
  chain.AddHead({120, 84, options.num_classes}, options.dropout);
}

void AddLenetD2l(Chain& chain, const ModelOptions& options) {
  chain.AddConv(1, 3, 20);
  chain.AddPool<AveragePool>(1);
  chain.AddConv(2, 5, 50);
  chain.AddPool<AveragePool>(2);
  chain.AddHead({128, options.num_classes}, options.dropout);
}

void AddMlp(Chain& chain, const ModelOptions& options) {
  chain.AddHead({128, 64, options.num_classes}, options.dropout);
}

// The stem of smaller images keeps their size.
constexpr int64_t kLargeStemHeight = 64;

bool HasLargeStem(const Shape& input) { return input.size() == 3 && input[1] >= kLargeStemHeight; }

struct Model {
  absl::string_view name;
  std::vector<GraphNode> (*nodes)(const ModelOptions& options, const Shape& input);
  absl::string_view about = "";
};

template <void (*kAdd)(Chain& chain, const ModelOptions& options)>
std::vector<GraphNode> ChainNodes(const ModelOptions& options, const Shape&) {
  Chain chain;
  kAdd(chain, options);
  return chain.Take();
}

ResnetOptions ResnetOf(std::vector<int> blocks, const ModelOptions& options, const Shape& input) {
  ResnetOptions resnet;
  resnet.blocks = std::move(blocks);
  resnet.large_stem = HasLargeStem(input);
  resnet.num_classes = options.num_classes;
  resnet.dropout = options.dropout;
  return resnet;
}
std::vector<GraphNode> Resnet18V1(const ModelOptions& options, const Shape& input) {
  return ResnetNodes(ResnetOf({2, 2, 2, 2}, options, input));
}
std::vector<GraphNode> Resnet18V2(const ModelOptions& options, const Shape& input) {
  ResnetOptions resnet = ResnetOf({2, 2, 2, 2}, options, input);
  resnet.pre_activation = true;
  return ResnetNodes(resnet);
}
std::vector<GraphNode> Resnet34V1(const ModelOptions& options, const Shape& input) {
  return ResnetNodes(ResnetOf({3, 4, 6, 3}, options, input));
}
std::vector<GraphNode> Resnet50V1(const ModelOptions& options, const Shape& input) {
  ResnetOptions resnet = ResnetOf({3, 4, 6, 3}, options, input);
  resnet.bottleneck = true;
  return ResnetNodes(resnet);
}

DeepChainOptions DeepChainOf(const ModelOptions& options, const Shape& input) {
  return {input, HasLargeStem(input), options.num_classes, options.dropout};
}
std::vector<GraphNode> Alexnet(const ModelOptions& options, const Shape& input) {
  return AlexnetNodes(DeepChainOf(options, input));
}
std::vector<GraphNode> Vgg16(const ModelOptions& options, const Shape& input) {
  return Vgg16Nodes(DeepChainOf(options, input));
}
std::vector<GraphNode> MobilenetV1(const ModelOptions& options, const Shape& input) {
  return MobilenetV1Nodes({HasLargeStem(input), options.num_classes, options.dropout});
}

std::vector<GraphNode> GptNano(const ModelOptions& options, const Shape& input) {
  GptOptions gpt;
  gpt.layers = 3;
  gpt.heads = 3;
  gpt.width = 48;
  gpt.vocabulary = options.num_classes;
  gpt.positions = 1;
  for (const int64_t size : input) gpt.positions *= size;
  gpt.dropout = options.dropout;
  return GptNodes(gpt);
}

constexpr Model kModels[] = {
    {"alexnet", Alexnet,
     "AlexNet as torchvision has it: five convolutions, max pooling, then dense layers"},
    {"gpt_nano", GptNano,
     "minGPT's gpt-nano on characters: 3 blocks of attention with 3 heads and width 48"},
    {"lenet", ChainNodes<AddLenet>,
     "LeNet of Gluon's pages: convolutions 5x5 to 6 and 3x3 to 16 channels, max pooling, then "
     "120 and 84"},
    {"lenet_d2l", ChainNodes<AddLenetD2l>,
     "LeNet of Dive into Deep Learning: convolutions 3x3 to 20 and 5x5 to 50 channels, average "
     "pooling, then 128"},
    {"mlp", ChainNodes<AddMlp>, "dense layers of 128 and 64, no convolutions"},
    {"mobilenet_v1", MobilenetV1},
    {"resnet18_v1", Resnet18V1},
    {"resnet18_v2", Resnet18V2},
    {"resnet34_v1", Resnet34V1},
    {"resnet50_v1", Resnet50V1},
    {"vgg16", Vgg16, "VGG-16: 13 convolutions 3x3 to 64 up to 512 channels, then dense layers"}};

}  // namespace

std::vector<absl::string_view> ModelNames() {
  std::vector<absl::string_view> names;
  for (const Model& model : kModels) names.push_back(model.name);
  return names;
}

absl::string_view AboutModel(absl::string_view name) {
  for (const Model& model : kModels) {
    if (model.name == name) return model.about;
  }
  return "";
}

bool ModelCouplesSamples(absl::string_view name) {
  for (const Model& model : kModels) {
    if (model.name != name) continue;
    // The answer does not depend on the size or the number of classes.
    for (const GraphNode& node : model.nodes({10, 0}, {3, 32, 32})) {
      const OpDef* const def = FindOp(node.op.name);
      if (def != nullptr && def->couples_samples) return true;
    }
  }
  return false;
}

bool ModelReadsTokens(absl::string_view name) { return name == "gpt_nano"; }

bool IsChainOperator(absl::string_view op) {
  constexpr absl::string_view kChainOps[] = {Conv::kName,
                                             MaxPool::kName,
                                             AveragePool::kName,
                                             Gemm::kName,
                                             Relu::kName,
                                             Flatten::kName,
                                             SoftmaxCrossEntropyLoss::kName};
  return std::find(std::begin(kChainOps), std::end(kChainOps), op) != std::end(kChainOps);
}

namespace {

// Null: no model has this name.
const Model* FindModel(absl::string_view name) {
  const Model* const found = std::find_if(std::begin(kModels), std::end(kModels),
                                          [&](const Model& model) { return model.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

// The model's nodes. `what` names `outputs`, of which there are at least `fewest`.
absl::StatusOr<std::vector<GraphNode>> NodesOf(absl::string_view name, const char* what,
                                               int64_t fewest, const ModelOptions& options,
                                               const Shape& input_shape) {
  const Model* const model = FindModel(name);
  if (model == nullptr) {
    return absl::NotFoundError(absl::StrCat("model ", name, ": not known, want one of ",
                                            absl::StrJoin(ModelNames(), ", ")));
  }
  if (options.num_classes < fewest) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", options.num_classes, ", want at least ", fewest));
  }
  if (!(options.dropout >= 0 && options.dropout < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("dropout: ", options.dropout, ", want at least 0 and below 1"));
  }
  const absl::StatusOr<int64_t> elements = ElementCount(input_shape, "input");
  if (!elements.ok()) return elements.status();
  return model->nodes(options, input_shape);
}

}  // namespace

absl::StatusOr<Graph> MakeModel(absl::string_view name, int64_t num_classes,
                                const Shape& input_shape, double dropout) {
  absl::StatusOr<std::vector<GraphNode>> nodes =
      NodesOf(name, "num_classes", /*fewest=*/2, {num_classes, dropout}, input_shape);
  if (!nodes.ok()) return nodes.status();
  return Graph::Build(std::string(name), input_shape, *std::move(nodes));
}

absl::StatusOr<Graph> MakeRegressor(absl::string_view name, int64_t num_outputs,
                                    const Shape& input_shape, double dropout) {
  absl::StatusOr<std::vector<GraphNode>> nodes =
      NodesOf(name, "num_outputs", /*fewest=*/1, {num_outputs, dropout}, input_shape);
  if (!nodes.ok()) return nodes.status();
  if (nodes->back().inputs.size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("model ", name, ": its loss reads more than the logits, want another model"));
  }
  nodes->back().op = MeanSquaredErrorLoss();
  return Graph::Build(std::string(name), input_shape, *std::move(nodes));
}

}  // namespace capstan::training
