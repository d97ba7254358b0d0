#include "gpu_worker/engine/plan/program.h"

#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/conv/conv.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine {
namespace {

using ::testing::ElementsAre;
using training::Graph;

bool Always(const Graph&, int) { return true; }
std::vector<training::SavedTensor> OneTensor(const Graph&, int) { return {{{7}}}; }

FusionPattern Pattern(std::vector<std::string> ops) {
  return {std::move(ops), Always, {.x = true}, OneTensor};
}

Graph Lenet() { return *training::MakeModel("lenet", 10, {1, 28, 28}); }

std::vector<std::pair<int, int>> Nodes(const Program& program) {
  std::vector<std::pair<int, int>> nodes;
  for (const ProgramStep& step : program.steps) nodes.emplace_back(step.first, step.last);
  return nodes;
}

// conv1 relu pool1 conv2 relu pool2 flatten fc1 relu fc2 relu fc3 loss
TEST(ProgramTest, ARunIsOneStepAndKeepsNothingWithin) {
  const Graph graph = Lenet();
  const Program program =
      MakeProgram(graph, {Pattern({"Conv", "Relu", "MaxPool"}), Pattern({"Gemm", "Relu"})});
  using Pair = std::pair<int, int>;
  EXPECT_THAT(Nodes(program), ElementsAre(Pair(0, 2), Pair(3, 5), Pair(6, 6), Pair(7, 8),
                                          Pair(9, 10), Pair(11, 11), Pair(12, 12)));
  const ProgramStep& conv2 = program.steps[1];
  EXPECT_EQ(conv2.pattern, 0);
  EXPECT_THAT(conv2.inputs, ElementsAre(3));
  EXPECT_EQ(conv2.output, 6);
  ASSERT_EQ(conv2.saved.size(), 1u);
  const PlannedBuffer& saved = program.buffers[conv2.saved[0]];
  EXPECT_EQ(saved.sample_elements, 7);
  // Forward is step 1 of 7, backward 2 * 7 - 1 - 1.
  EXPECT_EQ(saved.first, 1);
  EXPECT_EQ(saved.last, 12);
  for (const int within : {1, 2, 4, 5, 8, 10}) {
    EXPECT_EQ(program.values[within], -1) << within;
    EXPECT_EQ(program.gradients[within], -1) << within;
  }
  for (const int stored : {3, 6, 9}) {
    EXPECT_GE(program.values[stored], 0) << stored;
    EXPECT_GE(program.gradients[stored], 0) << stored;
  }
  EXPECT_EQ(program.gradients[0], -1) << "nobody wants the images' gradient";
  // Its backward reads x, and nothing reads the output of pool1 later.
  EXPECT_EQ(program.buffers[program.values[3]].last, 12);
}

TEST(ProgramTest, WithoutPatternsEachNodeIsAStep) {
  const Graph graph = Lenet();
  const Program program = MakeProgram(graph, {});
  ASSERT_EQ(program.steps.size(), static_cast<size_t>(graph.node_count()));
  for (int i = 0; i < graph.node_count(); ++i) {
    EXPECT_EQ(program.steps[i].first, i);
    EXPECT_EQ(program.steps[i].last, i);
    EXPECT_EQ(program.steps[i].pattern, -1);
    EXPECT_GE(program.values[i], 0);
  }
}

// gemm0 and relu1, which has two readers; gemm2 and relu3; both are added, and relu5 follows.
TEST(ProgramTest, WhatOthersReadStaysApart) {
  std::vector<training::GraphNode> nodes;
  nodes.push_back({"gemm0", training::Gemm{4}, {0}});
  nodes.push_back({"relu1", training::Relu(), {1}});
  nodes.push_back({"gemm2", training::Gemm{4}, {2}});
  nodes.push_back({"add3", training::Add(), {2, 3}});
  nodes.push_back({"relu4", training::Relu(), {4}});
  nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {5}});
  const absl::StatusOr<Graph> graph = Graph::Build("test", {3}, nodes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto runs = FindFusedRuns(
      *graph,
      {Pattern({"Relu", "Gemm"}), Pattern({"Gemm", "Add", "Relu"}), Pattern({"Gemm", "Relu"})});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].first, 0);  // value 2 is read twice, so Relu and Gemm make no run
  EXPECT_EQ(runs[0].pattern, 2);
  EXPECT_EQ(runs[1].first, 2);
  EXPECT_EQ(runs[1].last, 4);
  EXPECT_EQ(runs[1].pattern, 1);
  // The other summand comes from outside, in front of the run's own value.
  const Program program = MakeProgram(*graph, {Pattern({"Gemm", "Add", "Relu"})});
  const ProgramStep& run = program.steps[2];
  EXPECT_THAT(run.inputs, ElementsAre(2, 2));
  ASSERT_EQ(run.gradients.size(), 2u);
  EXPECT_TRUE(run.gradients[0].wanted && !run.gradients[0].add);
  EXPECT_TRUE(run.gradients[1].wanted && run.gradients[1].add);
}

// The sum is larger than its first input, so it needs a place of its own.
TEST(ProgramTest, ASumTakesNoPlaceOfAnInputThatIsBroadcast) {
  for (const bool smaller_first : {true, false}) {
    std::vector<training::GraphNode> nodes;
    nodes.push_back({"gemm0", training::Gemm{smaller_first ? 1 : 4}, {0}});
    nodes.push_back({"gemm1", training::Gemm{smaller_first ? 4 : 1}, {0}});
    nodes.push_back({"add2", training::Add(), {1, 2}});
    nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {3}});
    const absl::StatusOr<Graph> graph = Graph::Build("test", {3}, nodes);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const Program program = MakeProgram(*graph, {});
    EXPECT_EQ(program.values[3] == program.values[1], !smaller_first);
    EXPECT_EQ(program.gradients[3] == program.gradients[1], !smaller_first);
    EXPECT_NE(program.values[3], program.values[2]);
    EXPECT_NE(program.gradients[3], program.gradients[2]);
  }
}

