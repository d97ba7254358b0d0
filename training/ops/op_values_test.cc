// Compares the references with numbers that are computed by hand or published.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/op_cases.h"
#include "training/ops/pool/pool.h"
#include "training/ops/reference_run.h"
#include "training/ops/relu/relu.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::Pointwise;
using Numbers = std::vector<double>;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

ReferenceRun<double> RunOf(const Operator& op, const std::vector<Shape>& shapes, int64_t count,
                           Tensors<double> x, Tensors<double> parameters = {}) {
  const absl::StatusOr<OpInstance> instance = Instantiate(op, Floats(shapes));
  EXPECT_EQ(instance.status(), absl::OkStatus());
  ReferenceRun<double> run(*FindOp(op.name), *instance, count);
  run.x = std::move(x);
  if (!parameters.empty()) run.parameters = std::move(parameters);
  return run;
}

Numbers ForwardOf(ReferenceRun<double> run) {
  run.Forward();
  return run.y;
}

auto Near(const Numbers& want, double most = 1e-12) {
  return Pointwise(testing::DoubleNear(most), want);
}

TEST(OpValuesTest, ConvolutionSlidesAnUnflippedKernel) {
  Conv conv;
  conv.out_channels = 1;
  conv.window.kernel_shape = {2, 2};
  const Tensors<double> x = {{1, 2, 3, 4, 5, 6, 7, 8, 9}};
  const Tensors<double> parameters = {{1, 2, 3, 4}, {10}};
  EXPECT_THAT(ForwardOf(RunOf(conv, {{1, 3, 3}}, 1, x, parameters)), ElementsAre(47, 57, 77, 87));
  // Windows at -1 and 1: corners, edges and the last complete one.
  conv.window.pads = {1, 1, 1, 1};
  conv.window.strides = {2, 2};
  EXPECT_THAT(ForwardOf(RunOf(conv, {{1, 3, 3}}, 1, x, parameters)), ElementsAre(14, 28, 46, 87));
  // 1 + 2 * 3 + 3 * 7 + 4 * 9: only the corners.
  conv.window = {};
  conv.window.kernel_shape = {2, 2};
  conv.window.dilations = {2, 2};
  EXPECT_THAT(ForwardOf(RunOf(conv, {{1, 3, 3}}, 1, x, parameters)), ElementsAre(74));
}

TEST(OpValuesTest, EachOutputHasAKernelForEachChannel) {
  Conv conv;
  conv.out_channels = 2;
  conv.window.kernel_shape = {1, 2};
  conv.bias = false;
  // 1 + 2 * 2 + 3 * 3 + 4 * 4 and 5 + 6 * 2 + 7 * 3 + 8 * 4
  EXPECT_THAT(ForwardOf(RunOf(conv, {{2, 1, 2}}, 1, {{1, 2, 3, 4}}, {{1, 2, 3, 4, 5, 6, 7, 8}})),
              ElementsAre(30, 70));
}

TEST(OpValuesTest, GroupsSeeTheirChannelsAlone) {
  Conv conv;
  conv.out_channels = 4;
  conv.group = 2;
  conv.bias = false;
  // Two samples of two channels; outputs 0 and 1 belong to channel 0.
  EXPECT_THAT(ForwardOf(RunOf(conv, {{2, 1, 1}}, 2, {{1, 10, 2, 20}}, {{1, 2, 3, 4}})),
              ElementsAre(1, 2, 30, 40, 2, 4, 60, 80));
  // Groups of two channels: 1 + 2 * 10 and 3 * 100 + 4 * 1000.
  conv.out_channels = 2;
  EXPECT_THAT(ForwardOf(RunOf(conv, {{4, 1, 1}}, 1, {{1, 10, 100, 1000}}, {{1, 2, 3, 4}})),
              ElementsAre(21, 4300));
}

TEST(OpValuesTest, DenseLayerHasARowOfWeightsForEachOutput) {
  EXPECT_THAT(ForwardOf(RunOf(Gemm{2}, {{3}}, 1, {{1, 2, 3}}, {{1, 0, 1, 0, 1, 0}, {0.5, 0}})),
              ElementsAre(4.5, 2));
}

