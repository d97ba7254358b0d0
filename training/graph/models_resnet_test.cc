#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph Resnet(const std::string& name, int64_t classes, const Shape& input) {
  absl::StatusOr<Graph> graph = MakeModel(name, classes, input);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// The output shape of a node; empty if there is no such node.
Shape ShapeAt(const Graph& graph, const std::string& node) {
  for (int i = 0; i < graph.node_count(); ++i) {
    if (graph.nodes()[i].name == node) return graph.value_shape(graph.output_of(i));
  }
  return {};
}

Shape ShapeOfParameter(const Graph& graph, const std::string& name) {
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.name == name) return parameter.shape;
  }
  return {};
}

// torchvision's own numbers, and the number of its ResNet-18 with a 3x3 stem and 10 classes.
TEST(ResnetTest, AsManyParametersAsTorchvisions) {
  const auto trained = [](const std::string& name, int64_t classes, const Shape& input) {
    return Resnet(name, classes, input).parameter_elements();
  };
  const Shape large = {3, 224, 224};
  EXPECT_EQ(trained("resnet18_v1", 1000, large), 11689512);
  EXPECT_EQ(trained("resnet34_v1", 1000, large), 21797672);
  EXPECT_EQ(trained("resnet50_v1", 1000, large), 25557032);
  EXPECT_EQ(trained("resnet18_v1", 10, {3, 32, 32}), 11173962);
  // The convolutions and fc of version 1, with 3968 normalised channels instead of 4800.
  EXPECT_EQ(trained("resnet18_v2", 1000, large), 11689512 - 2 * 4800 + 2 * 3968);
  EXPECT_EQ(trained("resnet18_v2", 10, {3, 32, 32}), 11173962 - 2 * 4800 + 2 * (3968 - 64));
}

TEST(ResnetTest, NamesAndShapesAreTorchvisions) {
  const Graph graph = Resnet("resnet18_v1", 1000, {3, 224, 224});
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters()) names.push_back(parameter.name);
  ASSERT_EQ(names.size(), 102u);  // torchvision's 122, without 20 num_batches_tracked
  EXPECT_THAT(
      std::vector<std::string>(names.begin(), names.begin() + 10),
      ElementsAre("conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var",
                  "layer1.0.conv1.weight", "layer1.0.bn1.weight", "layer1.0.bn1.bias",
                  "layer1.0.bn1.running_mean", "layer1.0.bn1.running_var"));
  EXPECT_THAT(std::vector<std::string>(names.end() - 2, names.end()),
              ElementsAre("fc.weight", "fc.bias"));
  const auto second = std::find(names.begin(), names.end(), "layer2.0.bn2.running_var");
  ASSERT_NE(second, names.end());
  EXPECT_EQ(*(second + 1), "layer2.0.downsample.0.weight");
  EXPECT_EQ(*(second + 2), "layer2.0.downsample.1.weight");
  EXPECT_THAT(ShapeOfParameter(graph, "conv1.weight"), ElementsAre(64, 3, 7, 7));
  EXPECT_THAT(ShapeOfParameter(graph, "layer2.0.conv1.weight"), ElementsAre(128, 64, 3, 3));
  EXPECT_THAT(ShapeOfParameter(graph, "layer2.0.downsample.0.weight"), ElementsAre(128, 64, 1, 1));
  EXPECT_THAT(ShapeOfParameter(graph, "layer2.0.downsample.1.running_var"), ElementsAre(128));
  EXPECT_THAT(ShapeOfParameter(graph, "layer1.0.downsample.0.weight"), ElementsAre());
  EXPECT_THAT(ShapeOfParameter(graph, "fc.weight"), ElementsAre(1000, 512));

  const Graph deep = Resnet("resnet50_v1", 1000, {3, 224, 224});
  EXPECT_THAT(ShapeOfParameter(deep, "layer1.0.conv1.weight"), ElementsAre(64, 64, 1, 1));
  EXPECT_THAT(ShapeOfParameter(deep, "layer1.0.downsample.0.weight"), ElementsAre(256, 64, 1, 1));
  EXPECT_THAT(ShapeOfParameter(deep, "layer4.2.conv2.weight"), ElementsAre(512, 512, 3, 3));
  EXPECT_THAT(ShapeOfParameter(deep, "layer4.2.conv3.weight"), ElementsAre(2048, 512, 1, 1));
  EXPECT_THAT(ShapeOfParameter(deep, "layer4.2.bn3.running_mean"), ElementsAre(2048));
  EXPECT_THAT(ShapeOfParameter(deep, "fc.weight"), ElementsAre(1000, 2048));
  EXPECT_EQ(Resnet("resnet34_v1", 10, {3, 32, 32}).parameters().size(), 182u);

  const Graph second_version = Resnet("resnet18_v2", 10, {3, 32, 32});
  EXPECT_THAT(ShapeOfParameter(second_version, "bn1.weight"), ElementsAre());
  EXPECT_THAT(ShapeOfParameter(second_version, "layer2.0.bn1.weight"), ElementsAre(64));
  EXPECT_THAT(ShapeOfParameter(second_version, "layer2.0.downsample.0.weight"),
              ElementsAre(128, 64, 1, 1));
  EXPECT_THAT(ShapeOfParameter(second_version, "layer2.0.downsample.1.weight"), ElementsAre());
  EXPECT_THAT(ShapeOfParameter(second_version, "bn_last.weight"), ElementsAre(512));
}

