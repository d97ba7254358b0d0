// Compares the references with numbers that are computed by hand or published.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/activation/activation.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/global_max_pool/global_max_pool.h"
#include "training/ops/identity/identity.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/lrn/lrn.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/mean_squared_error/mean_squared_error.h"
#include "training/ops/op_cases.h"
#include "training/ops/pad/pad.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/pool/pool.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/reference_run.h"
#include "training/ops/relu/relu.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax/softmax.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/ops/squeeze/squeeze.h"
#include "training/ops/transpose/transpose.h"

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

// Errors of 1, -2 and 2 for the first sample, of 0, 0.5 and -1 for the second.
TEST(OpValuesTest, MeanSquaredErrorIsTheMeanOverTheOutputs) {
  ReferenceRun<double> run = RunOf(MeanSquaredErrorLoss(), {{3}}, 2, {{1.5, -1, 2, 4, 0.25, -3}});
  run.targets = {0.5, 1, 0, 4, -0.25, -2};
  run.dy = {3, 6};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, Near({(1 + 4 + 4) / 3.0, (0 + 0.25 + 1) / 3.0}));
  EXPECT_THAT(run.dx[0], Near({2, -4, 4, 0, 2, -4}));
}

// ONNX's test cases sub_example, mul_example and div_example.
TEST(ArithmeticTest, IsElementByElement) {
  EXPECT_THAT(ForwardOf(RunOf(Sub(), {{3}, {3}}, 1, {{1, 2, 3}, {3, 2, 1}})),
              ElementsAre(-2, 0, 2));
  EXPECT_THAT(ForwardOf(RunOf(Mul(), {{3}, {3}}, 1, {{1, 2, 3}, {4, 5, 6}})),
              ElementsAre(4, 10, 18));
  EXPECT_THAT(ForwardOf(RunOf(Div(), {{2}, {2}}, 1, {{3, 4}, {1, 2}})), ElementsAre(3, 2));
}

// Two samples. The gradient by what was repeated is the sum over its copies.
TEST(ArithmeticTest, BroadcastsWithinASample) {
  const std::vector<Shape> shapes = {{2, 2}, {2, 1}};
  const Tensors<double> x = {{1, 2, 3, 4, 5, 6, 7, 8}, {10, 20, 30, 40}};
  EXPECT_THAT(ForwardOf(RunOf(Add(), shapes, 2, x)), ElementsAre(11, 12, 23, 24, 35, 36, 47, 48));
  ReferenceRun<double> sub = RunOf(Sub(), shapes, 2, x);
  sub.dy = {1, 2, 3, 4, 5, 6, 7, 8};
  sub.Forward();
  sub.Backward();
  EXPECT_THAT(sub.y, ElementsAre(-9, -8, -17, -16, -25, -24, -33, -32));
  EXPECT_EQ(sub.dx[0], sub.dy);
  EXPECT_THAT(sub.dx[1], ElementsAre(-3, -7, -11, -15));
  // A row of numbers times a column: [3] and [2, 1].
  ReferenceRun<double> mul = RunOf(Mul(), {{3}, {2, 1}}, 1, {{1, 2, 3}, {10, 20}});
  mul.dy = {1, 1, 1, 0, 0, 1};
  mul.Forward();
  mul.Backward();
  EXPECT_THAT(mul.y, ElementsAre(10, 20, 30, 20, 40, 60));
  EXPECT_THAT(mul.dx[0], ElementsAre(10, 10, 30));
  EXPECT_THAT(mul.dx[1], ElementsAre(6, 3));
  ReferenceRun<double> div = RunOf(Div(), {{2}, {1}}, 1, {{6, 8}, {2}});
  div.dy = {1, 1};
  div.Forward();
  div.Backward();
  EXPECT_THAT(div.y, ElementsAre(3, 4));
  EXPECT_THAT(div.dx[0], ElementsAre(0.5, 0.5));
  EXPECT_THAT(div.dx[1], ElementsAre(-3.5));  // -(6 + 8) / 2^2
}

