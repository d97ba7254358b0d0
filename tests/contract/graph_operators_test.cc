// Compares every operator, whole models and random graphs with the references in double, on every
// device that takes any graph: the CPU, a card in CAPSTAN_TEST_DEVICES, the fake plug-in, which gets
// its graphs through the plug-in ABI, and the CUDA plug-in on a stand-in for CUDA. Operators follow
// layers with weights, in whose gradients their own gradients show.
// docs/operators.md says how each operator runs.
#include <algorithm>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/cuda/carried_out.h"
#include "gtest/gtest.h"
#include "tests/contract/device_contract.h"
#include "tests/contract/graph_contract.h"
#include "tests/contract/plugin_card.h"
#include "training/graph/models_gpt.h"
#include "training/graph/models_resnet.h"
#include "training/graph/random_graph.h"
#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/sum/sum.h"

namespace capstan::testing {
namespace {

using training::Graph;
using training::OpCase;
using training::OpDef;
using training::ResnetOptions;

// A real card, whose sums have another order than any reference.
std::vector<DeviceCase> GraphCards() {
  if (WantedCards().empty()) return {};
  return {DeviceCase{"RealCard", OpenCard<0>, 4 * kTolerance}};
}

class GraphOperatorsTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  GraphOperatorsTest() { UseDevice(GetParam().open, GetParam().tolerance / kTolerance); }
  ~GraphOperatorsTest() override { UseDevice(Phases); }
};

INSTANTIATE_TEST_SUITE_P(Cpu, GraphOperatorsTest,
                         ::testing::Values(DeviceCase{"Cpu", Phases, kTolerance}), DeviceCaseName);
#if defined(CAPSTAN_FAKE_PLUGIN)
INSTANTIATE_TEST_SUITE_P(Fake, GraphOperatorsTest,
                         ::testing::Values(DeviceCase{
                             "Fake", [] { return OpenPluginCard(CAPSTAN_FAKE_PLUGIN, 0); },
                             kTolerance}),
                         DeviceCaseName);
#endif
#if defined(CAPSTAN_CUDA_ON_CPU)
INSTANTIATE_TEST_SUITE_P(CudaOnCpu, GraphOperatorsTest,
                         ::testing::Values(DeviceCase{
                             "Card", [] { return OpenPluginCard(CAPSTAN_CUDA_ON_CPU, 0); },
                             4 * kTolerance}),
                         DeviceCaseName);
#endif

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GraphOperatorsTest);
INSTANTIATE_TEST_SUITE_P(OfTheHost, GraphOperatorsTest, ::testing::ValuesIn(GraphCards()),
                         DeviceCaseName);

// For more than a thousand samples, the loops of the references take long.
bool IsCheap(const Graph& graph) {
  int64_t elements = 0;
  for (int value = 0; value < graph.value_count(); ++value) elements += graph.value_elements(value);
  return elements <= 1500 && graph.training_flops() <= 60000;
}

TEST_P(GraphOperatorsTest, EveryCaseOfEveryOperatorIsLikeItsReference) {
  int cases = 0;
  std::set<std::string> of_many_samples;
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile) continue;
    SCOPED_TRACE(op_case.op.name + " " + op_case.name);
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (const int64_t count : {1, 17}) ExpectLikeReference(*graph, count);
    if (IsCheap(*graph)) {
      ExpectLikeReference(*graph, 1000);
      of_many_samples.insert(op_case.op.name);
    }
    if (::testing::Test::HasFatalFailure()) return;
    ++cases;
  }
  EXPECT_GT(cases, 65);
  for (const OpDef* def : training::AllOps()) {
    EXPECT_EQ(of_many_samples.count(def->name), 1) << def->name << " has no cheap case";
  }
}

// Whether the table names the reference as the kernel of an operator.
bool IsWithoutKernel(const std::string& name) {
  static const std::map<std::string, std::string>& kernels =
      *new std::map<std::string, std::string>{
#define CAPSTAN_KERNEL_NAME(op, kernel) {#op, #kernel},
          CAPSTAN_OPERATORS(CAPSTAN_KERNEL_NAME)
#undef CAPSTAN_KERNEL_NAME
      };
  return kernels.at(name) == "Reference";
}

