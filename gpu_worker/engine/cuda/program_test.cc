#include "gpu_worker/engine/cuda/program.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gpu_worker/engine/cuda/operations.h"
#include "gpu_worker/engine/cuda/pool_math.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"
#include "training/ops/flatten/flatten.h"
#include "training/ops/gather/gather.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::engine::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A model as a compile request.
struct Request {
  explicit Request(const char* model, int64_t max_batch = 128)
      : Request(*training::MakeModel(model, 10, {1, 28, 28}), max_batch) {}
  explicit Request(training::Graph of, int64_t max_batch = 128)
      : graph(std::move(of)),
        layout(*training::FlatLayout::Create(training::TensorSpecs(graph))),
        sent(*SentGraph::Of(graph, layout)) {
    sent.Describe(request);
    request.max_batch = max_batch;
  }
  const training::Graph graph;
  const training::FlatLayout layout;
  const SentGraph sent;
  capstan_compile_request request = {};
};

TEST(ProgramTest, LenetIsFusedAndItsDenseLayerTakesTheImageAsItLies) {
  const Request lenet("lenet_d2l");
  const absl::StatusOr<CardProgram> program = MakeCardProgram(lenet.request);
  ASSERT_TRUE(program.ok()) << program.status();
  std::vector<StageKind> kinds;
  for (const Stage& stage : program->stages) kinds.push_back(stage.kind);
  EXPECT_THAT(kinds, ElementsAre(StageKind::kConv, StageKind::kAveragePool, StageKind::kConv,
                                 StageKind::kAveragePool, StageKind::kDense, StageKind::kDense,
                                 StageKind::kLoss));
  EXPECT_FALSE(program->stages[0].relu);  // the pooling includes it
  EXPECT_TRUE(program->stages[1].relu);
  EXPECT_TRUE(program->stages[4].relu);
  EXPECT_FALSE(program->stages[5].relu);
  EXPECT_FALSE(program->stages[0].input_gradient);
  EXPECT_EQ(program->stages[0].copy, -1);  // with one channel both orders are the same
  EXPECT_EQ(program->stages[2].copy, 0);
  EXPECT_EQ(program->stages[4].weight_channels, 50);  // [128, 50, 4 * 4]
  EXPECT_EQ(program->stages[4].weight_pixels, 16);
  EXPECT_EQ(program->stages[5].copy, -1);
  EXPECT_EQ(program->copied_elements, 50 * 20 * 25 + 24 + 128 * 800);  // 24: to a multiple of 64
  EXPECT_EQ(program->classes, 10);
  EXPECT_TRUE(program->trains());
}

TEST(ProgramTest, SixteenBitsHaveCopiesOfAllWeightsAndHalfTheActivations) {
  Request lenet("lenet_d2l");
  MemoryOptions options;
  options.max_batch = 128;
  const CardProgram wide = *MakeCardProgram(lenet.request);
  lenet.request.precision = CAPSTAN_PRECISION_BF16;
  const CardProgram half = *MakeCardProgram(lenet.request);
  for (const Stage& stage : half.stages) {
    const bool linear = stage.kind == StageKind::kConv || stage.kind == StageKind::kDense;
    EXPECT_EQ(stage.copy >= 0, linear) << stage.name;
    EXPECT_EQ(stage.bias_copy >= 0, linear) << stage.name;
  }
  EXPECT_TRUE(half.stages[0].rounded_gradient);
  EXPECT_FALSE(half.stages[4].rounded_gradient);
  const MemoryPlan of_wide = PlanMemory(wide, options);
  options.element_bytes = 2;
  const MemoryPlan of_half = PlanMemory(half, options);
  EXPECT_LT(of_half.arena_bytes, of_wide.arena_bytes * 3 / 4);
  EXPECT_EQ(of_half.gradient_bytes, of_wide.gradient_bytes);  // float32 in both cases
  EXPECT_EQ(of_half.copies - of_half.weights, of_wide.copies - of_wide.weights);
}

