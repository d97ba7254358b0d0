// Compares the operators of sequences, and those that they need, with numbers computed by hand.
#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/cast/cast.h"
#include "training/ops/constant_of_shape/constant_of_shape.h"
#include "training/ops/gather/gather.h"
#include "training/ops/linear/linear.h"
#include "training/ops/op_cases.h"
#include "training/ops/reference_run.h"
#include "training/ops/sequence_cross_entropy/sequence_cross_entropy.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::training {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Pointwise;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Of ones as dy, with forward and backward done.
ReferenceRun<double> Computed(const Operator& op, const std::vector<Shape>& shapes, int64_t count,
                              Tensors<double> x, Tensors<double> parameters = {},
                              std::vector<int32_t> labels = {}) {
  const absl::StatusOr<OpInstance> instance = Instantiate(op, Floats(shapes));
  EXPECT_EQ(instance.status(), absl::OkStatus());
  ReferenceRun<double> run(*FindOp(op.name), *instance, count);
  run.x = std::move(x);
  if (!parameters.empty()) run.parameters = std::move(parameters);
  if (!labels.empty()) run.labels = std::move(labels);
  run.dy.assign(run.dy.size(), 1);
  run.Forward();
  run.Backward();
  return run;
}

TEST(GatherTest, TakesTheRowsThatTheIndicesName) {
  // Two samples, each with its own table of three rows.
  const ReferenceRun<double> run =
      Computed(Gather(), {{3, 2}, {4}}, 2,
               {{1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60}, {2, 0, 2, 1.9, -1, -3, 0.5, 2}});
  EXPECT_THAT(run.y, ElementsAre(5, 6, 1, 2, 5, 6, 3, 4, 50, 60, 10, 20, 10, 20, 50, 60));
  EXPECT_THAT(run.dx[0], ElementsAre(1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 2, 2));
  EXPECT_THAT(run.dx[1], Each(0));
}

TEST(GatherTest, NothingOutsideTheTableIsRead) {
  const Tensors<double> x = {{1, 2}, {2, -3, kNoNumber, kInfinite, -kInfinite, 1e30, -1e300, 1}};
  const ReferenceRun<double> run = Computed(Gather(), {{2}, {8}}, 1, x);
  EXPECT_THAT(run.y, ElementsAre(0, 0, 0, 0, 0, 0, 0, 2));
  EXPECT_THAT(run.dx[0], ElementsAre(0, 1));
  EXPECT_EQ(RowOfIndex(-2.5, 2), 0);
  EXPECT_EQ(RowOfIndex(-3, 2), -1);
}

TEST(LinearTest, IsADenseLayerForEachVector) {
  const ReferenceRun<double> run =
      Computed(Linear{2}, {{3, 2}}, 1, {{1, 2, 3, 4, 5, 6}}, {{1, 10, 100, 1000}, {0.5, 0.25}});
  EXPECT_THAT(run.y, ElementsAre(21.5, 2100.25, 43.5, 4300.25, 65.5, 6500.25));
  EXPECT_THAT(run.dx[0], ElementsAre(101, 1010, 101, 1010, 101, 1010));
  EXPECT_THAT(run.dparameters[0], ElementsAre(9, 12, 9, 12));
  EXPECT_THAT(run.dparameters[1], ElementsAre(3, 3));
  const Inference& inferred = run.op.inferred;
  EXPECT_EQ(inferred.flops, 2 * 2 * 2 * 3);
  EXPECT_THAT(inferred.parameters[0].shape, ElementsAre(2, 2));
  EXPECT_EQ(inferred.parameters[1].fan_in, 2);
}

