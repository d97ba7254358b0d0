// Compares the precisions below float32 with plain loops in double. Part of the device contract.
//
// Inputs and weights are numbers of 8 bits. So a precision differs only by what it rounds on the
// way: activations and their gradients in 16 bits, and nothing in tf32.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/contract/device_cases.h"
#include "tests/contract/device_contract.h"
#include "tests/contract/precision_run.h"
#include "training/graph/models.h"

namespace capstan::testing {
namespace {

using engine::Precision;
using ::testing::HasSubstr;

double Cosine(const Doubles& a, const Doubles& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
  return ab / std::sqrt(aa * bb);
}

// A rounded value may become the largest of its window, and then its gradient goes elsewhere.
bool MayChooseOtherwise(const training::Graph& graph) {
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    if (graph.nodes()[i].op.name == training::MaxPool::kName &&
        graph.needs_gradient(static_cast<int>(i))) {
      return true;
    }
  }
  return false;
}

struct PrecisionCase {
  Precision precision;
  double tolerance;
};
constexpr PrecisionCase kCases[] = {
    {Precision::kTf32, 1e-3}, {Precision::kBf16, 1e-2}, {Precision::kFp16, 1e-2}};

bool CarriesOut(engine::Device& device, Precision precision) {
  const training::Graph graph = *training::MakeModel("mlp", 10, {1, 28, 28});
  engine::PlanOptions options;
  options.precision = precision;
  const absl::Status status = device.Compile(graph, LayoutOf(graph), options).status();
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr(engine::PrecisionName(precision)));
  }
  return status.ok();
}

TEST_P(DeviceContractTest, LayersOfEveryPrecisionAgreeWithPlainLoops) {
  for (const PrecisionCase& c : kCases) {
    if (!CarriesOut(*device_, c.precision)) continue;
    double worst = 0;
    for (const LayerCase& layer : LayerCases()) {
      if (layer.large || 17 * layer.graph.forward_flops() > 4'000'000) continue;
      SCOPED_TRACE(layer.name + ", " + engine::PrecisionName(c.precision));
      Problem problem(layer.graph, /*count=*/17, /*seed=*/4);
      RoundTo8Bits(problem.images);
      RoundTo8Bits(problem.weights);
      const double scale = 1.0 / 16;
      const Numbers want = Plain(problem, scale);
      const absl::StatusOr<Numbers> got = OnDevice(*device_, problem, c.precision, scale);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_LT(Error(got->logits, want.logits, 1), c.tolerance);
      EXPECT_NEAR(got->loss_sum, want.loss_sum, c.tolerance * (1 + want.loss_sum));
      if (MayChooseOtherwise(layer.graph)) continue;
      for (size_t p = 0; p < want.gradients.size(); ++p) {
        const double error = Error(got->gradients[p], want.gradients[p], scale);
        EXPECT_LT(error, c.tolerance) << layer.graph.parameters()[p].name;
        worst = std::max(worst, error);
      }
    }
    RecordProperty(std::string("worst_") + engine::PrecisionName(c.precision),
                   std::to_string(worst));
  }
}

// For a graph in which a rounded value may become the largest of its window. Ten bits decide, in
// tf32 as in fp16.
constexpr double kOtherChoice = 1e-2;

// Whole models round once per layer and pass. The direction of a step must not suffer from that.
TEST_P(DeviceContractTest, ModelsOfEveryPrecisionDescendTheSameWay) {
  for (const PrecisionCase& c : kCases) {
    if (!CarriesOut(*device_, c.precision)) continue;
    for (const char* const name : {"lenet", "lenet_d2l", "mlp"}) {
      SCOPED_TRACE(std::string(name) + ", " + engine::PrecisionName(c.precision));
      const training::Graph graph = *training::MakeModel(name, 10, {1, 28, 28});
      Problem problem(graph, /*count=*/20, /*seed=*/6);
      RoundTo8Bits(problem.images);
      RoundTo8Bits(problem.weights);
      // As in training with fp16: a power of two that is taken out again.
      const double scale = 1024.0 / 20;
      const Numbers want = Plain(problem, scale);
      const absl::StatusOr<Numbers> got = OnDevice(*device_, problem, c.precision, scale);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_NEAR(got->loss_sum, want.loss_sum, c.tolerance * want.loss_sum);
      const double limit =
          MayChooseOtherwise(graph) ? std::max(c.tolerance, kOtherChoice) : c.tolerance;
      for (size_t p = 0; p < want.gradients.size(); ++p) {
        EXPECT_GT(Cosine(got->gradients[p], want.gradients[p]), 1 - limit)
            << graph.parameters()[p].name;
      }
    }
  }
}

// 65504 is the largest number of fp16. A scale that is too high shows in the gradient, which makes
// the lead lower it. The loss itself is not affected.
TEST_P(DeviceContractTest, AScaleThatIsTooHighForFp16GivesInfinities) {
  if (!CarriesOut(*device_, Precision::kFp16)) return;
  const training::Graph graph = *training::MakeModel("mlp", 10, {1, 28, 28});
  const Problem problem(graph, /*count=*/20, /*seed=*/6);
  const auto finite = [](const Numbers& numbers) {
    for (const Doubles& gradient : numbers.gradients) {
      for (const double value : gradient) {
        if (!std::isfinite(value)) return false;
      }
    }
    return true;
  };
  const absl::StatusOr<Numbers> high = OnDevice(*device_, problem, Precision::kFp16, 1 << 24);
  ASSERT_TRUE(high.ok()) << high.status();
  EXPECT_FALSE(finite(*high));
  EXPECT_TRUE(std::isfinite(high->loss_sum));
  const absl::StatusOr<Numbers> good = OnDevice(*device_, problem, Precision::kFp16, 65536.0 / 256);
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_TRUE(finite(*good));
  EXPECT_EQ(good->loss_sum, high->loss_sum);
}

}  // namespace
}  // namespace capstan::testing