TEST(ProgramTest, RefusesByName) {
  // Tokens that a layer makes would be rounded to 16 bits.
  const training::Graph embedded =
      *training::Graph::Build("embedded", {3},
                              {{"tokens", training::Gemm{4}, {0}},
                               {"table", training::ParameterNode{{5, 2}, "initializer"}, {}},
                               {"embed", training::Gather(), {2, 1}},
                               {"flat", training::Flatten(), {3}},
                               {"loss", training::SoftmaxCrossEntropyLoss(), {4}}});
  Request tokens(embedded);
  EXPECT_TRUE(MakeCardProgram(tokens.request).ok());
  tokens.request.precision = CAPSTAN_PRECISION_BF16;
  const absl::Status rounded = MakeCardProgram(tokens.request).status();
  EXPECT_EQ(rounded.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(rounded.message(),
            "node embed (Gather): a token that is not the network's input, in 16 bits, is not "
            "carried out by GPU devices");
  Request lenet("lenet");
  lenet.request.max_batch = int64_t{1} << 24;
  EXPECT_EQ(MakeCardProgram(lenet.request).status().code(), absl::StatusCode::kInvalidArgument);
  lenet.request.max_batch = 1;
  lenet.request.node_count -= 1;
  EXPECT_EQ(MakeCardProgram(lenet.request).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemoryTest, BuffersThatLiveTogetherDoNotOverlap) {
  std::vector<CardBuffer> buffers = {{1000, 0, 3, 0}, {300, 1, 2, 0}, {900, 4, 6, 0},
                                     {256, 2, 5, 0},  {1, 6, 6, 0},   {0, 0, 6, 0}};
  const int64_t total = PlaceBuffers(buffers);
  EXPECT_EQ(total, 1024 + 512 + 256);  // by hand: 1000 and 900 share, 300 and 1 share
  for (size_t a = 0; a < buffers.size(); ++a) {
    EXPECT_EQ(buffers[a].offset % kAlignBytes, 0);
    for (size_t b = a + 1; b < buffers.size(); ++b) {
      const CardBuffer &x = buffers[a], &y = buffers[b];
      if (x.last < y.first || y.last < x.first) continue;
      EXPECT_TRUE(x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset)
          << a << " " << b;
    }
  }
}

// Gradients by parameters may lag two such stages. Nothing that backward writes meanwhile may
// overlap with what they read.
TEST(MemoryTest, WhatLaggingGradientsReadStays) {
  for (const char* const name : {"lenet", "lenet_d2l", "mlp"}) {
    const Request model(name);
    const CardProgram program = *MakeCardProgram(model.request);
    MemoryOptions options;
    options.max_batch = 16;
    const MemoryPlan plan = PlanMemory(program, options);
    const auto bytes = [&](int tensor) { return program.tensors[tensor].elements * 16 * 4; };
    int pairs = 0;
    for (int s = static_cast<int>(program.stages.size()) - 2; s >= 0; --s) {
      const Stage& stage = program.stages[s];
      if (stage.kind != StageKind::kConv && stage.kind != StageKind::kDense) continue;
      int further = 0;
      for (int t = s; t >= 0 && further < kParameterLag; --t) {
        const Stage& later = program.stages[t];
        const bool linear = later.kind == StageKind::kConv || later.kind == StageKind::kDense;
        if (t < s && linear && ++further == kParameterLag) break;  // backward waits here
        if (!later.input_gradient || later.x == later.y) continue;
        const int64_t begin = plan.gradients[later.x], end = begin + bytes(later.x);
        for (const auto& [read, tensor] :
             {std::make_pair(plan.values[stage.x], stage.x), {plan.gradients[stage.y], stage.y}}) {
          EXPECT_TRUE(read + bytes(tensor) <= begin || end <= read)
              << name << ": " << stage.name << " and " << later.name;
          ++pairs;
        }
      }
    }
    EXPECT_GT(pairs, 4) << name;
  }
}

TEST(MemoryTest, ThePlanHoldsWhatItPromises) {
  const Request lenet("lenet");
  const CardProgram program = *MakeCardProgram(lenet.request);
  MemoryOptions options;
  options.max_batch = 128;
  options.workspace_bytes = 1 << 20;
  const MemoryPlan plan = PlanMemory(program, options);
  EXPECT_EQ(plan.arena_bytes % kAlignBytes, 0);
  EXPECT_EQ(plan.weights, plan.arena_bytes);
  EXPECT_EQ(plan.gradient, plan.arena_bytes + plan.weight_bytes);
  EXPECT_GE(plan.gradient_bytes, program.total_floats * 4);
  EXPECT_EQ(plan.images, plan.header + 768);  // after 16 + 128 * 4 bytes, in multiples of 256
  EXPECT_EQ(plan.gradients[0], -1);           // nothing before the images is trained
  // The size of all values of lenet together. The arena shares places.
  int64_t all = 0;
  for (const Tensor& tensor : program.tensors) all += tensor.elements * 128 * 4 * 2;
  EXPECT_LT(plan.header, all);
  EXPECT_EQ(plan.targets, plan.header + 32);  // labels
}

// A header goes to the card as a whole with each batch, so it has no targets of many numbers.
TEST(MemoryTest, TargetsThatAreNumbersAreNotInTheHeader) {
  training::Gemm gemm;
  gemm.out_features = 10;
  absl::StatusOr<training::Graph> graph = training::Graph::Build(
      "linear", {784}, {{"fc", gemm, {0}}, {"loss", training::MeanSquaredErrorLoss(), {1}}});
  ASSERT_TRUE(graph.ok()) << graph.status();
  const Request request(*std::move(graph));
  const CardProgram program = *MakeCardProgram(request.request);
  MemoryOptions options;
  options.max_batch = 128;
  const MemoryPlan plan = PlanMemory(program, options);
  EXPECT_EQ(plan.images, plan.header + 768);
  EXPECT_GE(plan.targets, plan.images + 128 * 784 * 4);
  EXPECT_GE(plan.ids, plan.targets + 128 * 10 * 4);
}

TEST(MemoryTest, TheSuggestedBatchIsTheLargestThatFits) {
  const Request lenet("lenet");
  const CardProgram program = *MakeCardProgram(lenet.request);
  MemoryOptions options;
  options.max_batch = 10000;
  const int64_t bytes = 64 << 20;
  const int64_t fits = LargestBatchWithin(program, options, bytes);
  ASSERT_GT(fits, 0);
  ASSERT_LT(fits, 10000);
  options.max_batch = fits;
  EXPECT_LE(PlanMemory(program, options).total_bytes(), bytes);
  options.max_batch = fits + 1;
  EXPECT_GT(PlanMemory(program, options).total_bytes(), bytes);
  EXPECT_EQ(LargestBatchWithin(program, options, 1000), 0);
  EXPECT_THAT(OutOfMemoryText(program, options, 1000, 2000), HasSubstr("not even one sample"));
}

// [2 rows, 3 channels, 2 pixels] by hand.
TEST(IndexMathTest, CanonicalPlaces) {
  const std::vector<int> channels_last = {0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11};
  for (int i = 0; i < 12; ++i) EXPECT_EQ(CanonicalPlace(i, 3, 2), channels_last[i]) << i;
}

// One row and one channel: 3 pixels, window 2, stride 1.
TEST(IndexMathTest, PoolingsByHand) {
  WindowGeometry g;
  g.in_w = 3, g.out_w = 2, g.kernel_w = 2;
  const double x[] = {1, 5, 5}, dy[] = {10, 100};
  EXPECT_EQ(PoolForwardAt(g, true, false, x, 0), 5);
  EXPECT_EQ(PoolForwardAt(g, false, false, x, 0), 3);
  double dx[3];
  for (int i = 0; i < 3; ++i) dx[i] = PoolBackwardAt(g, true, false, x, dy, i);
  EXPECT_THAT(dx, ElementsAre(0, 110, 0));  // the first of equal values
  for (int i = 0; i < 3; ++i) dx[i] = PoolBackwardAt(g, false, false, x, dy, i);
  EXPECT_THAT(dx, ElementsAre(5, 55, 50));
  const double negative[] = {-1, -5, 2};
  EXPECT_EQ(PoolForwardAt(g, true, true, negative, 0), 0);
  for (int i = 0; i < 3; ++i) dx[i] = PoolBackwardAt(g, true, true, negative, dy, i);
  EXPECT_THAT(dx, ElementsAre(0, 0, 100));
}

// Windows side by side: their special backward gives the bits of the general one.
template <typename T>
void ExpectSameWindows(const WindowGeometry& g, int n) {
  std::vector<T> x, dy;
  for (int i = 0; i < n * g.in_c * g.in_h * g.in_w; ++i) {
    x.push_back(T(i % 13 == 5 ? NAN : static_cast<float>(i * i % 7) - 3));  // includes equal values
  }
  for (int i = 0; i < n * g.out_c * g.out_h * g.out_w; ++i) {
    dy.push_back(T(i % 5 == 0 ? -0.0f : 0.1f * static_cast<float>(i % 9) - 0.4f));
  }
  for (const bool max : {true, false}) {
    for (const bool relu : {true, false}) {
      std::vector<T> want(x.size()), got(x.size(), T(1234));
      for (size_t i = 0; i < want.size(); ++i) {
        want[i] = PoolBackwardAt(g, max, relu, x.data(), dy.data(), static_cast<int32_t>(i));
      }
      for (size_t i = 0; i < dy.size(); ++i) {
        PoolBackwardWindow(g, max, relu, x.data(), dy.data(), got.data(), static_cast<int32_t>(i));
      }
      EXPECT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(T)), 0)
          << g.kernel_h << "x" << g.kernel_w << " of " << g.in_h << "x" << g.in_w << ", max " << max
          << ", relu " << relu;
    }
  }
}

