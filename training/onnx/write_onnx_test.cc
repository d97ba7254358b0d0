// Graphs written as ONNX files are read back as they were.
#include "training/onnx/write_onnx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "training/graph/models.h"
#include "training/graph/random_graph.h"
#include "training/onnx/onnx_builder.h"
#include "training/ops/activation/activation.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/cast/cast.h"
#include "training/ops/concat/concat.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/identity/identity.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/linear/linear.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/pad/pad.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/ops/squeeze/squeeze.h"
#include "training/ops/transpose/transpose.h"

namespace capstan::training::onnx {
namespace {

// Numbers in [least, least + 1).
std::vector<float> RandomNumbers(uint32_t seed, int64_t count, float least) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) {
    seed = seed * 1664525 + 1013904223;
    number = least + static_cast<float>(seed >> 8) * 0x1p-24f;
  }
  return numbers;
}

// A graph as an imported model, with drawn weights. Variances are not negative.
OnnxModel Drawn(const Graph& graph) {
  OnnxModel model;
  model.input_shape = graph.input_shape();
  model.output_shape = graph.value_shape(graph.logits());
  model.nodes.assign(graph.nodes().begin(), graph.nodes().end() - 1);
  uint32_t seed = 1;
  for (const Parameter& parameter : graph.parameters()) {
    const float least = parameter.init == ParameterInit::kOnes ? 0.5f : -0.5f;
    model.weights.push_back(
        {parameter.name, parameter.shape, RandomNumbers(seed++, parameter.elements, least)});
  }
  return model;
}

absl::StatusOr<std::string> Written(const Graph& graph, const OnnxModel& model) {
  std::vector<const float*> parameters;
  for (const OnnxWeight& weight : model.weights) parameters.push_back(weight.values.data());
  return WriteOnnx(graph, parameters);
}

// What a reader of the graph's file finds.
absl::StatusOr<OnnxModel> ReadBack(const Graph& graph, const OnnxModel& model) {
  const absl::StatusOr<std::string> bytes = Written(graph, model);
  if (!bytes.ok()) return bytes.status();
  return ReadOnnx(*bytes);
}

void ExpectSameWeights(const OnnxModel& found, const OnnxModel& want) {
  EXPECT_EQ(WeightsOf(found), WeightsOf(want));
  ASSERT_EQ(found.weights.size(), want.weights.size());
  for (size_t i = 0; i < want.weights.size(); ++i) {
    EXPECT_EQ(found.weights[i].values, want.weights[i].values) << want.weights[i].name;
  }
}

TEST(WriteOnnxTest, EveryBuiltInModelIsReadBack) {
  for (const absl::string_view name : ModelNames()) {
    const absl::StatusOr<Graph> graph = MakeModel(name, 10, {3, 32, 32}, 0.25);
    ASSERT_TRUE(graph.ok()) << graph.status();
    if (graph->parameter_elements() > 12'000'000) continue;  // no other operators, only slower
    if (name == "gpt_nano") continue;                        // it has a test of its own
    const OnnxModel want = Drawn(*graph);
    const absl::StatusOr<OnnxModel> found = ReadBack(*graph, want);
    ASSERT_TRUE(found.ok()) << name << ": " << found.status();
    EXPECT_EQ(NodesOf(*found), NodesOf(want));
    for (size_t i = 0; i < want.nodes.size(); ++i) {
      EXPECT_EQ(found->nodes[i].op.attributes.values(), want.nodes[i].op.attributes.values())
          << want.nodes[i].name;
    }
    ExpectSameWeights(*found, want);
    EXPECT_EQ(found->input_name, "input");
    EXPECT_EQ(found->output_name, "output");
    EXPECT_EQ(found->input_shape, (Shape{3, 32, 32}));
    EXPECT_EQ(found->output_shape, Shape{10});
  }
}

// Operators in the order of their names.
std::vector<std::string> OperatorsOf(const OnnxModel& model) {
  std::vector<std::string> operators;
  for (const GraphNode& node : model.nodes) operators.push_back(node.op.name);
  std::sort(operators.begin(), operators.end());
  return operators;
}