TEST(OpValuesTest, FirstOfEqualMaximaGetsTheGradient) {
  MaxPool pool;
  pool.window.kernel_shape = {2, 2};
  ReferenceRun<double> run = RunOf(pool, {{1, 2, 2}}, 1, {{1, 3, 3, 3}});
  run.dy = {5};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, ElementsAre(3));
  EXPECT_THAT(run.dx[0], ElementsAre(0, 5, 0, 0));
  EXPECT_TRUE(std::isnan(ForwardOf(RunOf(pool, {{1, 2, 2}}, 1, {{9, kNan, 1, 2}}))[0]));
}

TEST(OpValuesTest, MaximumIgnoresPadding) {
  MaxPool pool;
  pool.window.kernel_shape = {2, 2};
  pool.window.strides = {2, 2};
  pool.window.pads = {1, 1, 1, 1};
  EXPECT_THAT(ForwardOf(RunOf(pool, {{1, 2, 2}}, 1, {{-1, -2, -3, -4}})),
              ElementsAre(-1, -2, -3, -4));
}

TEST(OpValuesTest, MeanCountsPaddingWhereAskedFor) {
  AveragePool pool;
  pool.window.kernel_shape = {2, 2};
  pool.window.strides = {2, 2};
  pool.window.pads = {1, 1, 1, 1};
  EXPECT_THAT(ForwardOf(RunOf(pool, {{1, 2, 2}}, 1, {{1, 2, 3, 4}})), ElementsAre(1, 2, 3, 4));
  pool.count_include_pad = true;
  EXPECT_THAT(ForwardOf(RunOf(pool, {{1, 2, 2}}, 1, {{1, 2, 3, 4}})),
              ElementsAre(0.25, 0.5, 0.75, 1));
  EXPECT_THAT(ForwardOf(RunOf(GlobalAveragePool(), {{2, 1, 2}}, 2, {{1, 3, 5, 7, 2, 4, 6, 8}})),
              ElementsAre(2, 6, 3, 7));
}

TEST(OpValuesTest, SumsAndJoinsKeepTheOrderOfTheirInputs) {
  EXPECT_THAT(ForwardOf(RunOf(Add(), {{2}, {2}}, 2, {{1, 2, 3, 4}, {10, 20, 30, 40}})),
              ElementsAre(11, 22, 33, 44));
  EXPECT_THAT(ForwardOf(RunOf(Concat{1}, {{1}, {2}}, 2, {{1, 2}, {3, 4, 5, 6}})),
              ElementsAre(1, 3, 4, 2, 5, 6));
  EXPECT_THAT(ForwardOf(RunOf(Concat{3}, {{1, 2, 1}, {1, 2, 2}}, 1, {{1, 2}, {3, 4, 5, 6}})),
              ElementsAre(1, 3, 4, 2, 5, 6));
}

TEST(OpValuesTest, ReluKeepsWhatIsNoNumber) {
  const Numbers y = ForwardOf(RunOf(Relu(), {{3}}, 1, {{-2, 3, kNan}}));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], 3);
  EXPECT_TRUE(std::isnan(y[2]));
}

// Phi(1), Phi(2) and Phi(3) from tables; the tanh form from its formula, in Python.
TEST(OpValuesTest, GeluIsItsDefinition) {
  const Tensors<double> x = {{-3, -1, 0, 1, 2}};
  EXPECT_THAT(ForwardOf(RunOf(Gelu(), {{5}}, 1, x)),
              Near({-3 * 0.00134989803163, -0.158655253931457, 0, 0.841344746068543,
                    2 * 0.977249868051821}));
  EXPECT_THAT(
      ForwardOf(RunOf(Gelu{"tanh"}, {{5}}, 1, x)),
      Near({-0.00363739208177, -0.158808009391723, 0, 0.841191990608277, 1.95459769408777}));
  ReferenceRun<double> far = RunOf(Gelu{"tanh"}, {{4}}, 1, {{-1e200, -60, 60, 1e200}});
  far.dy = {1, 1, 1, 1};
  far.Forward();
  far.Backward();
  EXPECT_THAT(far.y, ElementsAre(0, 0, 60, 1e200));
  EXPECT_THAT(far.dx[0], ElementsAre(0, 0, 1, 1));
}

