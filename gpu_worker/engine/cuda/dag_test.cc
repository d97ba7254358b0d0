// Programs of graphs that are no chains: their stages, and that nothing is overwritten in the arena
// before its last reader has read it.
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cuda/group.h"
#include "gpu_worker/engine/cuda/ops/loop_plan.h"
#include "gpu_worker/engine/cuda/program.h"
#include "gpu_worker/engine/cuda/rules.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/random_graph.h"
#include "training/graph/tensors.h"

namespace capstan::engine::cuda {
namespace {

using training::Graph;

CardProgram ProgramOf(const Graph& graph, int64_t max_batch,
                      int32_t precision = CAPSTAN_PRECISION_FP32) {
  const training::FlatLayout layout = *training::FlatLayout::Create(training::TensorSpecs(graph));
  const SentGraph sent = *SentGraph::Of(graph, layout);
  capstan_compile_request request = {};
  sent.Describe(request);
  request.max_batch = max_batch;
  request.precision = precision;
  absl::StatusOr<CardProgram> program = MakeCardProgram(request);
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// Walks through a training step and remembers what each place of the arena holds.
class ArenaCheck {
 public:
  ArenaCheck(const CardProgram& program, int64_t n) : program_(program) {
    options_.max_batch = n;
    memory_ = PlanMemory(program, options_);
  }

  void Run() {
    Write("value 0", memory_.values[0], ValueBytes(0));
    const int last = static_cast<int>(program_.stages.size()) - 1;
    for (int s = 0; s <= last; ++s) Forward(s);
    for (int s = last; s >= 0; --s) Backward(s);
    while (!lagging_.empty()) ReadLagging();
  }

 private:
  struct Read {
    std::string what;
    int64_t place, bytes;
  };

  int64_t ValueBytes(int tensor) const {
    return program_.tensors[tensor].elements * options_.max_batch * 4;
  }
  Read ValueOf(int tensor) const {
    return {"value " + std::to_string(tensor), memory_.values[tensor], ValueBytes(tensor)};
  }
  Read GradientOf(int tensor) const {
    return {"gradient " + std::to_string(tensor), memory_.gradients[tensor], ValueBytes(tensor)};
  }
  Read SavedOf(int s, size_t k) const {
    const SavedFloats& floats = program_.stages[s].saved[k];
    return {"saved " + std::to_string(s) + " " + std::to_string(k), memory_.saved[s][k],
            4 * (floats.fixed + floats.per_sample * options_.max_batch)};
  }

  void Write(const std::string& what, int64_t place, int64_t bytes) {
    ASSERT_GE(place, 0) << what;
    for (int64_t at = place; at < place + bytes; at += kAlignBytes) holds_[at] = what;
  }
  void Write(const Read& of) { Write(of.what, of.place, of.bytes); }
  void Expect(const Read& of, const std::string& reader) {
    ASSERT_GE(of.place, 0) << of.what;
    for (int64_t at = of.place; at < of.place + of.bytes; at += kAlignBytes) {
      ASSERT_EQ(holds_[at], of.what) << "read by " << reader;
    }
  }

  std::vector<int> InputsOf(const Stage& stage) const {
    if (stage.kind != StageKind::kOperator) {
      std::vector<int> inputs = {stage.x};
      for (const StageInput& input : stage.inputs) inputs.push_back(input.tensor);
      return inputs;
    }
    std::vector<int> inputs;
    for (const StageInput& input : stage.inputs) {
      if (input.tensor >= 0) inputs.push_back(input.tensor);
    }
    return inputs;
  }

  void Forward(int s) {
    const Stage& stage = program_.stages[s];
    for (const int input : InputsOf(stage)) Expect(ValueOf(input), stage.name);
    if (stage.kind == StageKind::kLoss) return;
    Write(ValueOf(stage.y));
    for (size_t k = 0; k < stage.saved.size(); ++k) Write(SavedOf(s, k));
  }

  void Gradient(int tensor, bool add, const std::string& by) {
    if (add) Expect(GradientOf(tensor), by);
    Write(GradientOf(tensor));
  }

  void Backward(int s) {
    const Stage& stage = program_.stages[s];
    const std::string by = stage.name + ", backward";
    if (stage.kind == StageKind::kLoss) {
      Expect(ValueOf(stage.x), by);
      if (stage.input_gradient) Gradient(stage.x, false, by);
      for (const StageInput& input : stage.inputs) {
        if (input.gradient) Gradient(input.tensor, input.add, by);
      }
      return;
    }
    if (stage.kind == StageKind::kOperator) {
      if (!stage.backward) return;
      Expect(GradientOf(stage.y), by);
      if (stage.reads_y) Expect(ValueOf(stage.y), by);
      for (const StageInput& input : stage.inputs) {
        if (stage.reads_x && input.read && input.tensor >= 0) Expect(ValueOf(input.tensor), by);
      }
      for (size_t k = 0; k < stage.saved.size(); ++k) Expect(SavedOf(s, k), by);
      for (const StageInput& input : stage.inputs) {
        if (input.gradient) Gradient(input.tensor, input.add, by);
      }
      return;
    }
    if (!stage.linear() && !stage.input_gradient) return;
    Expect(GradientOf(stage.y), by);
    if (stage.kind != StageKind::kPermute) Expect(ValueOf(stage.x), by);
    if (stage.linear()) {
      if (stage.relu) Expect(ValueOf(stage.y), by);
      // Its parameter gradients may read until the second linear stage further begins its own.
      if (lagging_.size() == kParameterLag) ReadLagging();
      lagging_.push_back({{ValueOf(stage.x), GradientOf(stage.y)}, by + " of parameters"});
    }
    if (stage.input_gradient && stage.kind != StageKind::kRelu) {
      Gradient(stage.x, stage.add_gradient, by);
    }
  }

  void ReadLagging() {
    for (const Read& read : lagging_.front().first) Expect(read, lagging_.front().second);
    lagging_.pop_front();
  }

  const CardProgram& program_;
  MemoryOptions options_;
  MemoryPlan memory_;
  std::map<int64_t, std::string> holds_;  // by place
  std::deque<std::pair<std::vector<Read>, std::string>> lagging_;
};

TEST(DagTest, NothingIsOverwrittenBeforeItsLastReader) {
  for (const auto& [name, input] : {std::pair{"resnet18_v1", training::Shape{3, 32, 32}},
                                    {"mobilenet_v1", {3, 32, 32}},
                                    {"gpt_nano", {1, 1, 16}},
                                    {"resnet50_v1", {3, 32, 32}},
                                    {"lenet", {1, 28, 28}}}) {
    SCOPED_TRACE(name);
    const absl::StatusOr<Graph> graph = training::MakeModel(name, 10, input);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const CardProgram program = ProgramOf(*graph, 3);
    ArenaCheck(program, 3).Run();
    if (HasFatalFailure()) return;
  }
  for (int seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = training::RandomGraph(seed, {});
    const CardProgram program = ProgramOf(graph, 2);
    ArenaCheck(program, 2).Run();
    if (HasFatalFailure()) return;
  }
}

// A block's input is read by a convolution and by the sum behind the block. Images stay NHWC on the
// whole way.
TEST(DagTest, AResnetNeedsNoPermutation) {
  const Graph graph = *training::MakeModel("resnet18_v1", 10, {3, 32, 32});
  const CardProgram program = ProgramOf(graph, 4);
  int convolutions = 0, norms = 0, adding = 0, residual = 0;
  for (const Stage& stage : program.stages) {
    EXPECT_NE(stage.kind, StageKind::kPermute) << stage.name;
    convolutions += stage.kind == StageKind::kConv;
    adding += stage.kind == StageKind::kConv && stage.add_gradient;
    norms += stage.saved.size() == 3;
    residual += stage.inputs.size() == 2;
    if (stage.kind == StageKind::kOperator) {
      EXPECT_TRUE(stage.channels_last) << stage.name;
    }
  }
  EXPECT_EQ(convolutions, 20);
  EXPECT_EQ(norms, 20);
  EXPECT_EQ(residual, 8);  // with the sum and the Relu behind it
  // In each of 8 blocks one of the two readers of its input.
  EXPECT_EQ(adding, 8);
  // The arena shares places: less than half of what all tensors together would take.
  MemoryOptions options;
  options.max_batch = 64;
  int64_t all = 0;
  for (const Tensor& tensor : program.tensors) all += tensor.elements * 64 * 4 * 2;
  EXPECT_LT(PlanMemory(program, options).header, all * 7 / 10);
}

// What cuDNN's engines ask for in the first stage of a ResNet, and a plan that has it.
TEST(DagTest, TheWorkspaceHoldsCopiesOfAConvolutionsTensors) {
  WindowGeometry g;
  g.in_c = g.out_c = 64;
  g.in_h = g.in_w = g.out_h = g.out_w = 32;
  g.kernel_h = g.kernel_w = 3;
  EXPECT_EQ(ConvWorkspaceBytes(g, 256), (int64_t{129} << 20) + 4 * 64 * 64 * 9);
  EXPECT_EQ(ConvWorkspaceBytes(g, 2), kWorkspaceBytes);
  const CardProgram program = ProgramOf(*training::MakeModel("resnet18_v1", 10, {3, 32, 32}), 256);
  MemoryOptions options;
  options.max_batch = 256;
  options.workspace_bytes = kWorkspaceBytes;
  const MemoryPlan without = PlanMemory(program, options);
  EXPECT_EQ(without.parameter_workspace - without.workspace, kWorkspaceBytes);
  options.conv_workspace = true;
  const MemoryPlan with = PlanMemory(program, options);
  EXPECT_GE(with.parameter_workspace - with.workspace, int64_t{128} << 20);
  EXPECT_GE(with.weights - with.parameter_workspace, int64_t{128} << 20);
}

// Buckets and pieces of the gradient end with stages that say when they are done.
TEST(DagTest, GradientsLeaveWithStagesThatHaveParameters) {
  for (const char* const name : {"resnet18_v1", "gpt_nano"}) {
    const Graph graph = *training::MakeModel(
        name, 10, name[0] == 'g' ? training::Shape{1, 1, 16} : training::Shape{3, 32, 32});
    const CardProgram program = ProgramOf(graph, 4);
    std::vector<int64_t> ends;
    for (int part = 1; part <= 4; ++part) ends.push_back(program.total_floats * part / 4);
    int before = static_cast<int>(program.stages.size());
    for (const int stage : BucketStages(program, ends)) {
      EXPECT_TRUE(program.stages[stage].has_parameters()) << name << " " << stage;
      EXPECT_LE(stage, before);
      before = stage;
    }
    for (const ReadBack& piece : PlanReadBack(program)) {
      EXPECT_TRUE(program.stages[piece.stage].has_parameters()) << name;
    }
  }
}

TEST(DagTest, TokensStayFloatsAndTablesInTheWeights) {
  const Graph graph = *training::MakeModel("gpt_nano", 65, {1, 1, 16});
  const CardProgram program = ProgramOf(graph, 4, CAPSTAN_PRECISION_BF16);
  EXPECT_TRUE(program.tensors[0].wide);
  EXPECT_EQ(program.loss().rows, 16);
  EXPECT_EQ(program.classes, 65);
  int tables = 0;
  for (const Stage& stage : program.stages) {
    for (const StageInput& input : stage.inputs) {
      tables += stage.kind == StageKind::kOperator && input.tensor < 0;
    }
  }
  EXPECT_GE(tables, 1);
}

// [2 samples, 2 channels, 3 pixels] as NHWC, plus a number for each channel.
TEST(LoopTest, WalksFollowTheOrderOfTheirFirstTensor) {
  const training::Shape image = {2, 1, 3}, channel = {2, 1, 1};
  const Strided nhwc = StridedValue(image, true);
  const Loop<2> loop =
      MakeLoop<2>(2, image, {nhwc, BroadcastTo(StridedValue(channel, false), channel, image)});
  ASSERT_EQ(loop.elements, 12);
  std::vector<int32_t> first, second;
  for (int32_t i = 0; i < loop.elements; ++i) {
    int32_t at[2] = {0, 0};
    AddPlaces(loop, i, at);
    first.push_back(at[0]);
    second.push_back(at[1]);
  }
  EXPECT_THAT(first, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  EXPECT_THAT(second, ::testing::ElementsAre(0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3));
}

TEST(LoopTest, AxesThatAreOneRunBecomeOne) {
  const training::Shape shape = {4, 1, 5};
  const Strided same = StridedValue(shape, false);
  const Loop<3> loop = MakeLoop<3>(7, shape, {same, same, same});
  EXPECT_EQ(loop.axes, 1);
  EXPECT_EQ(loop.elements, 140);
  // The same numbers for all samples.
  const Loop<2> repeated = MakeLoop<2>(7, shape, {same, Strided{0, same.strides}});
  EXPECT_EQ(repeated.axes, 2);
  int32_t at[2] = {0, 0};
  AddPlaces(repeated, 25, at);
  EXPECT_EQ(at[0], 25);
  EXPECT_EQ(at[1], 5);
}

}  // namespace
}  // namespace capstan::engine::cuda