// Constants stand where they are read first, so the order of the nodes differs.
TEST(WriteOnnxTest, ALanguageModelIsReadBack) {
  const absl::StatusOr<Graph> graph = MakeModel("gpt_nano", 7, {1, 1, 5});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const OnnxModel want = Drawn(*graph);
  const absl::StatusOr<OnnxModel> found = ReadBack(*graph, want);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(OperatorsOf(*found), OperatorsOf(want));
  ExpectSameWeights(*found, want);
  EXPECT_EQ(found->output_shape, (Shape{5, 7}));
  const absl::StatusOr<Graph> again = WithLoss(*found, "again");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->nodes().back().op.name, "SequenceCrossEntropyLoss");
  const std::vector<float> tokens = {3, 0, 6, 6, 1};
  EXPECT_EQ(Compute(*found, tokens), Compute(want, tokens));
}

// Of numbers that two tables look up, as of tokens and their kinds: the Cast has two readers.
TEST(WriteOnnxTest, ASharedCastIsReadBack) {
  for (const char* const type : {"int64", "int32", "float"}) {
    const absl::StatusOr<Graph> graph =
        Graph::Build("shared", {3},
                     {{"whole", Cast{type}, {0}},
                      {"words", ParameterNode{{5, 2}}, {}},
                      {"word", Gather(), {2, 1}},
                      {"kinds", ParameterNode{{5, 2}}, {}},
                      {"kind", Gather(), {4, 1}},
                      {"sum", Add(), {3, 5}},
                      {"numbers", Unsqueeze{{2}}, {1}},
                      {"more", Add(), {6, 7}},
                      {"loss", SequenceCrossEntropyLoss(), {8, 0}}});
    ASSERT_TRUE(graph.ok()) << graph.status();
    const OnnxModel want = Drawn(*graph);
    const absl::StatusOr<OnnxModel> found = ReadBack(*graph, want);
    ASSERT_TRUE(found.ok()) << found.status();
    const std::vector<float> tokens = {4.75f, 0.5f, 2};
    EXPECT_EQ(Compute(*found, tokens), Compute(want, tokens)) << type;
    // And what was read is written again.
    const absl::StatusOr<Graph> again = WithLoss(*found, "again");
    ASSERT_TRUE(again.ok()) << again.status();
    const absl::StatusOr<OnnxModel> last = ReadBack(*again, *found);
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_EQ(Compute(*last, tokens), Compute(want, tokens)) << type;
  }
}