TEST(ResnetTest, StagesHalveTheImage) {
  const Graph large = Resnet("resnet18_v1", 1000, {3, 224, 224});
  EXPECT_THAT(ShapeAt(large, "conv1"), ElementsAre(64, 112, 112));
  EXPECT_THAT(ShapeAt(large, "maxpool"), ElementsAre(64, 56, 56));
  EXPECT_THAT(ShapeAt(large, "layer1.1.relu2"), ElementsAre(64, 56, 56));
  EXPECT_THAT(ShapeAt(large, "layer2.1.relu2"), ElementsAre(128, 28, 28));
  EXPECT_THAT(ShapeAt(large, "layer3.1.relu2"), ElementsAre(256, 14, 14));
  EXPECT_THAT(ShapeAt(large, "layer4.1.relu2"), ElementsAre(512, 7, 7));
  EXPECT_THAT(ShapeAt(large, "flatten"), ElementsAre(512));

  const Graph deep = Resnet("resnet50_v1", 1000, {3, 224, 224});
  EXPECT_THAT(ShapeAt(deep, "layer1.2.relu3"), ElementsAre(256, 56, 56));
  EXPECT_THAT(ShapeAt(deep, "layer2.0.conv1"), ElementsAre(128, 56, 56));  // the stride is in conv2
  EXPECT_THAT(ShapeAt(deep, "layer2.0.conv2"), ElementsAre(128, 28, 28));
  EXPECT_THAT(ShapeAt(deep, "layer2.3.relu3"), ElementsAre(512, 28, 28));
  EXPECT_THAT(ShapeAt(deep, "layer3.5.relu3"), ElementsAre(1024, 14, 14));
  EXPECT_THAT(ShapeAt(deep, "layer4.2.relu3"), ElementsAre(2048, 7, 7));

  const Graph small = Resnet("resnet34_v1", 10, {3, 32, 32});
  EXPECT_THAT(ShapeAt(small, "maxpool"), ElementsAre());
  EXPECT_THAT(ShapeAt(small, "layer1.2.relu2"), ElementsAre(64, 32, 32));
  EXPECT_THAT(ShapeAt(small, "layer2.3.relu2"), ElementsAre(128, 16, 16));
  EXPECT_THAT(ShapeAt(small, "layer3.5.relu2"), ElementsAre(256, 8, 8));
  EXPECT_THAT(ShapeAt(small, "layer4.2.relu2"), ElementsAre(512, 4, 4));

  const Graph second_version = Resnet("resnet18_v2", 10, {3, 32, 32});
  EXPECT_THAT(ShapeAt(second_version, "conv1"), ElementsAre(64, 32, 32));
  EXPECT_THAT(ShapeAt(second_version, "layer4.1.add"), ElementsAre(512, 4, 4));
  EXPECT_THAT(ShapeAt(second_version, "relu_last"), ElementsAre(512, 4, 4));
  EXPECT_THAT(ShapeAt(Resnet("resnet18_v2", 10, {3, 64, 64}), "layer1.0.relu1"),
              ElementsAre(64, 16, 16));

  // Fashion-MNIST, as "Dive into Deep Learning" trains it.
  const Graph digits = Resnet("resnet18_v1", 10, {1, 28, 28});
  EXPECT_THAT(ShapeAt(digits, "layer2.1.relu2"), ElementsAre(128, 14, 14));
  EXPECT_THAT(ShapeAt(digits, "layer4.1.relu2"), ElementsAre(512, 4, 4));
  EXPECT_EQ(digits.parameter_elements(), 11173962 - 2 * 64 * 9);
}

