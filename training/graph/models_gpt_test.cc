#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/ops/dropout/dropout.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;

Graph Nano(const Shape& input, double dropout = 0) {
  absl::StatusOr<Graph> graph = MakeModel("gpt_nano", 65, input, dropout);
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

std::vector<std::string> ParametersOf(const Graph& graph) {
  std::vector<std::string> names;
  for (const Parameter& parameter : graph.parameters()) names.push_back(parameter.name);
  return names;
}

// Names, shapes and order of minGPT's state, without the mask of each attention. 94 224 is the sum
// of its parameters for 65 characters and blocks of 64.
TEST(GptTest, ParametersAreThoseOfMinGpt) {
  const Graph graph = Nano({1, 1, 64});
  EXPECT_EQ(graph.parameter_elements(), 94224);
  const std::vector<std::string> names = ParametersOf(graph);
  ASSERT_EQ(names.size(), 2u + 3 * 12 + 3);
  const std::string block = "transformer.h.0.";
  EXPECT_THAT(
      std::vector<std::string>(names.begin(), names.begin() + 14),
      ElementsAre("transformer.wte.weight", "transformer.wpe.weight", block + "ln_1.weight",
                  block + "ln_1.bias", block + "attn.c_attn.weight", block + "attn.c_attn.bias",
                  block + "attn.c_proj.weight", block + "attn.c_proj.bias", block + "ln_2.weight",
                  block + "ln_2.bias", block + "mlp.c_fc.weight", block + "mlp.c_fc.bias",
                  block + "mlp.c_proj.weight", block + "mlp.c_proj.bias"));
  EXPECT_THAT(std::vector<std::string>(names.end() - 3, names.end()),
              ElementsAre("transformer.ln_f.weight", "transformer.ln_f.bias", "lm_head.weight"));
  EXPECT_THAT(graph.parameters()[0].shape, ElementsAre(65, 48));
  EXPECT_THAT(graph.parameters()[1].shape, ElementsAre(64, 48));
  EXPECT_THAT(graph.parameters()[4].shape, ElementsAre(144, 48));
  EXPECT_THAT(graph.parameters()[10].shape, ElementsAre(192, 48));
  EXPECT_THAT(graph.parameters().back().shape, ElementsAre(65, 48));
}

TEST(GptTest, TheAnswerIsThatOfTheLastPosition) {
  const Graph graph = Nano({64});
  EXPECT_EQ(graph.num_classes(), 65);
  EXPECT_THAT(graph.value_shape(graph.logits()), ElementsAre(64, 65));
  EXPECT_EQ(graph.answer_offset(), 63 * 65);
  EXPECT_EQ(ParametersOf(graph), ParametersOf(Nano({1, 1, 64})));
  // Products with parameters: 12 * 48^2 in each block, and the head. Attention has two products of
  // 64 x 64 x 48 in each block.
  constexpr int64_t kWeights = int64_t{2} * 64 * (3 * 12 * 48 * 48 + 65 * 48);
  constexpr int64_t kAttention = int64_t{2} * 3 * 2 * 64 * 64 * 48;
  EXPECT_EQ(graph.forward_flops(), kWeights + kAttention);
  EXPECT_EQ(graph.training_flops(), 3 * (kWeights + kAttention));
}

TEST(GptTest, DropoutIsWhereMinGptHasIt) {
  const Graph plain = Nano({8}), graph = Nano({8}, 0.1);
  int dropouts = 0;
  for (const GraphNode& node : graph.nodes()) {
    const auto dropout = As<Dropout>(node.op);
    if (!dropout.has_value()) continue;
    EXPECT_EQ(dropout->ratio, 0.1);
    ++dropouts;
  }
  EXPECT_EQ(dropouts, 1 + 3 * 3);
  EXPECT_EQ(graph.node_count(), plain.node_count() + dropouts);
  EXPECT_EQ(ParametersOf(graph), ParametersOf(plain));
}

}  // namespace
}  // namespace capstan::training