// Softmax of (ln 1, ln 2, ln 5) is (1, 2, 5) / 8; smoothing by 0.3 makes the targets 0.1, 0.1 and
// 0.8.
TEST(OpValuesTest, LabelSmoothingSharesTheTarget) {
  ReferenceRun<double> run = RunOf(SoftmaxCrossEntropyLoss{0.3}, {{3}}, 1,
                                   {{std::log(1.0), std::log(2.0), std::log(5.0)}});
  run.labels = {2};
  run.dy = {2};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, Near({0.1 * std::log(8) + 0.1 * std::log(4) + 0.8 * std::log(1.6)}));
  EXPECT_THAT(run.dx[0], Near({0.05, 0.3, -0.35}));
}

// Two samples of two pixels: mean 2.5, variance 1.25, epsilon 0.3125, so the scale is 1 / 1.25.
// Formulas of torch.nn.BatchNorm2d; dx = weight * scale * (dy - sum(dy) / n - z * sum(dy * z) / n)
// of the paper.
TEST(BatchNormalizationTest, TrainingByHand) {
  ReferenceRun<double> run = RunOf(BatchNormalization{0.3125, 0.1}, {{1, 1, 2}}, 2, {{1, 2, 3, 4}},
                                   {{2}, {1}, {kNan}, {kNan}});
  run.dy = {1, 0, 0, 0};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, Near({-1.4, 0.2, 1.8, 3.4}));
  EXPECT_THAT(run.statistics[BatchNormalization::kRunningMean], Near({2.5}));
  EXPECT_THAT(run.statistics[BatchNormalization::kRunningVar], Near({5.0 / 3}));  // n - 1
  EXPECT_THAT(run.dparameters[BatchNormalization::kWeight], Near({-1.2}));
  EXPECT_THAT(run.dparameters[BatchNormalization::kBias], Near({1}));
  EXPECT_THAT(run.dx[0], Near({0.624, -0.592, -0.208, 0.176}));
}

TEST(BatchNormalizationTest, OneNumberHasNoVariance) {
  ReferenceRun<double> run =
      RunOf(BatchNormalization(), {{2}}, 1, {{3, 4}}, {{2, 2}, {1, 5}, {kNan, kNan}, {kNan, kNan}});
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, ElementsAre(1, 5));
  EXPECT_THAT(run.statistics[BatchNormalization::kRunningMean], ElementsAre(3, 4));
  EXPECT_THAT(run.statistics[BatchNormalization::kRunningVar], ElementsAre(0, 0));
  EXPECT_THAT(run.dx[0], ElementsAre(0, 0));
}

// ONNX's test case batchnorm_example.
TEST(BatchNormalizationTest, EvaluationUsesRunningStatistics) {
  ReferenceRun<double> run = RunOf(BatchNormalization(), {{2, 1, 3}}, 1, {{-1, 0, 1, 2, 3, 4}},
                                   {{1, 1.5}, {0, 1}, {0, 3}, {1, 1.5}});
  run.samples.training = false;
  EXPECT_THAT(ForwardOf(run), Near({-0.999995, 0, 0.999995, -0.2247408, 1, 2.2247408}, 1e-6));
}