// ONNX's test cases sigmoid_example, tanh_example, leakyrelu_example and clip_example.
TEST(ActivationTest, ValuesAreThoseOfOnnxTestCases) {
  const Tensors<double> x = {{-1, 0, 1}};
  EXPECT_THAT(ForwardOf(RunOf(Sigmoid(), {{3}}, 1, x)), Near({0.26894143, 0.5, 0.7310586}, 1e-7));
  EXPECT_THAT(ForwardOf(RunOf(Tanh(), {{3}}, 1, x)), Near({-0.76159418, 0, 0.76159418}, 1e-7));
  EXPECT_THAT(ForwardOf(RunOf(LeakyRelu{0.1}, {{3}}, 1, x)), ElementsAre(-0.1, 0, 1));
  EXPECT_THAT(ForwardOf(RunOf(Clip{-1, 1}, {{3}}, 1, {{-2, 0, 2}})), ElementsAre(-1, 0, 1));
}

TEST(ActivationTest, KinksAndFarNumbers) {
  const auto gradient = [](const Operator& op, const Numbers& x) {
    ReferenceRun<double> run = RunOf(op, {{static_cast<int64_t>(x.size())}}, 1, {x});
    run.dy.assign(x.size(), 1);
    run.Forward();
    run.Backward();
    return run.dx[0];
  };
  EXPECT_THAT(gradient(LeakyRelu{0.1}, {-3, 0, 3}), ElementsAre(0.1, 0.1, 1));
  EXPECT_THAT(gradient(Clip{-1, 2}, {-1.5, -1, 2, 2.5}), ElementsAre(0, 1, 1, 0));
  // The floats nearest to 0.7 and 0.1 are below and above them, and still on the bounds.
  EXPECT_THAT(gradient(Clip{0.7, 1}, {0.7f}), ElementsAre(1));
  EXPECT_THAT(gradient(Clip{0, 0.1}, {0.1f}), ElementsAre(1));
  EXPECT_THAT(gradient(Sigmoid(), {-1e300, 0, 1e300}), ElementsAre(0, 0.25, 0));
  EXPECT_THAT(gradient(Tanh(), {-1e300, 0, 1e300}), ElementsAre(0, 1, 0));
  for (const Operator& op :
       {Operator(Sigmoid()), Operator(Tanh()), Operator(LeakyRelu()), Operator(Clip{-1, 1})}) {
    EXPECT_TRUE(std::isnan(ForwardOf(RunOf(op, {{1}}, 1, {{kNan}}))[0])) << op.name;
  }
}

// ONNX's test cases softmax_example and logsoftmax_example_1, and softmax_large_number.
TEST(SoftmaxTest, ValuesAreThoseOfOnnxTestCases) {
  EXPECT_THAT(ForwardOf(RunOf(Softmax(), {{3}}, 1, {{-1, 0, 1}})),
              Near({0.09003058, 0.24472848, 0.66524094}, 1e-7));
  EXPECT_THAT(ForwardOf(RunOf(LogSoftmax(), {{3}}, 1, {{-1, 0, 1}})),
              Near({-2.4076061, -1.407606, -0.407606}, 1e-6));
  const Tensors<double> large = {{0, 1, 2, 3, 10000, 10001, 10002, 10003}};
  const Numbers once = {0.032058604, 0.08714432, 0.23688284, 0.6439143};
  Numbers twice = once;
  twice.insert(twice.end(), once.begin(), once.end());
  EXPECT_THAT(ForwardOf(RunOf(Softmax(), {{4}}, 2, large)), Near(twice, 1e-7));
}

// Over the first axis of [2, 2]: columns (0, ln 3) and (ln 2, ln 2).
TEST(SoftmaxTest, GoesOverItsAxis) {
  const double ln2 = std::log(2.0), ln3 = std::log(3.0);
  EXPECT_THAT(ForwardOf(RunOf(Softmax{1}, {{2, 2}}, 1, {{0, ln2, ln3, ln2}})),
              Near({0.25, 0.5, 0.75, 0.5}));
  EXPECT_THAT(ForwardOf(RunOf(LogSoftmax{1}, {{2, 2}}, 1, {{0, ln2, ln3, ln2}})),
              Near({-2 * ln2, -ln2, ln3 - 2 * ln2, -ln2}));
}

