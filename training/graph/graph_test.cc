#include "training/graph/graph.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

Conv MakeConv(int64_t out_channels, int64_t kernel) {
  Conv conv;
  conv.out_channels = out_channels;
  conv.window.kernel_shape = {kernel, kernel};
  return conv;
}

// `ops` in a chain over `input`, followed by Flatten and the loss.
absl::StatusOr<Graph> BuildChain(Shape input, const std::vector<Operator>& ops,
                                 bool flatten = true) {
  std::vector<GraphNode> nodes;
  for (const Operator& op : ops) {
    const int i = static_cast<int>(nodes.size());
    nodes.push_back({"n" + std::to_string(i), op, {i}});
  }
  if (flatten) nodes.push_back({"flatten", Flatten(), {static_cast<int>(nodes.size())}});
  nodes.push_back({"loss", SoftmaxCrossEntropyLoss(), {static_cast<int>(nodes.size())}});
  return Graph::Build("test", std::move(input), std::move(nodes));
}

std::string ErrorOf(const absl::StatusOr<Graph>& graph) {
  if (graph.ok()) return "no error";
  EXPECT_EQ(graph.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(graph.status().message());
}

TEST(GraphTest, ConvolutionShapeFollowsStridePaddingAndDilation) {
  Conv conv = MakeConv(8, 3);
  conv.window.strides = {2, 3};
  conv.window.pads = {1, 0, 2, 1};
  conv.window.dilations = {2, 1};
  const absl::StatusOr<Graph> graph = BuildChain({3, 11, 13}, {conv});
  ASSERT_TRUE(graph.ok()) << graph.status();
  // height: (11 + 3 - 5) / 2 + 1 = 5; width: (13 + 1 - 3) / 3 + 1 = 4
  EXPECT_THAT(graph->value_shape(1), ElementsAre(8, 5, 4));
  EXPECT_THAT(graph->parameters()[0].shape, ElementsAre(8, 3, 3, 3));
  EXPECT_EQ(graph->num_classes(), 160);
}

TEST(GraphTest, ParametersComeInForwardOrderWithFansThatCountTheKernel) {
  Conv grouped = MakeConv(4, 3);
  grouped.group = 2;
  const absl::StatusOr<Graph> graph = BuildChain({2, 5, 5}, {grouped, Flatten(), Gemm{10, false}},
                                                 /*flatten=*/false);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(graph->parameters().size(), 3u);
  const Parameter& weight = graph->parameters()[0];
  EXPECT_EQ(weight.name, "n0.weight");
  EXPECT_THAT(weight.shape, ElementsAre(4, 1, 3, 3));
  EXPECT_EQ(weight.fan_in, 9);    // 1 channel of the group * 3 * 3
  EXPECT_EQ(weight.fan_out, 36);  // 4 * 3 * 3
  const Parameter& bias = graph->parameters()[1];
  EXPECT_EQ(bias.name, "n0.bias");
  EXPECT_TRUE(bias.bias_like);
  EXPECT_EQ(bias.init, ParameterInit::kZeros);
  EXPECT_THAT(bias.shape, ElementsAre(4));
  EXPECT_EQ(bias.fan_in, 9);
  EXPECT_EQ(graph->parameters()[2].name, "n2.weight");
  EXPECT_THAT(graph->parameters()[2].shape, ElementsAre(10, 36));
  EXPECT_EQ(graph->parameter_of(2, "bias"), -1);
  EXPECT_EQ(graph->parameter_elements(), 36 + 4 + 360);
}

TEST(GraphTest, PoolingDropsWhatDoesNotFillAWindow) {
  MaxPool pool;
  pool.window.kernel_shape = {2, 2};
  pool.window.strides = {2, 2};
  const absl::StatusOr<Graph> graph = BuildChain({3, 9, 8}, {pool});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(graph->value_shape(1), ElementsAre(3, 4, 4));
  EXPECT_FALSE(graph->needs_gradient(1));
}

TEST(GraphTest, ErrorsNameNodeGotAndWant) {
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {MakeConv(2, 5)})),
              AllOf(HasSubstr("node n0 (Conv)"), HasSubstr("height 4"), HasSubstr("kernel 5")));
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {Gemm{3}})),
              AllOf(HasSubstr("node n0 (Gemm)"), HasSubstr("[1, 4, 4]"), HasSubstr("Flatten")));
  EXPECT_THAT(ErrorOf(BuildChain({12}, {MakeConv(2, 1)})), HasSubstr("want [C, H, W]"));
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {MakeConv(0, 1)})), HasSubstr("out_channels 0"));
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {MakeConv(1, 0)})),
              HasSubstr("kernel of the height 0"));
  Conv conv = MakeConv(1, 1);
  conv.window.pads[3] = -1;
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {conv})), HasSubstr("padding of the width -1"));
  conv = MakeConv(4, 1);
  conv.group = 2;
  EXPECT_THAT(ErrorOf(BuildChain({3, 4, 4}, {conv})), HasSubstr("group 2"));
  MaxPool pool;
  pool.window.pads = {1, 0, 0, 0};
  EXPECT_THAT(ErrorOf(BuildChain({3, 4, 4}, {pool})), HasSubstr("padding 1, want less than"));
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {}, /*flatten=*/false)), HasSubstr("want [classes]"));
  EXPECT_THAT(ErrorOf(BuildChain({0}, {})), HasSubstr("dimensions of at least 1"));
  EXPECT_THAT(ErrorOf(BuildChain({4, 4}, {})), HasSubstr("want [C, H, W] or [features]"));
}