// gemm0 and gemm1 side by side. The run adds gemm1 to the Relu of gemm0.
TEST(ProgramTest, ARunTakesThePlaceOfAnInputThatBackwardDoesNotRead) {
  std::vector<training::GraphNode> nodes;
  nodes.push_back({"gemm0", training::Gemm{4}, {0}});
  nodes.push_back({"gemm1", training::Gemm{4}, {0}});
  nodes.push_back({"relu2", training::Relu(), {1}});
  nodes.push_back({"add3", training::Add(), {2, 3}});
  nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {4}});
  const absl::StatusOr<Graph> graph = Graph::Build("test", {3}, nodes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  FusionPattern pattern = Pattern({"Relu", "Add"});  // reads gemm0, and gemm1 from outside
  for (const int in_place : {1, -1}) {
    pattern.in_place_input = in_place;
    const Program program = MakeProgram(*graph, {pattern});
    EXPECT_THAT(program.steps[2].inputs, ElementsAre(1, 2));
    EXPECT_EQ(program.values[4] == program.values[2], in_place == 1);
    EXPECT_EQ(program.gradients[2] == program.gradients[4], in_place == 1);
    EXPECT_NE(program.values[4], program.values[1]);
    EXPECT_NE(program.gradients[1], program.gradients[4]);
    // Backward reads the other input, step 2 of 4.
    EXPECT_EQ(program.buffers[program.values[1]].last, 2 * 4 - 1 - 2);
  }
}

// Reads every second input from the weights.
bool SecondFromWeights(const Graph&, int, int input) { return input == 1; }

// param0 is read by add2 alone, as its first input; param3 by mul4 alone, as its second; param5 by
// two nodes.
TEST(ProgramTest, AParameterThatItsOneReaderTakesFromTheWeightsHasNoPlace) {
  std::vector<training::GraphNode> nodes;
  nodes.push_back({"param0", training::ParameterNode{{4}}, {}});
  nodes.push_back({"gemm1", training::Gemm{4}, {0}});
  nodes.push_back({"add2", training::Add(), {1, 2}});
  nodes.push_back({"param3", training::ParameterNode{{4}}, {}});
  nodes.push_back({"mul4", training::Mul(), {3, 4}});
  nodes.push_back({"param5", training::ParameterNode{{4}}, {}});
  nodes.push_back({"add6", training::Add(), {5, 6}});
  nodes.push_back({"add7", training::Add(), {7, 6}});
  nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {8}});
  const absl::StatusOr<Graph> graph = Graph::Build("test", {3}, nodes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(MakeProgram(*graph, {}).steps.size(), 9u);
  const Program program = MakeProgram(*graph, {}, SecondFromWeights);
  using Pair = std::pair<int, int>;
  EXPECT_THAT(Nodes(program), ElementsAre(Pair(0, 0), Pair(1, 1), Pair(2, 2), Pair(4, 4),
                                          Pair(5, 5), Pair(6, 6), Pair(7, 7), Pair(8, 8)));
  const ProgramStep& mul = program.steps[3];
  EXPECT_THAT(mul.inputs, ElementsAre(3, 4));
  EXPECT_THAT(mul.parameters, ElementsAre(-1, 3));
  EXPECT_TRUE(mul.gradients[0].wanted);
  EXPECT_FALSE(mul.gradients[1].wanted);
  EXPECT_EQ(program.values[4], -1);
  EXPECT_EQ(program.gradients[4], -1);
  EXPECT_THAT(program.steps[2].parameters, ElementsAre(-1, -1));
  for (const int stored : {1, 6}) {
    EXPECT_GE(program.values[stored], 0) << stored;
    EXPECT_GE(program.gradients[stored], 0) << stored;
  }
}

// A run of several nodes reads values alone.
TEST(ProgramTest, ARunReadsNoParameterFromTheWeights) {
  std::vector<training::GraphNode> nodes;
  nodes.push_back({"param0", training::ParameterNode{{4}}, {}});
  nodes.push_back({"gemm1", training::Gemm{4}, {0}});
  nodes.push_back({"add2", training::Add(), {2, 1}});
  nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {3}});
  const absl::StatusOr<Graph> graph = Graph::Build("test", {3}, nodes);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(MakeProgram(*graph, {}, SecondFromWeights).values[1], -1);
  EXPECT_GE(MakeProgram(*graph, {Pattern({"Gemm", "Add"})}, SecondFromWeights).values[1], 0);
}

bool Never(const Graph&, int) { return false; }

TEST(ProgramTest, APatternThatDoesNotFitLeavesItsNodesToTheNext) {
  const Graph graph = Lenet();
  FusionPattern refused = Pattern({"Conv", "Relu", "MaxPool"});
  refused.fits = Never;
  const auto runs = FindFusedRuns(graph, {refused, Pattern({"Conv", "Relu"})});
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].first, 0);
  EXPECT_EQ(runs[0].last, 1);
  EXPECT_EQ(runs[1].first, 3);
}

}  // namespace
}  // namespace capstan::engine