// ONNX's test cases reduce_mean_keepdims_example, reduce_sum_do_not_keepdims_example and
// globalmaxpool_precomputed. The first axis of their data is the batch.
TEST(ReduceTest, ValuesAreThoseOfOnnxTestCases) {
  EXPECT_THAT(ForwardOf(RunOf(ReduceMean{{1}, true}, {{2, 2}}, 3,
                              {{5, 1, 20, 2, 30, 1, 40, 2, 55, 1, 60, 2}})),
              ElementsAre(12.5, 1.5, 35, 1.5, 57.5, 1.5));
  EXPECT_THAT(ForwardOf(RunOf(ReduceSum{{1}, false}, {{2, 2}}, 3,
                              {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}})),
              ElementsAre(4, 6, 12, 14, 20, 22));
  EXPECT_THAT(ForwardOf(RunOf(GlobalMaxPool(), {{1, 3, 3}}, 1, {{1, 2, 3, 4, 5, 6, 7, 8, 9}})),
              ElementsAre(9));
}

TEST(ReduceTest, FirstOfEqualMaximaGetsTheGradient) {
  ReferenceRun<double> run = RunOf(GlobalMaxPool(), {{2, 1, 3}}, 1, {{1, 3, 3, 7, kNan, 9}});
  run.dy = {5, 6};
  run.Forward();
  run.Backward();
  EXPECT_EQ(run.y[0], 3);
  EXPECT_TRUE(std::isnan(run.y[1]));
  EXPECT_THAT(run.dx[0], ElementsAre(0, 5, 0, 0, 6, 0));
}

// The examples of ONNX's pages of Slice and Pad. The batch of the Pad is their first axis.
TEST(ShapesTest, ValuesAreThoseOfOnnxExamples) {
  const Tensors<double> x = {{1, 2, 3, 4, 5, 6, 7, 8}};
  EXPECT_THAT(ForwardOf(RunOf(SliceNode{{1, 0}, {2, 3}, {1, 2}, {1, 2}}, {{2, 4}}, 1, x)),
              ElementsAre(5, 7));
  EXPECT_THAT(ForwardOf(RunOf(SliceNode{{0, 1}, {-1, 1000}, {}, {}}, {{2, 4}}, 1, x)),
              ElementsAre(2, 3, 4));
  EXPECT_THAT(ForwardOf(RunOf(Pad{{2, 0}, 0}, {{2}}, 3, {{1, 1.2, 2.3, 3.4, 4.5, 5.7}})),
              ElementsAre(0, 0, 1, 1.2, 0, 0, 2.3, 3.4, 0, 0, 4.5, 5.7));
}

TEST(ShapesTest, ElementsGoToTheirPlaces) {
  const Tensors<double> x = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}};
  EXPECT_THAT(ForwardOf(RunOf(Transpose{{2, 1}}, {{2, 3}}, 2, x)),
              ElementsAre(1, 4, 2, 5, 3, 6, 7, 10, 8, 11, 9, 12));
  // [2, 2, 3] with the last axis in front.
  EXPECT_THAT(ForwardOf(RunOf(Transpose{{3, 1, 2}}, {{2, 2, 3}}, 1, x)),
              ElementsAre(1, 4, 7, 10, 2, 5, 8, 11, 3, 6, 9, 12));
  // Backwards from the last to the first, every second.
  EXPECT_THAT(ForwardOf(RunOf(SliceNode{{-1}, {-100}, {1}, {-2}}, {{6}}, 2, x)),
              ElementsAre(6, 4, 2, 12, 10, 8));
  EXPECT_THAT(ForwardOf(RunOf(Pad{{-1, 0, 0, 1}, 0.5}, {{2, 3}}, 2, x)),
              ElementsAre(4, 5, 6, 0.5, 10, 11, 12, 0.5));
  EXPECT_THAT(ForwardOf(RunOf(Unsqueeze{{1}}, {{2, 3}}, 2, x)), x[0]);
  EXPECT_THAT(ForwardOf(RunOf(Squeeze(), {{1, 6}}, 2, x)), x[0]);
  EXPECT_THAT(ForwardOf(RunOf(IdentityNode(), {{6}}, 2, x)), x[0]);
}

