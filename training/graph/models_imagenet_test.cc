// alexnet, vgg16 and mobilenet_v1 against published numbers.
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/pool/pool.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Graph ImageModel(absl::string_view name, int64_t classes, const Shape& input, double dropout = 0) {
  absl::StatusOr<Graph> graph = MakeModel(name, classes, input, dropout);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

// The weights and their shapes, without biases and normalisations.
std::vector<std::string> WeightShapes(const Graph& graph) {
  std::vector<std::string> shapes;
  for (const Parameter& parameter : graph.parameters()) {
    if (parameter.shape.size() == 1) continue;
    shapes.push_back(parameter.name + " " + ShapeToString(parameter.shape));
  }
  return shapes;
}

const GraphNode* NodeNamed(const Graph& graph, const std::string& name) {
  for (const GraphNode& node : graph.nodes()) {
    if (node.name == name) return &node;
  }
  return nullptr;
}

Shape OutputOf(const Graph& graph, const std::string& name) {
  for (int i = 0; i < graph.node_count(); ++i) {
    if (graph.nodes()[i].name == name) return graph.value_shape(graph.output_of(i));
  }
  return {};
}

const Shape kLarge = {3, 224, 224};

// Parameters and multiply-adds: those of torchvision's pages (61100840 and 0.71 G, 138357544 and
// 15.47 G) and of the paper's table 8 (4.2 million and 569 million).
TEST(ImagenetModelsTest, ParametersAndOperationsArePublishedOnes) {
  const Graph alexnet = ImageModel("alexnet", 1000, kLarge);
  EXPECT_EQ(alexnet.parameter_elements(), 61100840);
  EXPECT_EQ(alexnet.forward_flops() / 2, 714188480);
  const Graph vgg = ImageModel("vgg16", 1000, kLarge);
  EXPECT_EQ(vgg.parameter_elements(), 138357544);
  EXPECT_EQ(vgg.forward_flops() / 2, 15470264320);
  const Graph mobilenet = ImageModel("mobilenet_v1", 1000, kLarge);
  EXPECT_EQ(mobilenet.parameter_elements(), 4231976);
  EXPECT_EQ(mobilenet.forward_flops() / 2, 568740352);
  EXPECT_EQ(mobilenet.statistic_elements(), 2 * 10944);
}

TEST(ImagenetModelsTest, AlexnetHasTorchvisionsNamesAndShapes) {
  EXPECT_THAT(
      WeightShapes(ImageModel("alexnet", 1000, kLarge)),
      ElementsAre("features.0.weight [64, 3, 11, 11]", "features.3.weight [192, 64, 5, 5]",
                  "features.6.weight [384, 192, 3, 3]", "features.8.weight [256, 384, 3, 3]",
                  "features.10.weight [256, 256, 3, 3]", "classifier.1.weight [4096, 9216]",
                  "classifier.4.weight [4096, 4096]", "classifier.6.weight [1000, 4096]"));
  EXPECT_THAT(OutputOf(ImageModel("alexnet", 1000, kLarge), "features.12"), ElementsAre(256, 6, 6));
}

TEST(ImagenetModelsTest, Vgg16HasTorchvisionsNamesAndShapes) {
  const Graph graph = ImageModel("vgg16", 1000, kLarge);
  EXPECT_THAT(
      WeightShapes(graph),
      ElementsAre("features.0.weight [64, 3, 3, 3]", "features.2.weight [64, 64, 3, 3]",
                  "features.5.weight [128, 64, 3, 3]", "features.7.weight [128, 128, 3, 3]",
                  "features.10.weight [256, 128, 3, 3]", "features.12.weight [256, 256, 3, 3]",
                  "features.14.weight [256, 256, 3, 3]", "features.17.weight [512, 256, 3, 3]",
                  "features.19.weight [512, 512, 3, 3]", "features.21.weight [512, 512, 3, 3]",
                  "features.24.weight [512, 512, 3, 3]", "features.26.weight [512, 512, 3, 3]",
                  "features.28.weight [512, 512, 3, 3]", "classifier.0.weight [4096, 25088]",
                  "classifier.3.weight [4096, 4096]", "classifier.6.weight [1000, 4096]"));
  EXPECT_EQ(graph.parameters().size(), 32u);
  EXPECT_THAT(OutputOf(graph, "features.30"), ElementsAre(512, 7, 7));
  EXPECT_EQ(NodeNamed(graph, "avgpool"), nullptr);
}

TEST(ImagenetModelsTest, LargerImagesArePooledToTheSameClassifier) {
  const Graph twice = ImageModel("vgg16", 1000, {3, 448, 448});
  EXPECT_EQ(twice.parameter_elements(), 138357544);
  const Window pool = As<AveragePool>(NodeNamed(twice, "avgpool")->op)->window;
  EXPECT_THAT(pool.kernel_shape, ElementsAre(2, 2));
  EXPECT_THAT(pool.strides, ElementsAre(2, 2));
  // 8 rows: windows of 2 that overlap, as torchvision's do. 7 columns stay.
  const Graph wide = ImageModel("vgg16", 1000, {3, 256, 224});
  const Window rows = As<AveragePool>(NodeNamed(wide, "avgpool")->op)->window;
  EXPECT_THAT(rows.kernel_shape, ElementsAre(2, 1));
  EXPECT_THAT(rows.strides, ElementsAre(1, 1));
  EXPECT_EQ(wide.parameter_elements(), 138357544);
  EXPECT_EQ(ImageModel("alexnet", 1000, {3, 300, 500}).parameter_elements(), 61100840);
}

TEST(ImagenetModelsTest, SmallImagesHaveFewerParameters) {
  const Graph vgg = ImageModel("vgg16", 10, {3, 32, 32});
  EXPECT_EQ(vgg.parameter_elements(), 14714688 + 2 * (512 * 512 + 512) + 512 * 10 + 10);
  EXPECT_THAT(OutputOf(vgg, "flatten"), ElementsAre(512));
  const Graph digits = ImageModel("vgg16", 10, {1, 28, 28});  // its last pooling is left out
  EXPECT_EQ(NodeNamed(digits, "features.30"), nullptr);
  EXPECT_EQ(digits.parameter_elements(), vgg.parameter_elements() - 2 * 64 * 9);
  const Graph alexnet = ImageModel("alexnet", 10, {3, 32, 32});
  EXPECT_THAT(OutputOf(alexnet, "features.12"), ElementsAre(256, 4, 4));
  EXPECT_THAT(WeightShapes(alexnet)[0], "features.0.weight [64, 3, 3, 3]");
  EXPECT_THAT(WeightShapes(alexnet)[5], "classifier.1.weight [1024, 4096]");
  EXPECT_THAT(OutputOf(ImageModel("alexnet", 200, {3, 64, 64}), "flatten"), ElementsAre(256));
  EXPECT_THAT(OutputOf(ImageModel("vgg16", 200, {3, 64, 64}), "flatten"), ElementsAre(2048));
}

TEST(ImagenetModelsTest, MobilenetsBlocksAreDepthwiseAndPointwise) {
  const Graph graph = ImageModel("mobilenet_v1", 10, {3, 32, 32});
  const std::vector<std::string> shapes = WeightShapes(graph);
  ASSERT_EQ(shapes.size(), 1u + 2 * 13 + 1);
  EXPECT_EQ(shapes[0], "conv_stem.weight [32, 3, 3, 3]");
  EXPECT_EQ(shapes[1], "blocks.0.0.conv_dw.weight [32, 1, 3, 3]");
  EXPECT_EQ(shapes[2], "blocks.0.0.conv_pw.weight [64, 32, 1, 1]");
  EXPECT_EQ(shapes[25], "blocks.4.1.conv_dw.weight [1024, 1, 3, 3]");
  EXPECT_EQ(shapes[26], "blocks.4.1.conv_pw.weight [1024, 1024, 1, 1]");
  EXPECT_EQ(shapes[27], "classifier.weight [10, 1024]");
  EXPECT_EQ(As<Conv>(NodeNamed(graph, "blocks.3.5.conv_dw")->op)->group, 512);
  EXPECT_THAT(OutputOf(graph, "conv_stem"), ElementsAre(32, 32, 32));
  EXPECT_THAT(OutputOf(graph, "blocks.1.1.relu2"), ElementsAre(128, 16, 16));
  EXPECT_THAT(OutputOf(graph, "blocks.4.1.relu2"), ElementsAre(1024, 2, 2));
  const Graph large = ImageModel("mobilenet_v1", 1000, kLarge);
  EXPECT_THAT(OutputOf(large, "conv_stem"), ElementsAre(32, 112, 112));
  EXPECT_THAT(OutputOf(large, "blocks.0.0.relu2"), ElementsAre(64, 112, 112));
  EXPECT_THAT(OutputOf(large, "blocks.3.5.relu2"), ElementsAre(512, 14, 14));
  EXPECT_THAT(OutputOf(large, "blocks.4.1.relu2"), ElementsAre(1024, 7, 7));
}

TEST(ImagenetModelsTest, DropoutsStandWhereTorchvisionHasThem) {
  // The nodes behind `flatten`.
  const auto head = [](absl::string_view name) {
    const Graph graph = ImageModel(name, 10, {3, 32, 32}, 0.5);
    std::vector<std::string> names;
    for (const GraphNode& node : graph.nodes()) {
      if (node.name == "flatten") names.clear();
      names.push_back(node.name);
      const std::optional<Dropout> drop = As<Dropout>(node.op);
      EXPECT_EQ(drop.value_or(Dropout{0.5}).ratio, 0.5);
    }
    return names;
  };
  EXPECT_THAT(head("alexnet"),
              ElementsAre("flatten", "dropout", "classifier.1", "classifier.2", "dropout2",
                          "classifier.4", "classifier.5", "classifier.6", "loss"));
  EXPECT_THAT(head("vgg16"),
              ElementsAre("flatten", "classifier.0", "classifier.1", "dropout", "classifier.3",
                          "classifier.4", "dropout2", "classifier.6", "loss"));
  EXPECT_THAT(head("mobilenet_v1"), ElementsAre("flatten", "dropout", "classifier", "loss"));
}

TEST(ImagenetModelsTest, WhatIsNoImageIsRefused) {
  for (const absl::string_view name : {"alexnet", "vgg16", "mobilenet_v1"}) {
    const absl::Status flat = MakeModel(name, 10, {784}).status();
    EXPECT_EQ(flat.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_TRUE(MakeModel(name, 10, {1, 1, 1}).ok()) << name;
  }
  EXPECT_THAT(std::string(MakeModel("alexnet", 10, {3, 64, 3}).status().message()),
              HasSubstr("node features.0 (Conv): width 3"));
}

}  // namespace
}  // namespace capstan::training
