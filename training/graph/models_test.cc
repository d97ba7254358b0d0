#include "training/graph/models.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters()) names.push_back(parameter.name);
  return names;
}

TEST(ModelsTest, Lenet) {
  const absl::StatusOr<Graph> graph = MakeModel("lenet", 10, {1, 28, 28});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->parameter_elements(), 60170);
  EXPECT_THAT(Names(*graph),
              ElementsAre("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
                          "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"));
  EXPECT_THAT(graph->parameters()[2].shape, ElementsAre(16, 6, 3, 3));
  EXPECT_THAT(graph->parameters()[4].shape, ElementsAre(120, 400));
  EXPECT_EQ(graph->num_classes(), 10);
  // 2 * (24*24*6*25 + 10*10*16*54 + 400*120 + 120*84 + 84*10)
  EXPECT_EQ(graph->forward_flops(), 2 * (86400 + 86400 + 48000 + 10080 + 840));
  // The first convolution needs no gradient by its input.
  EXPECT_EQ(graph->training_flops(), 3 * graph->forward_flops() - 2 * 86400);
}

TEST(ModelsTest, LenetD2l) {
  const absl::StatusOr<Graph> graph = MakeModel("lenet_d2l", 10, {1, 28, 28});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->parameter_elements(), 129068);
  EXPECT_THAT(Names(*graph), ElementsAre("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                                         "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"));
  EXPECT_THAT(graph->parameters()[4].shape, ElementsAre(128, 800));
  // 2 * (26*26*20*9 + 9*9*50*20*25 + 800*128 + 128*10)
  EXPECT_EQ(graph->forward_flops(), 2 * (121680 + 2025000 + 102400 + 1280));
}

TEST(ModelsTest, Mlp) {
  const absl::StatusOr<Graph> graph = MakeModel("mlp", 10, {1, 28, 28});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->parameter_elements(), 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10);
  EXPECT_THAT(Names(*graph), ElementsAre("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias",
                                         "fc3.weight", "fc3.bias"));
  EXPECT_TRUE(MakeModel("mlp", 10, {784}).ok());
}

TEST(ModelsTest, ModelsHaveTheirLayersInWords) {
  EXPECT_EQ(AboutModel("mlp"), "dense layers of 128 and 64, no convolutions");
  EXPECT_EQ(AboutModel("nothing"), "");
}

TEST(ModelsTest, AChainReadsOneValueAfterTheOtherByItsOperators) {
  const std::set<absl::string_view> chains = {"alexnet", "lenet", "lenet_d2l", "mlp", "vgg16"};
  for (const absl::string_view name : ModelNames()) {
    const absl::StatusOr<Graph> graph = MakeModel(name, 10, {1, 28, 28});
    ASSERT_TRUE(graph.ok()) << graph.status();
    bool chain = true;
    for (int i = 0; i < graph->node_count(); ++i) {
      const GraphNode& node = graph->nodes()[i];
      chain &= IsChainOperator(node.op.name) && node.inputs == std::vector<ValueId>{i};
    }
    EXPECT_EQ(chain, chains.count(name) > 0) << name;
    EXPECT_TRUE(!chain || !AboutModel(name).empty()) << name;
  }
}

TEST(ModelsTest, DropoutStandsInFrontOfTheLastDenseLayer) {
  for (const absl::string_view name : {"lenet", "lenet_d2l", "mlp"}) {
    const absl::StatusOr<Graph> plain = MakeModel(name, 10, {1, 28, 28});
    const absl::StatusOr<Graph> graph = MakeModel(name, 10, {1, 28, 28}, 0.5);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_EQ(graph->node_count(), plain->node_count() + 1);
    const GraphNode& drop = graph->nodes()[graph->node_count() - 3];
    EXPECT_EQ(drop.name, "dropout");
    EXPECT_EQ(As<Dropout>(drop.op)->ratio, 0.5);
    EXPECT_EQ(graph->nodes()[graph->node_count() - 2].op.name, "Gemm");
    EXPECT_EQ(Names(*graph), Names(*plain));
  }
}

TEST(ModelsTest, ADropoutOutsideItsRangeIsRefused) {
  for (const double ratio : {-0.1, 1.0, std::nan("")}) {
    const absl::Status status = MakeModel("mlp", 10, {4}, ratio).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ratio;
    EXPECT_THAT(std::string(status.message()), HasSubstr("want at least 0 and below 1"));
  }
  EXPECT_EQ(MakeModel("mlp", 10, {4}, 0)->node_count(), MakeModel("mlp", 10, {4})->node_count());
}

TEST(ModelsTest, UnknownNameIsNotFoundAndListsTheNames) {
  const absl::StatusOr<Graph> graph = MakeModel("lenet5", 10, {1, 28, 28});
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(graph.status().message()), HasSubstr("lenet, lenet_d2l, mlp"));
}

TEST(ModelsTest, InputAndClassesMustFit) {
  EXPECT_THAT(std::string(MakeModel("lenet", 10, {1, 8, 8}).status().message()),
              HasSubstr("node conv2 (Conv): height 2"));
  EXPECT_EQ(MakeModel("lenet", 1, {1, 28, 28}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace capstan::training