TEST(MatMulTest, ByHand) {
  ReferenceRun<double> run =
      RunOf(MatMul(), {{2, 3}, {3, 2}}, 1, {{1, 2, 3, 4, 5, 6}, {1, 0, 0, 1, 2, 3}});
  run.dy = {1, 0, 0, 1};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, ElementsAre(7, 11, 16, 23));
  EXPECT_THAT(run.dx[0], ElementsAre(1, 0, 2, 0, 1, 3));
  EXPECT_THAT(run.dx[1], ElementsAre(1, 4, 2, 5, 3, 6));
  // Two samples of two rows [1, 2], and one column [2, 1] for both rows.
  EXPECT_THAT(ForwardOf(RunOf(MatMul(), {{2, 1, 2}, {2, 1}}, 2,
                              {{1, 2, 3, 4, 5, 6, 7, 8}, {10, 1, 1, 10}})),
              ElementsAre(12, 34, 65, 87));
}

// Mean 2.5, variance 1.25, epsilon 0.3125, so the scale is 1 / 1.25: z is -1.2, -0.4, 0.4, 1.2.
TEST(LayerNormalizationTest, ByHand) {
  ReferenceRun<double> run = RunOf(LayerNormalization{-1, 0.3125}, {{4}}, 1, {{1, 2, 3, 4}},
                                   {{2, 1, 1, 1}, {1, 0, 0, 10}});
  run.dy = {1, 0, 0, 0};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, Near({-1.4, -0.4, 0.4, 11.2}));
  EXPECT_THAT(run.dparameters[LayerNormalization::kWeight], Near({-1.2, 0, 0, 0}));
  EXPECT_THAT(run.dparameters[LayerNormalization::kBias], Near({1, 0, 0, 0}));
  // 0.8 * (g - 0.5 + 0.6 z) with g = (2, 0, 0, 0)
  EXPECT_THAT(run.dx[0], Near({0.624, -0.592, -0.208, 0.176}));
}

TEST(LayerNormalizationTest, ParametersHaveTheShapeOfTheNormalizedAxes) {
  const absl::StatusOr<OpInstance> instance =
      Instantiate(LayerNormalization{2, 1e-5}, Floats({{3, 4, 5}}));
  ASSERT_EQ(instance.status(), absl::OkStatus());
  const std::vector<OpParameter>& parameters = instance->inferred.parameters;
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].suffix, "weight");
  EXPECT_EQ(parameters[0].init, ParameterInit::kOnes);
  EXPECT_EQ(parameters[1].suffix, "bias");
  EXPECT_EQ(parameters[1].init, ParameterInit::kZeros);
  for (const OpParameter& parameter : parameters) {
    EXPECT_THAT(parameter.shape, ElementsAre(4, 5));
    EXPECT_TRUE(parameter.bias_like);
  }
}

TEST(ParameterTest, IsTheSameForEverySample) {
  ReferenceRun<double> run = RunOf(ParameterNode{{2}}, {}, 3, {}, {{7, 8}});
  run.dy = {1, 2, 3, 4, 5, 7};
  run.Forward();
  run.Backward();
  EXPECT_THAT(run.y, ElementsAre(7, 8, 7, 8, 7, 8));
  EXPECT_THAT(run.dparameters[0], ElementsAre(9, 13));
  const auto weight = [](const char* init) {
    return Instantiate(ParameterNode{{6, 4}, init}, {})->inferred.parameters[0];
  };
  EXPECT_EQ(weight("zeros").init, ParameterInit::kZeros);
  EXPECT_EQ(weight("ones").init, ParameterInit::kOnes);
  EXPECT_EQ(weight("initializer").init, ParameterInit::kInitializer);
  EXPECT_EQ(weight("initializer").fan_in, 4);
  EXPECT_FALSE(weight("zeros").bias_like);
}

// Squares 1, 4, 9. Of 3 neighbours: 1 + 5, 1 + 14, 1 + 13; of 2, a channel and the next one:
// 1 + 5, 1 + 13, 1 + 9.
TEST(LrnTest, ByHand) {
  EXPECT_THAT(ForwardOf(RunOf(LRN{3, 3, 1, 1}, {{3, 1, 1}}, 1, {{1, 2, 3}})),
              Near({1.0 / 6, 2.0 / 15, 3.0 / 14}));
  EXPECT_THAT(ForwardOf(RunOf(LRN{2, 2, 1, 1}, {{3, 1, 1}}, 1, {{1, 2, 3}})),
              Near({1.0 / 6, 2.0 / 14, 3.0 / 10}));
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