TEST(WriteOnnxTest, TheLossOfASequenceNeedsAReaderWhoSeesIt) {
  // Without a table, a reader would take the logits for a class each.
  const absl::StatusOr<Graph> graph = Graph::Build("graph", {3},
                                                   {{"column", Reshape{{3, 1}}, {0}},
                                                    {"head", Linear{4}, {1}},
                                                    {"loss", SequenceCrossEntropyLoss(), {2, 0}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(Written(*graph, Drawn(*graph)).status().message(),
            "node loss: a network with a SequenceCrossEntropyLoss can be exported if it looks up "
            "rows by the tokens, and these are its whole input");
}

// Shapes may be expressed by other nodes, so outputs are compared.
TEST(WriteOnnxTest, RandomGraphsComputeTheSame) {
  int written = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    RandomGraphOptions options;
    options.least_tries = 1;
    options.most_tries = 12;
    options.most_elements = 2000;
    const Graph graph = RandomGraph(seed, options);
    const OnnxModel want = Drawn(graph);
    if (absl::IsUnimplemented(Written(graph, want).status())) continue;
    const absl::StatusOr<OnnxModel> found = ReadBack(graph, want);
    ASSERT_TRUE(found.ok()) << seed << ": " << found.status();
    ++written;
    // A Parameter may become a bias, and stands where it is read first.
    const bool parameters =
        std::any_of(want.nodes.begin(), want.nodes.end(),
                    [](const GraphNode& node) { return node.op.name == ParameterNode::kName; });
    if (!parameters) ExpectSameWeights(*found, want);
    if (!found->final_activation.empty()) continue;
    const std::vector<float> input = RandomNumbers(seed, Elements(graph.input_shape()), -0.5f);
    const std::vector<float> y_found = Compute(*found, input);
    const std::vector<float> y_want = Compute(want, input);
    ASSERT_EQ(y_found.size(), y_want.size()) << seed;
    for (size_t i = 0; i < y_want.size(); ++i) {
      EXPECT_NEAR(y_found[i], y_want[i], 1e-5 * std::abs(y_want[i]) + 1e-6) << seed;
    }
  }
  EXPECT_GT(written, 100);
}

// A dense layer over positions, with and without a bias, comes back as one node.
TEST(WriteOnnxTest, ALinearIsReadBack) {
  const absl::StatusOr<Graph> graph = Graph::Build("linear", {6},
                                                   {{"rows", Reshape{{2, 3}}, {0}},
                                                    {"fc1", Linear{5}, {1}},
                                                    {"fc2", Linear{4, false}, {2}},
                                                    {"flat", Flatten(), {3}},
                                                    {"fc3", Linear{2}, {4}},
                                                    {"loss", SoftmaxCrossEntropyLoss(), {5}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const OnnxModel want = Drawn(*graph);
  const absl::StatusOr<OnnxModel> found = ReadBack(*graph, want);
  ASSERT_TRUE(found.ok()) << found.status();
  // A layer of features is a Gemm, which computes the same.
  EXPECT_EQ(NodesOf(*found),
            "rows Reshape(0), fc1 Linear(1), fc2 Linear(2), flat Flatten(3), fc3 Gemm(4)");
  ExpectSameWeights(*found, want);
  const std::vector<float> input = {0.5f, -1, 2, 0.25f, 3, -0.75f};
  EXPECT_EQ(Compute(*found, input), Compute(want, input));
}

// Of features [6]: the nodes between the input and a Gemm, each of the one before, unless it says
// more.
TEST(WriteOnnxTest, EveryOperatorIsReadBack) {
  const std::vector<GraphNode> nodes = {{"square", Reshape{{2, 3}}, {0}},
                                        {"norm", LayerNormalization(), {1}},
                                        {"pad", Pad{{0, 1, 1, 0}, -0.5}, {2}},
                                        {"slice", SliceNode{{0, 3}, {3, 0}, {1, 2}, {1, -1}}, {3}},
                                        {"turn", Transpose{{2, 1}}, {4}},
                                        {"place", ParameterNode{{3, 3}, "initializer"}, {}},
                                        {"product", MatMul(), {5, 6}},
                                        {"half", ConstantOfShape{{1}, 0.5}, {}},
                                        {"scaled", Mul(), {7, 8}},
                                        {"clip", Clip{-0.25, 0.75}, {9}},
                                        {"sum", ReduceSum{{2}, true}, {10}},
                                        {"mean", ReduceMean{{1}, false}, {10}},
                                        {"squeeze", Squeeze{{2}}, {11}},
                                        {"unsqueeze", Unsqueeze{{1}}, {13}},
                                        {"other", Add(), {12, 14}},
                                        {"same", IdentityNode(), {15}},
                                        {"more", Sub(), {10, 16}},
                                        {"row", Flatten(), {17}},
                                        {"fc", Gemm{7}, {18}},
                                        {"loss", SoftmaxCrossEntropyLoss(), {19}}};
  for (const bool later : {false, true}) {
    std::vector<GraphNode> all = nodes;
    if (later) all[15].op = Gelu();
    absl::StatusOr<Graph> graph = Graph::Build("every", {6}, all);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const OnnxModel want = Drawn(*graph);
    const absl::StatusOr<OnnxModel> found = ReadBack(*graph, want);
    ASSERT_TRUE(found.ok()) << found.status();
    ExpectSameWeights(*found, want);
    const std::vector<float> input = {0.5f, -1, 2, 0.25f, 3, -0.75f};
    const std::vector<float> y_found = Compute(*found, input), y_want = Compute(want, input);
    ASSERT_EQ(y_found.size(), 7u);
    for (size_t i = 0; i < y_want.size(); ++i) EXPECT_NEAR(y_found[i], y_want[i], 1e-6);
  }
}

// Shapes of different ranks broadcast within a sample, which ONNX does not know.
TEST(WriteOnnxTest, ValuesWithFewerAxesGetMore) {
  absl::StatusOr<Graph> graph = Graph::Build("ranks", {6},
                                             {{"square", Reshape{{2, 3}}, {0}},
                                              {"mean", ReduceMean{{1}, false}, {1}},
                                              {"rest", Sub(), {2, 1}},
                                              {"row", Flatten(), {3}},
                                              {"fc", Gemm{2}, {4}},
                                              {"loss", SoftmaxCrossEntropyLoss(), {5}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const OnnxModel want = Drawn(*graph);
  const absl::StatusOr<OnnxModel> found = ReadBack(*graph, want);
  ASSERT_TRUE(found.ok()) << found.status();
  const std::vector<float> input = {1, 2, 3, 4, 5, 7};
  EXPECT_EQ(Compute(*found, input), Compute(want, input));
}

TEST(WriteOnnxTest, AParameterHasNoBatchInAFile) {
  absl::StatusOr<Graph> graph = Graph::Build("alone", {2},
                                             {{"place", ParameterNode{{2}}, {}},
                                              {"cat", Concat{1}, {0, 1}},
                                              {"loss", SoftmaxCrossEntropyLoss(), {2}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::Status status = Written(*graph, Drawn(*graph)).status();
  EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
  EXPECT_EQ(status.message(), "node cat: Concat of a Parameter or Constant cannot be exported");
}

Graph Features(std::vector<GraphNode> nodes) {
  nodes.push_back({"end", SoftmaxCrossEntropyLoss(), {static_cast<int>(nodes.size())}});
  absl::StatusOr<Graph> graph = Graph::Build("features", {4}, std::move(nodes));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

TEST(WriteOnnxTest, TheOldestOperatorSetThatHasTheOperators) {
  const std::vector<float> weight(8, 1.0f);
  for (const bool gelu : {false, true}) {
    std::vector<GraphNode> nodes = {{"fc", Gemm{2, false}, {0}}};
    if (gelu) nodes.push_back({"gelu", Gelu{"tanh"}, {1}});
    const absl::StatusOr<std::string> bytes = WriteOnnx(Features(nodes), {weight.data()});
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    capstan::onnx::v1::ModelProto model;
    ASSERT_TRUE(model.ParseFromString(*bytes));
    EXPECT_EQ(model.opset_import(0).version(), gelu ? 20 : 17);
    EXPECT_EQ(model.ir_version(), gelu ? 9 : 8);
    EXPECT_EQ(model.graph().name(), "features");
    const auto& input = model.graph().input(0).type().tensor_type().shape();
    EXPECT_EQ(input.dim(0).dim_param(), "N");
    EXPECT_EQ(input.dim(1).dim_value(), 4);
    EXPECT_TRUE(ReadOnnx(*bytes).ok());
  }
}

TEST(WriteOnnxTest, NamesOfValuesAreNotThoseOfParameters) {
  const std::vector<float> numbers(16, 1.0f);
  const Graph graph = Features({{"fc", Gemm{4}, {0}},
                                {"fc.weight", Gemm{4}, {1}},
                                {"input", Dropout{0.25}, {2}},
                                {"output", Gemm{4}, {3}}});
  const std::vector<const float*> parameters(6, numbers.data());
  const absl::StatusOr<std::string> bytes = WriteOnnx(graph, parameters);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const absl::StatusOr<OnnxModel> model = ReadOnnx(*bytes);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(NodesOf(*model), "fc Gemm(0), fc.weight Gemm(1), input Dropout(2), output Gemm(3)");
}

TEST(WriteOnnxTest, WhatCannotBeWrittenIsRefused) {
  const Graph graph = Features({{"fc", Gemm{2}, {0}}});
  const absl::Status too_few = WriteOnnx(graph, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(too_few)) << too_few;
  EXPECT_EQ(too_few.message(), "0 tensors, want 2 parameters of the graph");
  const std::vector<float> weights(4);
  const Graph huge = Features({{"fc", Gemm{int64_t{1} << 29, false}, {0}}});
  const absl::Status too_large = WriteOnnx(huge, {weights.data()}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(too_large)) << too_large;
}

TEST(WriteOnnxTest, NumbersThatAreNotFiniteAreWrittenButNotRead) {
  const std::vector<float> weight(8, std::numeric_limits<float>::quiet_NaN());
  const absl::StatusOr<std::string> bytes =
      WriteOnnx(Features({{"fc", Gemm{2, false}, {0}}}), {weight.data()});
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(ReadOnnx(*bytes).status().message(),
            "node 'fc': tensor 'fc.weight': contains a number that is not finite as a float");
}

}  // namespace
}  // namespace capstan::training::onnx
