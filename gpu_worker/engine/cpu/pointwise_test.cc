// Tests kernels that must have the bits of their references, with every instruction set: Concat,
// Dropout, Cast, Gather of a value, Trilu, Sigmoid, Tanh, LeakyRelu and Clip. Gelu must have the same
// bits with all of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gpu_worker/engine/cpu/phases_fixture.h"
#include "gtest/gtest.h"
#include "training/ops/activation/activation.h"
#include "training/ops/cast/cast.h"
#include "training/ops/concat/concat.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::engine {
namespace {

using training::Graph;
using training::Shape;
using Maker = absl::StatusOr<NodePhases> (*)(const Graph& graph, int node,
                                             const NodePlaces& places);

// All NaNs count as equal, because their bits depend on the processor.
std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  for (size_t i = 0; i < bits.size(); ++i) {
    if (std::isnan(values[i])) bits[i] = 0x7fc00000;
  }
  return bits;
}

// An operator over `inputs` values whose shapes differ in the first dimension.
struct Case {
  std::string name;
  training::Operator op;
  Shape input;
  int inputs;
  int64_t count;  // samples
};

class PointwiseTest : public ::testing::TestWithParam<Case> {
 protected:
  PointwiseTest() {
    for (int64_t i = 0; i < of.count; ++i) ids.push_back((int64_t{1} << 40) + 77 * i);
    run.samples.count = of.count;
    run.samples.training = true;
    run.samples.ids = ids.data();
    run.samples.seed = 5;
    run.samples.epoch = 3;
    run.blocks = CeilDivide(of.count, kSideBySide);
    lane = {0, run.blocks, of.count};
    run.lanes = {&lane, 1};
    std::vector<training::GraphNode> nodes;
    std::vector<int> inputs = {0};
    for (int i = 1; i < of.inputs; ++i) {
      nodes.push_back({"relu" + std::to_string(i), training::Relu(), {0}});
      inputs.push_back(i);
    }
    node = static_cast<int>(nodes.size());
    nodes.push_back({"op", of.op, inputs});
    nodes.push_back({"flatten", training::Flatten(), {node + 1}});
    nodes.push_back({"head", training::Gemm{2}, {node + 2}});
    nodes.push_back({"loss", training::SoftmaxCrossEntropyLoss(), {node + 3}});
    graph = Graph::Build("test", of.input, nodes);
  }

  // Random numbers, with zeros for missing samples.
  Floats Draw(int64_t elements) {
    Floats values(run.blocks * elements * kSideBySide, random);
    for (int64_t i = 0; i < values.count(); ++i) {
      const int64_t block = i / (elements * kSideBySide);
      if (i % kSideBySide >= run.InBlock(block)) values.data()[i] = 0;
    }
    return values;
  }

  // y, then dx of each input: stored, or added to the contents of `starts`.
  std::vector<uint32_t> Results(Maker make, const BlockedMath* math, bool add) {
    const int64_t elements = graph->value_elements(0);
    const int64_t out = graph->value_elements(graph->output_of(node));
    std::vector<Floats> gradients;
    NodePlaces places;
    places.math = math;
    const Floats y(run.blocks * out * kSideBySide);
    places.y = y.data();
    places.dy = dy.data();
    places.backward = true;
    places.max_blocks = run.blocks + 2;
    for (int i = 0; i < of.inputs; ++i) {
      places.x.push_back(x[i].data());
      gradients.emplace_back(run.blocks * elements * kSideBySide);
      std::copy_n(starts[i].data(), starts[i].count(), gradients.back().data());
      places.dx.push_back({gradients.back().data(), add});
    }
    absl::StatusOr<NodePhases> phases = make(*graph, node, places);
    EXPECT_TRUE(phases.ok()) << phases.status();
    RunPhases(*phases, phases->forward, run);
    RunPhases(*phases, phases->backward, run);
    std::vector<float> all = y.values();
    for (const Floats& gradient : gradients) {
      const std::vector<float> values = gradient.values();
      all.insert(all.end(), values.begin(), values.end());
    }
    return BitsOf(all);
  }