TEST(BatchNormalizationTest, ParametersAreNamedAsInPyTorch) {
  const absl::StatusOr<OpInstance> instance =
      Instantiate(BatchNormalization{1e-5, 0.25}, Floats({{3, 4, 4}}));
  ASSERT_EQ(instance.status(), absl::OkStatus());
  const std::vector<OpParameter>& parameters = instance->inferred.parameters;
  ASSERT_EQ(parameters.size(), 4u);
  const char* const names[] = {"weight", "bias", "running_mean", "running_var"};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(parameters[i].suffix, names[i]);
    EXPECT_THAT(parameters[i].shape, ElementsAre(3));
    EXPECT_EQ(parameters[i].statistic, i >= 2);
    EXPECT_EQ(parameters[i].bias_like, i < 2);
    EXPECT_EQ(parameters[i].momentum, i < 2 ? 0 : 0.25);
    EXPECT_EQ(parameters[i].init, i % 3 == 0 ? ParameterInit::kOnes : ParameterInit::kZeros);
  }
}

// Which elements of an input of ones are kept.
std::vector<bool> MaskOf(const Dropout& dropout, int64_t elements, std::vector<int64_t> ids,
                         uint32_t epoch) {
  const int64_t count = static_cast<int64_t>(ids.size());
  ReferenceRun<double> run = RunOf(dropout, {{elements}}, count, {Numbers(count * elements, 1.0)});
  run.ids = std::move(ids);
  run.samples.epoch = epoch;
  run.dy = run.x[0];
  run.Forward();
  run.Backward();
  EXPECT_EQ(run.dx[0], run.y);  // the same mask in both directions
  std::vector<bool> mask;
  for (const double y : run.y) {
    EXPECT_TRUE(y == 0 || y == 1 / (1 - dropout.ratio)) << y;
    mask.push_back(y != 0);
  }
  return mask;
}

TEST(DropoutTest, AMaskBelongsToASampleAndAnEpoch) {
  constexpr int64_t kElements = 101;
  const auto part = [](const std::vector<bool>& mask, int n) {
    return std::vector<bool>(mask.begin() + n * kElements, mask.begin() + (n + 1) * kElements);
  };
  const int64_t far = (int64_t{1} << 40) + 7;
  const std::vector<bool> batch = MaskOf(Dropout(), kElements, {7, 8, far}, 1);
  EXPECT_EQ(part(batch, 0), MaskOf(Dropout(), kElements, {7}, 1));
  EXPECT_EQ(part(batch, 2), part(MaskOf(Dropout(), kElements, {1, far}, 1), 1));
  EXPECT_NE(part(batch, 0), part(batch, 1));
  EXPECT_NE(part(batch, 0), part(batch, 2));  // the lower bits of their ids are equal
  EXPECT_NE(part(batch, 0), MaskOf(Dropout(), kElements, {7}, 2));
}

TEST(DropoutTest, ShareOfZerosIsTheRatio) {
  constexpr int64_t kElements = 20000;
  for (const double ratio : {0.1, 0.5, 0.8}) {
    const std::vector<bool> mask = MaskOf(Dropout{ratio}, kElements, {3, 4}, 0);
    const double n = static_cast<double>(mask.size());
    const double zeros = static_cast<double>(std::count(mask.begin(), mask.end(), false));
    EXPECT_NEAR(zeros / n, ratio, 4 * std::sqrt(ratio * (1 - ratio) / n));
  }
}

// The layout is that of the header. A change of it would change every trained model.
TEST(DropoutTest, CountersAreAsDocumented) {
  EXPECT_EQ(DropoutCounter(0x123456789, 0x00ba987654321fed, 6, 0x54321),
            (PhiloxCounter{0x23456789u, 0x54321fedu, 6u, 0x98764321u}));
  EXPECT_EQ(DropoutThreshold(0), 0u);
  EXPECT_EQ(DropoutThreshold(0.5), 1u << 23);
  EXPECT_EQ(DropoutThreshold(0x1p-25), 1u);  // rounded up
  const std::vector<bool> mask = MaskOf(Dropout{0.25}, 7, {9}, 1);
  const Philox philox(/*seed=*/5, Purpose::kDropout);
  for (uint32_t e = 0; e < 7; ++e) {
    const PhiloxBlock block = philox.Block({e / 4, 9, 1, 0});
    EXPECT_EQ(mask[e], (block[e % 4] >> 8) >= 1u << 22) << e;
  }
}

}  // namespace
}  // namespace capstan::training