TEST(IndexMathTest, WindowsSideBySide) {
  for (const auto& [kernel_h, kernel_w, in_h, in_w] :
       {std::array{2, 2, 8, 8}, {2, 2, 9, 9}, {3, 2, 11, 4}, {1, 1, 3, 5}, {5, 7, 5, 13}}) {
    WindowGeometry g;
    g.in_c = g.out_c = 3;
    g.in_h = in_h, g.in_w = in_w, g.kernel_h = g.stride_h = kernel_h;
    g.kernel_w = g.stride_w = kernel_w;
    g.out_h = in_h / kernel_h, g.out_w = in_w / kernel_w;
    ASSERT_TRUE(WindowsTile(g));
    ExpectSameWindows<float>(g, 2);
    ExpectSameWindows<Bf16>(g, 1);
    for (int32_t WindowGeometry::*const changed :
         {&WindowGeometry::pad_top, &WindowGeometry::stride_w, &WindowGeometry::dilation_h,
          &WindowGeometry::out_w}) {
      WindowGeometry other = g;
      other.*changed += 1;
      EXPECT_FALSE(WindowsTile(other));
    }
  }
}

// The parts of a sum add up to the sum.
TEST(IndexMathTest, PartsAddUp) {
  WindowGeometry g;
  g.in_c = 2, g.in_h = 5, g.in_w = 4, g.out_c = 3, g.out_h = 3, g.out_w = 3;
  g.kernel_h = 3, g.kernel_w = 2, g.stride_h = 2, g.pad_top = 1, g.pad_bottom = 1;
  const int n = 7;
  std::vector<double> x(n * 40), dy(n * 27);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i % 11) - 5;
  for (size_t i = 0; i < dy.size(); ++i) dy[i] = static_cast<double>(i % 7) - 3;
  for (int i = 0; i < 36; ++i) {
    double sum = 0;
    for (int part = 0; part < 256; ++part) {
      sum += ConvWeightGradientPart(g, n, x.data(), dy.data(), i, part, 256);
    }
    EXPECT_EQ(sum, ConvWeightGradientPart(g, n, x.data(), dy.data(), i, 0, 1)) << i;
  }
  double sum = 0;
  for (int part = 0; part < 5; ++part) sum += ColumnSumPart(dy.data(), n * 9, 3, 1, part, 5);
  EXPECT_EQ(sum, ColumnSumPart(dy.data(), n * 9, 3, 1, 0, 1));
}