// Multiply-adds by layers. The 1 228 800 of normalisation are not counted.
TEST(ResnetTest, OperationsOfAStepByHand) {
  const Graph graph = Resnet("resnet18_v1", 10, {3, 32, 32});
  const int64_t stem = 3 * 9 * 64 * 32 * 32;
  const int64_t first = 4 * int64_t{64 * 64 * 9 * 32 * 32};
  // Each stage has half the rows and columns and twice the channels of the stage before.
  const int64_t later = int64_t{64 * 128 * 9 * 16 * 16} + 3 * int64_t{128 * 128 * 9 * 16 * 16} +
                        int64_t{64 * 128 * 16 * 16};
  const int64_t all = stem + first + 3 * later + 512 * 10;
  EXPECT_EQ(all, 556651520 - 1228800);
  EXPECT_EQ(graph.forward_flops(), 2 * all);
  EXPECT_EQ(graph.training_flops(), 3 * 2 * all - 2 * stem);
}

TEST(ResnetTest, StatisticsBecomeTensorsOfTheirKind) {
  const Graph graph = Resnet("resnet18_v1", 10, {3, 32, 32});
  EXPECT_EQ(graph.statistic_elements(), 2 * 4800);
  const FlatLayout layout = *FlatLayout::Create(TensorSpecs(graph));
  EXPECT_EQ(layout.ElementCount(TensorKind::kStat), 2 * 4800);
  EXPECT_EQ(layout.ElementCount(TensorKind::kWeight), 11173962);
  EXPECT_EQ(layout.statistics_begin() % layout.chunk_floats(), 0);
  const TensorSlot& variance = *layout.Find("layer4.1.bn2.running_var");
  EXPECT_EQ(variance.spec.kind, TensorKind::kStat);
  EXPECT_EQ(variance.spec.init, TensorInit::kOnes);
  EXPECT_EQ(variance.spec.momentum, 0.1);
  EXPECT_EQ(layout.Find("layer4.1.bn2.weight")->spec.momentum, 0);
  EXPECT_EQ(layout.forward_order().front()->spec.name, "conv1.weight");
  EXPECT_EQ(layout.forward_order().back()->spec.name, "layer4.1.bn2.running_var");
}

TEST(ResnetTest, DropoutStandsBetweenFlattenAndFc) {
  const std::vector<std::pair<std::string, Shape>> models = {{"resnet18_v1", {3, 32, 32}},
                                                             {"resnet18_v2", {3, 64, 64}},
                                                             {"resnet34_v1", {1, 28, 28}},
                                                             {"resnet50_v1", {3, 224, 224}}};
  for (const auto& [name, input] : models) {
    const Graph plain = Resnet(name, 10, input);
    const absl::StatusOr<Graph> graph = MakeModel(name, 10, input, 0.25);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ASSERT_EQ(graph->node_count(), plain.node_count() + 1) << name;
    const int drop = graph->node_count() - 3;
    EXPECT_EQ(graph->nodes()[drop - 1].name, "flatten");
    EXPECT_EQ(graph->nodes()[drop].name, "dropout");
    EXPECT_EQ(As<Dropout>(graph->nodes()[drop].op)->ratio, 0.25);
    EXPECT_THAT(graph->nodes()[drop].inputs, ElementsAre(graph->output_of(drop - 1)));
    EXPECT_EQ(graph->nodes()[drop + 1].name, "fc");
    EXPECT_THAT(graph->nodes()[drop + 1].inputs, ElementsAre(graph->output_of(drop)));
    ASSERT_EQ(graph->parameters().size(), plain.parameters().size());
    for (size_t i = 0; i < plain.parameters().size(); ++i) {
      EXPECT_EQ(graph->parameters()[i].name, plain.parameters()[i].name);
      EXPECT_EQ(graph->parameters()[i].shape, plain.parameters()[i].shape);
    }
  }
}

TEST(ResnetTest, WhatIsNoImageIsRefused) {
  const absl::Status flat = MakeModel("resnet18_v1", 10, {784}).status();
  EXPECT_EQ(flat.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(flat.message()), HasSubstr("conv1"));
  EXPECT_TRUE(MakeModel("resnet18_v1", 10, {1, 1, 1}).ok());
}

}  // namespace
}  // namespace capstan::training