// A step of an operator that runs by its reference allocates memory and computes on one thread.
// Only operators do that for which the table says so.
TEST(OperatorsOfTheCpuTest, EveryOperatorHasItsKernel) {
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile || training::FindOp(op_case.op.name)->loss) continue;
    SCOPED_TRACE(op_case.op.name + " " + op_case.name);
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    ASSERT_TRUE(graph.ok()) << graph.status();
    const auto plan = CompileFor(Problem(*graph, 2, /*seed=*/1), 2, 1);
    ASSERT_TRUE(plan.ok()) << plan.status();
    for (const std::string& kernel : (*plan)->info().kernels) {
      if (!absl::StartsWith(kernel, "op")) continue;
      EXPECT_EQ(absl::StrContains(kernel, ": reference"), IsWithoutKernel(op_case.op.name))
          << kernel;
    }
  }
}

// The CPU's kernels by operator, or by operators that run as one. Names are without node and
// instruction set.
std::map<std::string, std::set<std::string>> KernelsOfEveryOperator() {
  std::map<std::string, std::set<std::string>> kernels;
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile) continue;
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    EXPECT_TRUE(graph.ok()) << graph.status();
    const auto plan = CompileFor(Problem(*graph, 2, /*seed=*/1), 2, 1);
    EXPECT_TRUE(plan.ok()) << plan.status();
    std::set<std::string>& own = kernels[op_case.op.name];
    if (training::FindOp(op_case.op.name)->loss) own.insert("the plan's own");
    for (const std::string& line : (*plan)->info().kernels) {
      if (!absl::StartsWith(line, "op")) continue;
      const size_t begin = line.find(": ") + 2;
      own.insert(line.substr(begin, line.rfind(", ") - begin));
    }
  }
  return kernels;
}

// Whether a card has the operator in fp32, and which precisions it refuses for the case in which
// other nodes make the inputs.
std::string OnGpus(const std::string& name) {
  static constexpr const char* kNames[] = {"fp32", "tf32", "bf16", "fp16"};
  std::set<std::string> refused;
  for (const OpCase& op_case : training::AllOpCases()) {
    if (op_case.hostile || op_case.op.name != name) continue;
    const absl::StatusOr<Graph> graph = GraphOf(op_case);
    EXPECT_TRUE(graph.ok()) << graph.status();
    for (int precision = 0; precision < 4; ++precision) {
      if (engine::cuda::CheckCarriedOut(*graph, precision, "a GPU").ok()) continue;
      if (precision == 0) return "no";
      refused.insert(kNames[precision]);
    }
  }
  return refused.empty() ? "yes" : absl::StrCat("not in ", absl::StrJoin(refused, ", "));
}

// The page's rows must match the plans and the check for GPUs. The failure message has a row to
// copy.
TEST(OperatorsOfTheCpuTest, ThePageSaysWhatRunsHow) {
  std::ifstream page(CAPSTAN_OPERATORS_MD);
  ASSERT_TRUE(page) << CAPSTAN_OPERATORS_MD;
  std::vector<std::string> rows;
  for (std::string line; std::getline(page, line);) {
    if (absl::StartsWith(line, "| `")) rows.push_back(line);
  }
  std::map<std::string, std::set<std::string>> kernels = KernelsOfEveryOperator();
  std::vector<std::string> want;
  for (const OpDef* def : training::AllOps()) {
    const bool reference = def->reference.forward != nullptr && def->reference.backward != nullptr;
    want.push_back(absl::StrCat("| `", def->name, "` | ", absl::StrJoin(kernels[def->name], "; "),
                                " | ", reference ? "yes" : "no", " | ", OnGpus(def->name), " |"));
  }
  EXPECT_EQ(absl::StrJoin(rows, "\n"), absl::StrJoin(want, "\n"));
}

// ---- Models that no job of the tests trains ----

void ExpectResnetLikeReference(const ResnetOptions& options, int64_t side, uint64_t seed) {
  const absl::StatusOr<Graph> graph =
      Graph::Build("resnet", {3, side, side}, training::ResnetNodes(options));
  ASSERT_TRUE(graph.ok()) << graph.status();
  // Every normalisation divides by the deviation of few values, which enlarges earlier rounding
  // errors.
  ExpectLikeReference(*graph, 2, seed, /*tolerance=*/1e-3);
}

