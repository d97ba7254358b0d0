#include "training/graph/models.h"

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "training/graph/models_resnet.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

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
  // Dense layers with Relu between them, and the loss.
  void AddHead(const std::vector<int64_t>& widths) {
    Add("flatten", Flatten());
    for (size_t i = 0; i < widths.size(); ++i) {
      Gemm gemm;
      gemm.out_features = widths[i];
      Add(absl::StrCat("fc", i + 1), gemm);
      if (i + 1 < widths.size()) Add(absl::StrCat("fc", i + 1, "_relu"), Relu());
    }
    Add("loss", SoftmaxCrossEntropyLoss());
  }
  std::vector<GraphNode> Take() { return std::move(nodes_); }

 private:
  std::vector<GraphNode> nodes_;
};

void AddLenet(Chain& chain, int64_t num_classes) {
  chain.AddConv(1, 5, 6);
  chain.AddPool<MaxPool>(1);
  chain.AddConv(2, 3, 16);
  chain.AddPool<MaxPool>(2);
  chain.AddHead({120, 84, num_classes});
}

void AddLenetD2l(Chain& chain, int64_t num_classes) {
  chain.AddConv(1, 3, 20);
  chain.AddPool<AveragePool>(1);
  chain.AddConv(2, 5, 50);
  chain.AddPool<AveragePool>(2);
  chain.AddHead({128, num_classes});
}

void AddMlp(Chain& chain, int64_t num_classes) { chain.AddHead({128, 64, num_classes}); }

// Smaller images are not made smaller at once.
constexpr int64_t kLargeStemHeight = 64;

bool HasLargeStem(const Shape& input) { return input.size() == 3 && input[1] >= kLargeStemHeight; }

struct Model {
  absl::string_view name;
  std::vector<GraphNode> (*nodes)(int64_t num_classes, const Shape& input);
};

template <void (*kAdd)(Chain& chain, int64_t num_classes)>
std::vector<GraphNode> ChainNodes(int64_t num_classes, const Shape&) {
  Chain chain;
  kAdd(chain, num_classes);
  return chain.Take();
}

std::vector<GraphNode> Resnet18V1(int64_t num_classes, const Shape& input) {
  return ResnetNodes(
      {.blocks = {2, 2, 2, 2}, .large_stem = HasLargeStem(input), .num_classes = num_classes});
}
std::vector<GraphNode> Resnet18V2(int64_t num_classes, const Shape& input) {
  return ResnetNodes({.blocks = {2, 2, 2, 2},
                      .pre_activation = true,
                      .large_stem = HasLargeStem(input),
                      .num_classes = num_classes});
}
std::vector<GraphNode> Resnet34V1(int64_t num_classes, const Shape& input) {
  return ResnetNodes(
      {.blocks = {3, 4, 6, 3}, .large_stem = HasLargeStem(input), .num_classes = num_classes});
}
std::vector<GraphNode> Resnet50V1(int64_t num_classes, const Shape& input) {
  return ResnetNodes({.blocks = {3, 4, 6, 3},
                      .bottleneck = true,
                      .large_stem = HasLargeStem(input),
                      .num_classes = num_classes});
}

constexpr Model kModels[] = {
    {"lenet", ChainNodes<AddLenet>}, {"lenet_d2l", ChainNodes<AddLenetD2l>},
    {"mlp", ChainNodes<AddMlp>},     {"resnet18_v1", Resnet18V1},
    {"resnet18_v2", Resnet18V2},     {"resnet34_v1", Resnet34V1},
    {"resnet50_v1", Resnet50V1}};

}  // namespace

std::vector<absl::string_view> ModelNames() {
  std::vector<absl::string_view> names;
  for (const Model& model : kModels) names.push_back(model.name);
  return names;
}

// Chains have a plan of their own, by oneDNN.
bool IsPortableModel(absl::string_view name) {
  return name != "lenet" && name != "lenet_d2l" && name != "mlp";
}

absl::StatusOr<Graph> MakeModel(absl::string_view name, int64_t num_classes,
                                const Shape& input_shape) {
  for (const Model& model : kModels) {
    if (model.name != name) continue;
    if (num_classes < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("num_classes: ", num_classes, ", want at least 2"));
    }
    return Graph::Build(std::string(name), input_shape, model.nodes(num_classes, input_shape));
  }
  return absl::NotFoundError(
      absl::StrCat("model ", name, ": not known, want one of ", absl::StrJoin(ModelNames(), ", ")));
}

}  // namespace capstan::training