TEST(GraphTest, AbsurdSizesAreErrorsAndNeverOverflow) {
  EXPECT_THAT(ErrorOf(BuildChain({kHuge, kHuge, kHuge}, {})), HasSubstr("elements"));
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {MakeConv(kHuge, 1)})), HasSubstr("elements"));
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {MakeConv(1, kHuge)})), HasSubstr("height 4"));
  Conv conv = MakeConv(1, 2);
  conv.window.dilations = {kHuge, kHuge};
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {conv})), HasSubstr("dilation"));
  conv = MakeConv(1, 1);
  conv.window.pads = {kHuge, kHuge, kHuge, kHuge};
  EXPECT_THAT(ErrorOf(BuildChain({1, 4, 4}, {conv})), HasSubstr("too large"));
  EXPECT_THAT(ErrorOf(BuildChain({1 << 20}, {Gemm{1 << 21}})), HasSubstr("n0 (Gemm): weight"));
  // Each layer has 2^40 - 2^20 parameters, which is allowed. Two such layers are not.
  const Gemm wide{(1 << 20) - 1};
  EXPECT_THAT(ErrorOf(BuildChain({1 << 20}, {wide, wide})), HasSubstr("the graph has"));
}

// Axes of 1 cost no elements, and a node may add 64 of them.
TEST(GraphTest, AxesAreLimited) {
  std::vector<int64_t> axes;
  for (int64_t axis = 1; axis <= 16; ++axis) axes.push_back(axis);
  const auto build = [&] {
    return Graph::Build("g", {1, 2, 3},
                        {{"wide", {"Unsqueeze", {{"axes", axes}}}, {0}},
                         {"flat", Flatten(), {1}},
                         {"loss", SoftmaxCrossEntropyLoss(), {2}}})
        .status();
  };
  EXPECT_EQ(build().message(), "node wide (Unsqueeze): output: 19 axes, want at most 16");
  axes.resize(13);
  EXPECT_EQ(build(), absl::OkStatus());
}

