// Every operator in every precision, and whole models, on the CUDA plug-in's own sources and a
// stand-in for CUDA.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/graph_contract.h"
#include "tests/contract/plugin_card.h"
#include "tests/contract/precision_run.h"
#include "training/graph/models.h"

#if defined(CAPSTAN_CUDA_ON_CPU)

namespace capstan::testing {
namespace {

using engine::Precision;
using training::Graph;
using training::OpCase;

std::unique_ptr<engine::Device> OpenStandIn() { return OpenPluginCard(CAPSTAN_CUDA_ON_CPU, 0); }

// Whether a prediction computes what training does.
bool IsTheSameInEvaluation(const Graph& graph) {
  for (int i = 0; i < graph.node_count(); ++i) {
    if (graph.def(i).couples_samples || graph.def(i).random) return false;
  }
  return true;
}

// Some operators choose: a rounded number may be on the other side of a limit.
bool Chooses(const std::string& op) {
  return op == "MaxPool" || op == "GlobalMaxPool" || op == "Relu" || op == "LeakyRelu" ||
         op == "Clip" || op == "Cast" || op == "Gather" || op == "SequenceCrossEntropyLoss";
}

// Small multiples of a power of two: their products, and sums of hundreds of these, are exact in 8
// bits, so that every precision chooses alike. Padding stays 0.
void MakeExact(Problem& problem) {
  for (float& image : problem.images) image = std::round(image) / 4;
  for (size_t i = 0; i < problem.weights.size(); ++i) {
    float& weight = problem.weights[i];
    if (weight != 0) weight = i % 3 == 0 ? 0.0f : std::copysign(0.25f, weight);
  }
}

struct PrecisionCase {
  Precision precision;
  double tolerance;
};

TEST(OperatorsOnCardsTest, EveryOperatorInEveryPrecision) {
  const std::unique_ptr<engine::Device> device = OpenStandIn();
  int runs = 0, refused = 0;
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile) continue;
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    ASSERT_TRUE(graph.ok()) << graph.status();
    Problem problem(*graph, /*count=*/5, /*seed=*/4);
    if (Chooses(op_case.op.name)) {
      MakeExact(problem);
    } else {
      RoundTo8Bits(problem.images);
      RoundTo8Bits(problem.weights);
    }
    const double scale = 1.0 / 4;
    const Numbers want = Plain(problem, scale);
    double typical = scale;
    for (const Doubles& gradient : want.gradients) {
      for (const double value : gradient) typical = std::max(typical, 0.2 * std::abs(value));
    }
    for (const PrecisionCase& c : {PrecisionCase{Precision::kTf32, 2e-3},
                                   {Precision::kBf16, 6e-2},
                                   {Precision::kFp16, 1e-2}}) {
      SCOPED_TRACE(op_case.op.name + " " + op_case.name + ", " + PrecisionName(c.precision));
      const absl::StatusOr<Numbers> got = OnDevice(*device, problem, c.precision, scale);
      if (got.status().code() == absl::StatusCode::kUnimplemented) {
        EXPECT_THAT(std::string(got.status().message()),
                    ::testing::HasSubstr("): a token that is not the network's input, in 16 bits"));
        EXPECT_TRUE(op_case.op.name == "Gather" || op_case.op.name == "SequenceCrossEntropyLoss");
        ++refused;
        continue;
      }
      ASSERT_TRUE(got.ok()) << got.status();
      ++runs;
      EXPECT_NEAR(got->loss_sum, want.loss_sum, c.tolerance * (1 + std::abs(want.loss_sum)));
      if (IsTheSameInEvaluation(*graph)) {
        EXPECT_LT(Error(got->logits, want.logits, 1), c.tolerance);
      }
      for (size_t p = 0; p < want.gradients.size(); ++p) {
        EXPECT_LT(Error(got->gradients[p], want.gradients[p], typical), c.tolerance)
            << graph->parameters()[p].name;
      }
    }
  }
  RecordProperty("runs", runs);
  EXPECT_GT(runs, 190);
  EXPECT_LT(refused, 20);
}

// The cosine of the angle between the gradients of all parameters.
double CosineOf(const Numbers& a, const Numbers& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t p = 0; p < a.gradients.size(); ++p) {
    for (size_t i = 0; i < a.gradients[p].size(); ++i) {
      ab += a.gradients[p][i] * b.gradients[p][i];
      aa += a.gradients[p][i] * a.gradients[p][i];
      bb += b.gradients[p][i] * b.gradients[p][i];
    }
  }
  return ab / std::sqrt(aa * bb);
}