TEST_P(GraphOperatorsTest, BasicBlocksBehindTheLargeStem) {
  ExpectResnetLikeReference({.blocks = {1, 1, 2}, .large_stem = true, .num_classes = 5}, 28, 1);
}

TEST_P(GraphOperatorsTest, Bottlenecks) {
  ExpectResnetLikeReference({.blocks = {2, 1}, .bottleneck = true, .num_classes = 5}, 9, 1);
}

TEST_P(GraphOperatorsTest, PreActivation) {
  ExpectResnetLikeReference({.blocks = {2, 1}, .pre_activation = true, .num_classes = 5}, 9, 1);
}

// Positions see each other through attention. Tokens are drawn around 0, so that some are no class.
TEST_P(GraphOperatorsTest, LanguageModel) {
  for (const double dropout : {0.0, 0.2}) {
    const absl::StatusOr<Graph> graph = Graph::Build("gpt", {1, 1, 6},
                                                     training::GptNodes({.layers = 2,
                                                                         .heads = 2,
                                                                         .width = 6,
                                                                         .vocabulary = 5,
                                                                         .positions = 6,
                                                                         .dropout = dropout}));
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectLikeReference(*graph, 19);
  }
}

// ---- Random graphs ----

TEST_P(GraphOperatorsTest, RandomGraphsOfTheWholeTable) {
  training::RandomGraphOptions options;
  options.least_tries = 5;
  options.most_tries = 25;
  options.most_elements = 1000;
  std::set<std::string> seen;
  // More graphs, if some operator has not been drawn yet.
  const size_t all = training::AllOps().size();
  for (int seed = 0; seed < 60 || (seed < 600 && seen.size() < all); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Graph graph = training::RandomGraph(seed, options);
    for (const training::GraphNode& node : graph.nodes()) seen.insert(node.op.name);
    ExpectLikeReference(graph, 1 + seed % 20);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_EQ(seen.size(), all) << "some operator was never drawn";
}

// Denser graphs of one shape: each node reads one or two of the latest values that fit.
TEST_P(GraphOperatorsTest, RandomGraphsOfOneShape) {
  constexpr int kGraphs = 40;
  for (int seed = 0; seed < kGraphs; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto draw = [&random](int64_t n) { return static_cast<int64_t>(random() % n); };
    Nodes nodes;
    const int64_t channels = 2 + draw(9);
    std::vector<int> values = {nodes.Add("conv", MakeConv(channels, 1, 1), {0})};  // of one shape
    std::vector<bool> read = {false};
    const auto pick = [&] {
      const int64_t at = std::max<int64_t>(0, static_cast<int64_t>(values.size()) - 1 - draw(3));
      read[at] = true;
      return values[at];
    };
    for (int64_t i = 3 + draw(6); i > 0; --i) {
      int value = 0;
      training::Conv conv = MakeConv(channels, 3, 3);
      conv.window.pads = {1, 1, 1, 1};
      conv.bias = draw(2) == 0;
      switch (draw(6)) {
        case 0:
          value = nodes.Add("conv", conv, {pick()});
          break;
        case 1:
          value = nodes.Add("relu", training::Relu(), {pick()});
          break;
        case 2:
          value = nodes.Add("add", training::Add(), {pick(), pick()});
          break;
        case 3:
          value = nodes.Add("bn", training::BatchNormalization(), {pick()});
          break;
        case 4:
          value = nodes.Add("sum", training::Sum(), {pick(), pick(), pick()});
          break;
        default:
          value = nodes.Add("gelu", training::Gelu(), {pick()});
          break;
      }
      values.push_back(value);
      read.push_back(false);
    }
    std::vector<int> unread;
    for (size_t i = 0; i < values.size(); ++i) {
      if (!read[i]) unread.push_back(values[i]);
    }
    const int joined = nodes.Add("concat", training::Concat{1}, unread);
    const absl::StatusOr<Graph> graph = nodes.Finish({2, 5, 4}, joined, 3);
    ASSERT_TRUE(graph.ok()) << graph.status();
    ExpectLikeReference(*graph, 1 + draw(20));
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace capstan::testing