// Rounded by division and nearbyint in double precision, which is exact in this case.
float Rounded(float v, int fraction_bits, int least_exponent, double largest) {
  if (v == 0 || !std::isfinite(v)) return v;
  const int exponent = std::max(std::ilogb(v), least_exponent);
  const double place = std::ldexp(1.0, exponent - fraction_bits);
  const double rounded = std::nearbyint(static_cast<double>(v) / place) * place;
  if (std::abs(rounded) > largest) return std::copysign(INFINITY, v);
  return static_cast<float>(rounded);
}

TEST(Half16Test, EveryNumberComesBackAndRoundingIsToEven) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float fp16 = FloatOfFp16(static_cast<uint16_t>(bits));
    ASSERT_TRUE(std::isnan(fp16) || Fp16BitsOf(fp16) == bits) << bits;
    const float bf16 = FloatOf(bits << 16);
    ASSERT_TRUE(std::isnan(bf16) || Bf16BitsOf(bf16) == bits) << bits;
  }
  EXPECT_EQ(FloatOfFp16(0x3c00), 1.0f);
  EXPECT_EQ(FloatOfFp16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatOfFp16(0x8001), -0x1p-24f);
  EXPECT_EQ(FloatOfFp16(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(FloatOfFp16(Fp16BitsOf(NAN))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Bf16(NAN))));
  // float32 values around every boundary: halves, ties, overflow, subnormals.
  for (uint32_t bits = 0x30000000; bits < 0x48000000; bits += 977) {
    const float v = FloatOf(bits);
    ASSERT_EQ(static_cast<float>(Fp16(v)), Rounded(v, 10, -14, 65504)) << v;
    ASSERT_EQ(static_cast<float>(Fp16(-v)), Rounded(-v, 10, -14, 65504)) << v;
    ASSERT_EQ(static_cast<float>(Bf16(v)), Rounded(v, 7, -126, 3.39e38)) << v;
  }
  for (const float tie : {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65519.0f, 65520.0f, 0x1p-25f, 0x3p-25f,
                          1 + 0x1p-8f, 1 + 3 * 0x1p-8f}) {
    EXPECT_EQ(static_cast<float>(Fp16(tie)), Rounded(tie, 10, -14, 65504)) << tie;
    EXPECT_EQ(static_cast<float>(Bf16(tie)), Rounded(tie, 7, -126, 3.39e38)) << tie;
  }
}

}  // namespace
}  // namespace capstan::engine::cuda
