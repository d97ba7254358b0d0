#include "tests/contract/graph_contract.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "gpu_worker/engine/cpu/aligned.h"
#include "gpu_worker/engine/cpu/cpu_device.h"
#include "gtest/gtest.h"
#include "tests/contract/reference_network.h"
#include "training/ops/activation/activation.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/concat/concat.h"
#include "training/ops/reshape/reshape.h"

namespace capstan::testing {

using engine::Plan;
using training::Graph;

namespace {

// While it lives, new memory is full of NaNs.
class NanMemory {
 public:
  NanMemory() { engine::NewMemoryByte() = 0xff; }
  ~NanMemory() { engine::NewMemoryByte() = 0; }
  NanMemory(const NanMemory&) = delete;
  NanMemory& operator=(const NanMemory&) = delete;
};

void ExpectNear(const float* got, const Doubles& want, double share, double largest,
                double tolerance, const std::string& what) {
  for (const double value : want) largest = std::max(largest, std::abs(value * share));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i] * share, tolerance * largest) << what << "[" << i << "]";
  }
}

void ExpectEvaluatesLikeReference(Plan& plan, const Problem& problem,
                                  const std::vector<Doubles>& parameters, double tolerance) {
  const ReferenceResult want =
      EvaluateByReference(problem.graph, parameters, {problem.images.begin(), problem.images.end()},
                          problem.labels, problem.targets.data());
  std::vector<float> logits(want.logits.size());
  const absl::Status predicted = plan.Predict(problem.batch(), logits.data());
  ASSERT_TRUE(predicted.ok()) << predicted;
  ExpectNear(logits.data(), want.logits, 1, 1e-3, tolerance, "logits in evaluation");
  const auto result = plan.Evaluate(problem.batch());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_NEAR(result->loss_sum, want.loss_sum, tolerance * (1 + std::abs(want.loss_sum)));
  EXPECT_EQ(result->correct, want.correct) << "in evaluation";
  EXPECT_EQ(result->samples, problem.count);
}

OpenDeviceFunction& OpenUsed() {
  static OpenDeviceFunction open = Phases;
  return open;
}
double& ToleranceFactor() {
  static double factor = 1;
  return factor;
}

}  // namespace

std::unique_ptr<engine::Device> Phases() { return engine::MakeCpuDevice({}); }

void UseDevice(OpenDeviceFunction open, double factor) {
  OpenUsed() = open;
  ToleranceFactor() = factor;
}

absl::StatusOr<std::unique_ptr<Plan>> CompileFor(const Problem& problem, int64_t max_batch,
                                                 int threads) {
  engine::PlanOptions options;
  options.max_batch = max_batch;
  options.threads = threads;
  auto plan = OpenUsed()()->Compile(problem.graph, problem.layout, options);
  if (plan.ok()) {
    const absl::Status status = (*plan)->LoadWeights(problem.weights.data());
    if (!status.ok()) return status;
  }
  return plan;
}

Computed Compute(Plan& plan, const Problem& problem) {
  Computed computed;
  computed.gradient.assign(problem.layout.total_floats(), 1234.5f);
  const auto result = plan.ComputeLane(problem.batch(), kScale, computed.gradient.data());
  EXPECT_TRUE(result.ok()) << result.status();
  if (result.ok()) computed.result = *result;
  return computed;
}

void ExpectLikeReference(const Graph& graph, int64_t count, uint64_t seed, double tolerance) {
  SCOPED_TRACE("batch " + std::to_string(count) + ", seed " + std::to_string(seed));
  tolerance *= ToleranceFactor();
  const NanMemory nan_memory;
  const Problem problem(graph, count, seed);
  std::vector<Doubles> parameters;
  for (const training::Parameter& parameter : graph.parameters()) {
    const float* const first = problem.weights.data() + problem.layout.Find(parameter.name)->offset;
    parameters.emplace_back(first, first + parameter.elements);
  }
  training::SampleInfo draws;
  draws.ids = problem.ids.data();
  draws.seed = problem.draw_seed;
  draws.epoch = problem.epoch;
  draws.targets = problem.targets.data();
  const ReferenceResult want =
      RunReference(graph, parameters, {problem.images.begin(), problem.images.end()},
                   problem.labels, kScale, draws);
  const auto plan = CompileFor(problem, count, /*threads=*/2);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const Computed got = Compute(**plan, problem);
  EXPECT_NEAR(got.result.loss_sum, want.loss_sum, 0.2 * tolerance * (1 + std::abs(want.loss_sum)));
  EXPECT_EQ(got.result.correct, want.correct);
  EXPECT_EQ(got.result.samples, count);
  // A loss in float has an error of its own scale, also where its gradient is nearly 0.
  double typical = 1e-6 * ToleranceFactor();
  for (const Doubles& gradient : want.gradients) {
    for (const double value : gradient) typical = std::max(typical, 0.05 * std::abs(value));
  }
  for (size_t p = 0; p < parameters.size(); ++p) {
    const training::Parameter& parameter = graph.parameters()[p];
    const double share = parameter.statistic ? kScale * static_cast<double>(count) : 1;
    ExpectNear(got.gradient.data() + problem.layout.Find(parameter.name)->offset, want.gradients[p],
               share, parameter.statistic ? 1e-3 : typical, tolerance, parameter.name);
  }
  ExpectEvaluatesLikeReference(**plan, problem, parameters, tolerance);

  // Rule R5. Also no trace of a larger plan or of earlier work: a step of NaNs goes wherever it
  // writes.
  const auto other = CompileFor(problem, count + 21, /*threads=*/1);
  ASSERT_TRUE(other.ok()) << other.status();
  Problem before(graph, count + 21, /*seed=*/7);
  std::fill(before.images.begin(), before.images.end(), std::numeric_limits<float>::quiet_NaN());
  Compute(**other, before);
  const Computed again = Compute(**other, problem);
  EXPECT_EQ(again.result.loss_sum, got.result.loss_sum);
  EXPECT_EQ(
      std::memcmp(again.gradient.data(), got.gradient.data(), got.gradient.size() * sizeof(float)),
      0)
      << "bits with another plan";
}

absl::StatusOr<Graph> GraphOf(const training::OpCase& op_case) {
  Nodes nodes;
  std::vector<int> inputs;
  const bool loss = training::FindOp(op_case.op.name)->loss;
  for (const training::ValueType& x : op_case.inputs) {
    inputs.push_back(nodes.Add("in", training::Gemm{training::Elements(x.shape)}, {0}));
    // The loss of a chain stands behind a dense layer itself.
    const bool shaped = loss && x.shape.size() == 1;
    if (!shaped) inputs.back() = nodes.Add("shape", training::Reshape{x.shape}, {inputs.back()});
    // Near 0, quotients would enlarge the rounding errors of the layer without limit.
    const bool divisor = op_case.op.name == training::Div::kName && inputs.size() == 2;
    if (divisor) inputs.back() = nodes.Add("divisor", training::Sigmoid(), {inputs.back()});
  }
  int y = nodes.Add("op", op_case.op, inputs);
  if (inputs.empty()) {
    // The graph's input must have a reader, too.
    y = nodes.Add("flat", training::Flatten(), {y});
    y = nodes.Add("join", training::Concat{1}, {y, nodes.Add("in", training::Gemm{3}, {0})});
  }
  return loss ? nodes.Build({6}) : nodes.Finish({6}, y, 5);
}

}  // namespace capstan::testing