TEST(TriluTest, KeepsATriangleOfEachMatrix) {
  const Tensors<double> x = {{1, 2, 3, 4, 5, 6}};
  const auto of = [&](bool upper, int64_t k) {
    return Computed(Trilu{upper, k}, {{2, 3}}, 1, x).y;
  };
  EXPECT_THAT(of(true, 0), ElementsAre(1, 2, 3, 0, 5, 6));
  EXPECT_THAT(of(true, 1), ElementsAre(0, 2, 3, 0, 0, 6));
  EXPECT_THAT(of(false, 0), ElementsAre(1, 0, 0, 4, 5, 0));
  EXPECT_THAT(of(false, -1), ElementsAre(0, 0, 0, 4, 0, 0));
  EXPECT_THAT(of(true, 9), Each(0));
  EXPECT_THAT(Computed(Trilu{true, 1}, {{1, 2, 2}}, 2, {{1, 2, 3, 4, 5, 6, 7, 8}}).dx[0],
              ElementsAre(0, 1, 0, 0, 0, 1, 0, 0));
  // A number that is hidden may be anything.
  EXPECT_THAT(Computed(Trilu(), {{2, 2}}, 1, {{1, 2, kNoNumber, 4}}).y, ElementsAre(1, 2, 0, 4));
}

TEST(ConstantOfShapeTest, IsTheSameForEverySample) {
  EXPECT_THAT(Computed(ConstantOfShape{{2, 2}, -0.5}, {}, 2, {}).y,
              ElementsAre(-0.5, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5, -0.5));
}

TEST(CastTest, WholeNumbersAreCutOffTowardsZero) {
  const Tensors<double> x = {{1.75, -1.75, 1e30, kInfinite, 0.5, -3}};
  const ReferenceRun<double> whole = Computed(Cast{"int64"}, {{6}}, 1, x);
  EXPECT_THAT(whole.y, ElementsAre(1, -1, 1e30, kInfinite, 0, -3));
  EXPECT_THAT(whole.dx[0], Each(0));
  const ReferenceRun<double> same = Computed(Cast(), {{6}}, 1, x);
  EXPECT_EQ(same.y, x[0]);
  EXPECT_THAT(same.dx[0], Each(1));
  EXPECT_TRUE(std::isnan(Computed(Cast{"int32"}, {{1}}, 1, {{kNoNumber}}).y[0]));
}

// Two classes with logits 0 and log 3 have the probabilities 1/4 and 3/4.
TEST(SequenceCrossEntropyLossTest, EachPositionPredictsTheNextToken) {
  const double z = std::log(3.0);
  const Tensors<double> x = {{0, z, z, 0, 0, z}, {0, 1, 0}};
  // Targets 1 and 0, then the label 0: 3/4, 3/4 and 1/4.
  const ReferenceRun<double> run =
      Computed(SequenceCrossEntropyLoss(), {{3, 2}, {3}}, 1, x, {}, {0});
  EXPECT_NEAR(run.y[0], -(2 * std::log(0.75) + std::log(0.25)) / 3, 1e-12);
  EXPECT_THAT(run.dx[0], Pointwise(testing::DoubleNear(1e-12),
                                   std::vector<double>{1 / 12.0, -1 / 12.0, -1 / 12.0, 1 / 12.0,
                                                       -1 / 4.0, 1 / 4.0}));
  EXPECT_THAT(run.dx[1], Each(0));
}

TEST(SequenceCrossEntropyLossTest, ATargetThatIsNoClassDoesNotCount) {
  for (const double token : {2.0, -1.0, kNoNumber, kInfinite, -1e300}) {
    const ReferenceRun<double> run = Computed(SequenceCrossEntropyLoss(), {{2, 2}, {2}}, 1,
                                              {{0, 5, 0, 0}, {kNoNumber, token}}, {}, {1});
    EXPECT_NEAR(run.y[0], std::log(2.0) / 2, 1e-12) << token;
    EXPECT_THAT(run.dx[0], ElementsAre(0, 0, testing::DoubleNear(0.25, 1e-12),
                                       testing::DoubleNear(-0.25, 1e-12)));
  }
}

}  // namespace
}  // namespace capstan::training