struct ModelCase {
  const char* name;
  int64_t classes;
  training::Shape input;
  int64_t count;
  double least_in_16_bits;  // of the cosine
};

// As at the start of a job.
void SetScalesAndShifts(Problem& problem) {
  for (const training::Parameter& parameter : problem.graph.parameters()) {
    if (parameter.init == training::ParameterInit::kInitializer) continue;
    const bool ones = parameter.init == training::ParameterInit::kOnes;
    std::fill_n(problem.weights.begin() + problem.layout.Find(parameter.name)->offset,
                parameter.elements, ones ? 1.0f : 0.0f);
  }
}

// The step of a whole model has the direction that the CPU's has. The 27 normalisations of a
// MobileNet without shortcuts enlarge what 16 bits have rounded.
TEST(ModelsOnCardsTest, WholeModelsDescendAsOnCpus) {
  for (const ModelCase& model : {ModelCase{"resnet18_v1", 10, {3, 16, 16}, 4, 0.9},
                                 {"mobilenet_v1", 10, {3, 32, 32}, 6, 0.3},
                                 {"gpt_nano", 65, {1, 1, 16}, 3, 0.99}}) {
    const absl::StatusOr<Graph> graph = training::MakeModel(model.name, model.classes, model.input);
    ASSERT_TRUE(graph.ok()) << graph.status();
    Problem problem(*graph, model.count, /*seed=*/4);
    SetScalesAndShifts(problem);
    if (training::ModelReadsTokens(model.name)) {
      for (size_t i = 0; i < problem.images.size(); ++i) {
        problem.images[i] = static_cast<float>(7 * i % 65);
      }
    }
    const absl::StatusOr<Numbers> want = OnDevice(*Phases(), problem, Precision::kFp32, 1);
    ASSERT_TRUE(want.ok()) << want.status();
    for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
      SCOPED_TRACE(std::string(model.name) + ", " + PrecisionName(precision));
      const bool half = precision != Precision::kFp32;
      // A power of two, as jobs in fp16 have it.
      const absl::StatusOr<Numbers> got =
          OnDevice(*OpenStandIn(), problem, precision, precision == Precision::kFp16 ? 1024 : 1);
      ASSERT_TRUE(got.ok()) << got.status();
      EXPECT_NEAR(got->loss_sum, want->loss_sum, (half ? 0.1 : 1e-3) * want->loss_sum);
      const double cosine = CosineOf(*got, *want);
      EXPECT_TRUE(std::isfinite(cosine));
      EXPECT_GT(cosine, half ? model.least_in_16_bits : 0.9999);
      RecordProperty(std::string(model.name) + "_" + PrecisionName(precision),
                     std::to_string(cosine));
    }
  }
}

// The small ResNet learns its batch: losses fall from step to step.
TEST(ModelsOnCardsTest, AResnetTrains) {
  const absl::StatusOr<Graph> graph = training::MakeModel("resnet18_v1", 10, {3, 16, 16});
  ASSERT_TRUE(graph.ok()) << graph.status();
  Problem problem(*graph, /*count=*/8, /*seed=*/2);
  engine::PlanOptions options;
  options.max_batch = problem.count;
  const auto plan = OpenStandIn()->Compile(problem.graph, problem.layout, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  std::vector<float> gradient(problem.layout.total_floats());
  double first = 0, last = 0;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE((*plan)->LoadWeights(problem.weights.data()).ok());
    const auto result = (*plan)->ComputeLane(problem.batch(), 1.0 / 8, gradient.data());
    ASSERT_TRUE(result.ok()) << result.status();
    (step == 0 ? first : last) = result->loss_sum;
    for (const training::TensorSlot& slot : problem.layout.slots()) {
      if (slot.spec.kind == training::TensorKind::kStat) continue;
      for (int64_t i = slot.offset; i < slot.range().end(); ++i) {
        problem.weights[i] -= 0.02f * gradient[i];
      }
    }
  }
  EXPECT_LT(last, 0.7 * first);
}

}  // namespace
}  // namespace capstan::testing

#endif  // CAPSTAN_CUDA_ON_CPU