  const Case& of = GetParam();
  std::mt19937 random{7};
  std::vector<int64_t> ids;
  LaneBlocks lane;
  BatchRun run;
  int node = 0;
  absl::StatusOr<Graph> graph = absl::UnknownError("");
  std::vector<Floats> x, starts;
  Floats dy{0};
};

absl::StatusOr<NodePhases> MakeOwnPhases(const training::Graph& graph, int node,
                                         const NodePlaces& places) {
  return MakeStepPhases(graph, node, /*pattern=*/-1, places);
}

TEST_P(PointwiseTest, HasTheBitsOfItsReference) {
  ASSERT_TRUE(graph.ok()) << graph.status();
  for (int i = 0; i < of.inputs; ++i) {
    x.push_back(Draw(graph->value_elements(0)));
    starts.push_back(Draw(graph->value_elements(0)));
  }
  dy = Draw(graph->value_elements(graph->output_of(node)));
  for (const bool training : {true, false}) {
    run.samples.training = training;
    for (const bool add : {false, true}) {
      if (!training && of.op.name == training::Dropout::kName) continue;  // has no backward then
      const std::vector<uint32_t> want = Results(MakeReferencePhases, PresentMath().front(), add);
      for (const BlockedMath* const math : PresentMath()) {
        EXPECT_EQ(Results(MakeOwnPhases, math, add), want)
            << math->target << (add ? ", added" : ", stored") << (training ? "" : ", evaluated");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, PointwiseTest,
    ::testing::Values(Case{"dropout_one", training::Dropout(), {1}, 1, 1},
                      Case{"dropout", training::Dropout{0.3}, {5, 3, 7}, 1, 17},
                      // Several pieces per block, the last one with 3 elements.
                      Case{"dropout_pieces", training::Dropout{0.9}, {2051}, 1, 19},
                      Case{"dropout_batch", training::Dropout{0.1}, {6}, 1, 1000},
                      Case{"concat_one", training::Concat{1}, {3}, 1, 1},
                      Case{"concat_channels", training::Concat{1}, {3, 5, 7}, 3, 17},
                      Case{"concat_width", training::Concat{3}, {3, 5, 7}, 2, 17},
                      Case{"concat_pieces", training::Concat{2}, {3, 401, 3}, 3, 18},
                      Case{"concat_batch", training::Concat{1}, {5}, 2, 1000},
                      Case{"cast_whole", training::Cast{"int64"}, {5, 3, 7}, 1, 17},
                      Case{"cast_float", training::Cast(), {2051}, 1, 19},
                      Case{"trilu_upper", training::Trilu{true, 1}, {3, 5, 7}, 1, 17},
                      Case{"trilu_lower", training::Trilu{false, -1}, {2, 80, 30}, 1, 19},
                      // Indices of normal numbers: rows from both ends, and some that are no rows.
                      Case{"gather_numbers", training::Gather(), {3}, 2, 1000},
                      Case{"gather_rows", training::Gather(), {2, 3, 25}, 2, 19},
                      Case{"gather_long_rows", training::Gather(), {3, 1, 70}, 2, 17}),
    [](const auto& info) { return info.param.name; });

// The same value several times. Its gradients are added in the order of the inputs.
TEST(ConcatTest, OneValueTwice) {
  const absl::StatusOr<Graph> graph =
      Graph::Build("test", {2000},
                   {{"concat", training::Concat{1}, {0, 0}},
                    {"head", training::Gemm{2}, {1}},
                    {"loss", training::SoftmaxCrossEntropyLoss(), {2}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::mt19937 random(7);
  const LaneBlocks lane = {0, 1, 16};
  BatchRun run;
  run.samples.count = 16;
  run.blocks = 1;
  run.lanes = {&lane, 1};
  const Floats x(2000 * 16, random), dy(4000 * 16, random), y(4000 * 16), dx(2000 * 16);
  NodePlaces places;
  places.math = PresentMath().front();
  places.x = {x.data(), x.data()};
  places.y = y.data();
  places.dy = dy.data();
  places.backward = true;
  places.dx = {{dx.data(), false}, {dx.data(), true}};
  const absl::StatusOr<NodePhases> phases = MakeConcatPhases(*graph, 0, places);
  ASSERT_TRUE(phases.ok()) << phases.status();
  RunPhases(*phases, phases->forward, run);
  RunPhases(*phases, phases->backward, run);
  for (int64_t i = 0; i < dx.count(); ++i) {
    ASSERT_EQ(y[i], x[i]);
    ASSERT_EQ(y[dx.count() + i], x[i]);
    ASSERT_EQ(dx[i], dy[i] + dy[dx.count() + i]);
  }
}

// What an operator over one value makes of `x`: y and dx.
struct Mapped {
  std::vector<float> y, dx;
};

Mapped MapByReference(const Graph& graph, const Floats& x, const Floats& dy) {
  training::SampleInfo samples;
  samples.count = kSideBySide;  // element by element, so the places of samples do not matter
  Mapped mapped;
  mapped.y.resize(x.count());
  mapped.dx.assign(x.count(), -0.0f);  // the reference adds to it
  training::ForwardCall<float> forward{graph.instance(0), samples, {x.data()}};
  forward.y = mapped.y.data();
  graph.def(0).reference.forward(forward);
  training::BackwardCall<float> backward{graph.instance(0), samples, {x.data()}};
  backward.y = mapped.y.data();
  backward.dy = dy.data();
  backward.dx = {mapped.dx.data()};
  graph.def(0).reference.backward(backward);
  return mapped;
}

Mapped MapByKernel(const Graph& graph, const BlockedMath& math, const Floats& x, const Floats& dy) {
  const LaneBlocks lane{0, 1, kSideBySide};
  BatchRun run;
  run.blocks = 1;
  run.lanes = absl::MakeConstSpan(&lane, 1);
  const Floats y(x.count()), dx(x.count());
  NodePlaces places;
  places.math = &math;
  places.x = {x.data()};
  places.y = y.data();
  places.backward = true;
  places.dy = dy.data();
  places.dx = {{dx.data(), /*add=*/false}};
  places.max_blocks = 1;
  const absl::StatusOr<NodePhases> phases = MakeStepPhases(graph, 0, /*pattern=*/-1, places);
  EXPECT_TRUE(phases.ok()) << phases.status();
  RunPhases(*phases, phases->forward, run);
  RunPhases(*phases, phases->backward, run);
  return {y.values(), dx.values()};
}

absl::StatusOr<Graph> GraphOfOne(const training::Operator& op, int64_t elements) {
  return Graph::Build("test", {elements},
                      {{"op", op, {0}},
                       {"head", training::Gemm{2}, {1}},
                       {"loss", training::SoftmaxCrossEntropyLoss(), {2}}});
}

// Numbers of every size and sign; graphs only have those around 1.
Floats EveryNumber(int64_t count, std::mt19937& random) {
  std::vector<float> special = {0.0f,   -0.0f,   1e-45f, -1e-45f, 1e-38f, 3.4e38f, -3.4e38f,
                                0.7f,   -0.7f,   8.4f,   -8.4f,   8.5f,   -8.5f,   38.6f,
                                -38.6f, 0.7072f, 9.9f,   -9.9f,   1e10f,  -1e10f,  13.9f,
                                -13.9f, 14.1f,   -14.1f, 6.5f,    -6.5f,  22.1f,   -22.1f};
  special.push_back(std::numeric_limits<float>::infinity());
  special.push_back(-std::numeric_limits<float>::infinity());
  special.push_back(std::numeric_limits<float>::quiet_NaN());
  Floats x(count);
  std::uniform_real_distribution<float> near(-15, 15);
  for (int64_t i = 0; i < count; ++i) {
    const auto bits = static_cast<uint32_t>(random());
    std::memcpy(x.data() + i, &bits, sizeof(bits));
    if (i % 2 == 0) x.data()[i] = near(random);
    if (i < static_cast<int64_t>(special.size())) x.data()[i] = special[i];
  }
  return x;
}

constexpr int64_t kNumbers = 1 << 16;

TEST(ActivationTest, EveryNumberHasTheBitsOfTheReference) {
  std::mt19937 random(7);
  const Floats x = EveryNumber(kNumbers, random), dy(kNumbers, random);
  for (const training::Operator& op :
       {training::Operator(training::Sigmoid()), training::Operator(training::Tanh()),
        training::Operator(training::LeakyRelu{-0.3}), training::Operator(training::Clip{-2, 9})}) {
    const absl::StatusOr<Graph> graph = GraphOfOne(op, kNumbers / kSideBySide);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const Mapped want = MapByReference(*graph, x, dy);
    for (const BlockedMath* const math : PresentMath()) {
      const Mapped got = MapByKernel(*graph, *math, x, dy);
      EXPECT_EQ(BitsOf(got.y), BitsOf(want.y)) << math->target << ", " << op.name;
      EXPECT_EQ(BitsOf(got.dx), BitsOf(want.dx)) << math->target << ", " << op.name;
    }
  }
}

TEST(CastTest, EveryNumberHasTheBitsOfTheReference) {
  std::mt19937 random(7);
  const Floats x = EveryNumber(kNumbers, random), dy(kNumbers, random);
  const absl::StatusOr<Graph> graph = GraphOfOne(training::Cast{"int32"}, kNumbers / kSideBySide);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Mapped want = MapByReference(*graph, x, dy);
  for (const BlockedMath* const math : PresentMath()) {
    const Mapped got = MapByKernel(*graph, *math, x, dy);
    EXPECT_EQ(BitsOf(got.y), BitsOf(want.y)) << math->target;
    EXPECT_EQ(got.dx, std::vector<float>(kNumbers, 0.0f)) << math->target;
  }
}

// The form with tanh has a larger error where it is near 0, because the rounded exponent is large
// there. Results below the smallest normal number may be 0.
TEST(GeluTest, EveryNumberIsNearTheReferenceWithTheSameBits) {
  std::mt19937 random(7);
  const Floats x = EveryNumber(kNumbers, random), dy(kNumbers, random);
  for (const char* const form : {"none", "tanh"}) {
    SCOPED_TRACE(form);
    const double tolerance = form == std::string("none") ? 1e-6 : 3e-5;
    const absl::StatusOr<Graph> graph = GraphOfOne(training::Gelu{form}, kNumbers / kSideBySide);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const Mapped want = MapByReference(*graph, x, dy);
    const Mapped got = MapByKernel(*graph, *PresentMath().front(), x, dy);
    for (int64_t i = 0; i < kNumbers; ++i) {
      SCOPED_TRACE(x[i]);
      ASSERT_EQ(std::isnan(got.y[i]), std::isnan(want.y[i]));
      ASSERT_EQ(std::isnan(got.dx[i]), std::isnan(want.dx[i]));
      if (std::isnan(want.y[i])) continue;
      if (std::isinf(want.y[i])) {
        ASSERT_EQ(got.y[i], want.y[i]);
        continue;
      }
      ASSERT_NEAR(got.y[i], want.y[i], tolerance * std::abs(want.y[i]) + 2e-36);
      ASSERT_NEAR(got.dx[i], want.dx[i], 1e-6 * std::abs(dy[i]) + 2e-36);
    }
    for (const BlockedMath* const math : PresentMath()) {
      const Mapped other = MapByKernel(*graph, *math, x, dy);
      EXPECT_EQ(BitsOf(other.y), BitsOf(got.y)) << math->target;
      EXPECT_EQ(BitsOf(other.dx), BitsOf(got.dx)) << math->target;
    }
  }
}

}  // namespace
}  // namespace capstan::engine