TEST(GraphTest, StructureIsChecked) {
  const Operator loss = SoftmaxCrossEntropyLoss();
  auto build = [](std::vector<GraphNode> nodes) {
    return ErrorOf(Graph::Build("test", {4}, std::move(nodes)));
  };
  EXPECT_THAT(build({}), HasSubstr("no nodes"));
  EXPECT_THAT(build({{"a", Relu(), {0}}}),
              HasSubstr("want one loss (SoftmaxCrossEntropyLoss, SequenceCross"));
  EXPECT_THAT(build({{"a", loss, {0}}, {"b", loss, {1}}}), HasSubstr("as the last"));
  EXPECT_THAT(build({{"a", Relu(), {0}}, {"a", loss, {1}}}), HasSubstr("a is taken"));
  EXPECT_THAT(build({{"", loss, {0}}}), HasSubstr("empty name"));
  EXPECT_THAT(build({{"a b", loss, {0}}}), HasSubstr("\"a b\""));
  EXPECT_THAT(build({{"a", Relu(), {1}}, {"b", loss, {1}}}), HasSubstr("input value 1"));
  EXPECT_THAT(build({{"a", Relu(), {-1}}, {"b", loss, {1}}}), HasSubstr("input value -1"));
  EXPECT_THAT(build({{"a", Relu(), {}}, {"b", loss, {1}}}), HasSubstr("0 inputs, want 1"));
  EXPECT_THAT(build({{"a", Relu(), {0}}, {"b", loss, {0}}}),
              HasSubstr("node a (Relu): no node reads"));
  EXPECT_THAT(build({{"a", {"Softplus", {}}, {0}}, {"b", loss, {1}}}),
              HasSubstr("node a (Softplus): the operator is not known, want one of Add, "));
  EXPECT_THAT(build({{"a\n", {"Relu\x1b[2J", {}}, {0}}, {"b", loss, {1}}}),
              HasSubstr("name \"a\\n\", want"));
  EXPECT_THAT(build({{"a", {"Relu\x1b[2J", {}}, {0}}, {"b", loss, {1}}}),
              HasSubstr("(Relu\\x1b[2J)"));
}

// A person can fix all nodes in one go. Each node is named with its first problem only.
TEST(GraphTest, EveryNodeWithAProblemIsNamed) {
  std::vector<GraphNode> nodes = {{"a", Relu(), {3}},
                                  {"a", Gemm{4}, {1}},
                                  {"c", {"Gemm", {}}, {2, 2}},
                                  {"loss", SoftmaxCrossEntropyLoss(), {3}}};
  const std::vector<NodeProblem> problems = CheckNodes(nodes);
  ASSERT_EQ(problems.size(), 3u);
  EXPECT_EQ(problems[0].node, 0);
  EXPECT_THAT(problems[0].message, HasSubstr("input value 3"));
  EXPECT_EQ(problems[1].node, 1);
  EXPECT_THAT(problems[1].message, HasSubstr("a is taken"));
  EXPECT_EQ(problems[2].node, 2);
  EXPECT_THAT(problems[2].message, HasSubstr("2 inputs, want 1"));
  nodes = {{"b", Gemm{4}, {0}}, {"loss", SoftmaxCrossEntropyLoss(), {1}}};
  EXPECT_TRUE(CheckNodes(nodes).empty());
  EXPECT_EQ(nodes[0].op.attributes.Int("bias"), 1);  // the default
}

TEST(GraphTest, LimitsOfNamesAndNodes) {
  const auto build = [](int relus, const std::string& name) {
    std::vector<GraphNode> nodes;
    for (int i = 0; i < relus; ++i) nodes.push_back({name + std::to_string(i), Relu(), {i}});
    nodes.push_back({"loss", SoftmaxCrossEntropyLoss(), {relus}});
    return Graph::Build("test", {4}, std::move(nodes));
  };
  EXPECT_TRUE(build(kMaxGraphNodes - 1, "n").ok());
  EXPECT_THAT(ErrorOf(build(kMaxGraphNodes, "n")), HasSubstr("4097 nodes, want at most 4096"));
  EXPECT_TRUE(build(1, std::string(kMaxNodeNameBytes - 1, 'n')).ok());
  EXPECT_THAT(ErrorOf(build(1, std::string(kMaxNodeNameBytes, 'n'))),
              HasSubstr("of 129 bytes, want at most 128"));
}

}  // namespace
}  // namespace capstan::training
