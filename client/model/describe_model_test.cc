#include "client/model/describe_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Parameters as torchvision counts them. Operations: twice its published multiply-adds (1.814,
// 3.664 and 4.089 billion; ours count only products with parameters).
TEST(ModelJsonTest, CountsAsPublished) {
  const auto of = [](const char* name) {
    return ModelJson(*training::MakeModel(name, 1000, {3, 224, 224}), {});
  };
  EXPECT_EQ(of("resnet18_v1")["parameters"], 11689512);
  EXPECT_EQ(of("resnet34_v1")["parameters"], 21797672);
  EXPECT_EQ(of("resnet50_v1")["parameters"], 25557032);
  EXPECT_NEAR(of("resnet18_v1")["forward_flops"].get<double>(), 2 * 1.814e9, 2e6);
  EXPECT_NEAR(of("resnet34_v1")["forward_flops"].get<double>(), 2 * 3.664e9, 2e6);
  EXPECT_NEAR(of("resnet50_v1")["forward_flops"].get<double>(), 2 * 4.089e9, 2e6);
}

TEST(ModelJsonTest, HasNodesAndTheirParameters) {
  const auto json = ModelJson(*training::MakeModel("resnet18_v1", 10, {3, 32, 32}), {});
  EXPECT_EQ(json["input"], nlohmann::ordered_json({3, 32, 32}));
  EXPECT_EQ(json["num_classes"], 10);
  EXPECT_EQ(json["statistics"], 9600);
  const auto& norm = json["nodes"][1];
  EXPECT_EQ(norm["name"], "bn1");
  EXPECT_EQ(norm["operator"], "BatchNormalization");
  EXPECT_THAT(norm["inputs"], ElementsAre("conv1"));
  EXPECT_EQ(norm["output"], nlohmann::ordered_json({64, 32, 32}));
  ASSERT_EQ(norm["parameters"].size(), 4);
  EXPECT_EQ(norm["parameters"][2]["name"], "bn1.running_mean");
  EXPECT_EQ(norm["parameters"][2]["statistic"], true);
  EXPECT_FALSE(json.contains("memory"));
  int64_t flops = 0;
  for (const auto& node : json["nodes"]) flops += node["flops"].get<int64_t>();
  EXPECT_EQ(json["forward_flops"], flops);
}

TEST(ModelTextTest, IsATableAndSums) {
  const training::Graph graph = *training::MakeModel("lenet", 10, {1, 28, 28});
  const std::string text =
      ModelText(graph, {.batch = 64, .plan_bytes = 3 << 20, .float_bytes = 1 << 19}, 0);
  EXPECT_THAT(text,
              HasSubstr("lenet on images of [1, 28, 28], 10 classes: 60,170 parameters\n\nNODE "));
  EXPECT_THAT(text, testing::ContainsRegex("conv1 +Conv +input +\\[6, 24, 24\\] +156 +0.173\n"));
  EXPECT_THAT(text, testing::ContainsRegex("conv1_relu +Relu +conv1 +\\[6, 24, 24\\] +- +-\n"));
  EXPECT_THAT(text, HasSubstr("Training 64 samples at a time on a CPU of this host: 3.5 MiB, of "
                              "which 0.5 MiB for weights and gradient.\n"));
}

TEST(ModelTextTest, OneIsNoPlural) {
  for (const bool number : {false, true}) {
    const training::Operator loss = number
                                        ? training::Operator(training::MeanSquaredErrorLoss())
                                        : training::Operator(training::SoftmaxCrossEntropyLoss());
    const absl::StatusOr<training::Graph> graph =
        training::Graph::Build("one", {4}, {{"fc", training::Gemm{1}, {0}}, {"loss", loss, {1}}});
    ASSERT_TRUE(graph.ok()) << graph.status();
    EXPECT_THAT(ModelText(*graph, {}, 0), HasSubstr(number ? ", 1 output: " : ", 1 class: "));
  }
}

TEST(BuiltInModelsTest, AllCanBeMade) {
  EXPECT_EQ(BuiltInModels().size(), training::ModelNames().size());
  for (const BuiltInModel& model : BuiltInModels()) {
    EXPECT_TRUE(training::MakeModel(model.name, model.num_classes, model.input).ok()) << model.name;
  }
}

TEST(ParseImageShapeTest, WantsThreeNumbers) {
  EXPECT_THAT(*ParseImageShape("3x32x48"), ElementsAre(3, 32, 48));
  for (const char* const text : {"", "3", "3x32", "3x32x32x1", "3x32x", "0x32x32", "3x-1x32",
                                 "3x32x1048577", "3x32xa", "x3x32", "axbxc"}) {
    EXPECT_FALSE(ParseImageShape(text).ok()) << text;
  }
  EXPECT_EQ(ParseImageShape("3x32").status().message(),
            "'3x32', want CHANNELSxHEIGHTxWIDTH, 1 to 1048576 each, such as 3x32x32");
}

}  // namespace
}  // namespace capstan::client
