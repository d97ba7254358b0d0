// Tests the CUDA plug-in on a machine without a card: its messages there, and that cuDNN accepts
// every graph that the built-in models need, according to the description of an H200.
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gpu_worker/engine/cuda/cudnn_graph.h"
#include "gpu_worker/engine/cuda/nccl_library.h"
#include "gpu_worker/engine/cuda/program.h"
#include "gpu_worker/engine/device/device.h"
#include "gpu_worker/engine/plugin/loader.h"
#include "gpu_worker/engine/plugin/sent_graph.h"
#include "gtest/gtest.h"
#include "training/graph/models.h"
#include "training/graph/tensors.h"

namespace capstan::engine::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LoaderOptions RealPlugin() {
  LoaderOptions options;
  options.driver_library = "";
  options.candidates = {CAPSTAN_REAL_PLUGIN};
  return options;
}

bool HasDriver() {
  int version = 0;
  return cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
}

TEST(CudaPluginTest, WithoutADriverItLoadsAndSaysSo) {
  if (HasDriver()) GTEST_SKIP() << "this machine has a driver";
  const absl::StatusOr<LoadedPlugin> plugin = LoadPlugin(RealPlugin());
  EXPECT_EQ(plugin.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(plugin.status().message()),
              AllOf(HasSubstr(CAPSTAN_REAL_PLUGIN), HasSubstr("no NVIDIA driver is loaded"),
                    HasSubstr("cudaErrorInsufficientDriver")));
}

TEST(CudaPluginTest, WithoutADriverCompileFailsWithItsCall) {
  if (HasDriver()) GTEST_SKIP() << "this machine has a driver";
  const training::Graph graph = *training::MakeModel("lenet", 10, {1, 28, 28});
  const training::FlatLayout layout = *training::FlatLayout::Create(training::TensorSpecs(graph));
  LoaderOptions options = RealPlugin();
  EXPECT_FALSE(LoadPlugin(options).ok());
  const SentGraph sent = *SentGraph::Of(graph, layout);
  capstan_compile_request request = {};
  sent.Describe(request);
  request.max_batch = 16;
  void* const library = dlopen(CAPSTAN_REAL_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  const auto factory =
      reinterpret_cast<capstan_plugin_factory>(dlsym(library, CAPSTAN_PLUGIN_FACTORY));
  ASSERT_NE(factory, nullptr);
  capstan_plan* plan = nullptr;
  capstan_error error = {};
  const int32_t code = factory()->compile(&request, &plan, &error);
  EXPECT_EQ(static_cast<absl::StatusCode>(code), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(error.text), HasSubstr("cudaSetDevice: 35 cudaErrorInsufficientDriver"));
  EXPECT_EQ(plan, nullptr);
  request.precision = 4;
  EXPECT_EQ(static_cast<absl::StatusCode>(factory()->compile(&request, &plan, &error)),
            absl::StatusCode::kInvalidArgument);
}

// Every convolution of a model in its three passes, with forward alone and fused.
std::vector<ConvProblem> Problems(const char* model, int64_t n, int32_t precision,
                                  const training::Shape& input = {1, 28, 28}) {
  const training::Graph graph = *training::MakeModel(model, 10, input);
  const training::FlatLayout layout = *training::FlatLayout::Create(training::TensorSpecs(graph));
  const SentGraph sent = *SentGraph::Of(graph, layout);
  capstan_compile_request request = {};
  sent.Describe(request);
  request.max_batch = n;
  const CardProgram program = *MakeCardProgram(request);
  std::vector<ConvProblem> problems;
  for (const Stage& stage : program.stages) {
    if (stage.kind != StageKind::kConv) continue;
    ConvProblem problem;
    problem.window = stage.window;
    problem.n = n;
    problem.rules = {precision, true};
    problems.push_back(problem);
    problem.bias = true;
    problems.push_back(problem);
    problem.relu = true;
    problems.push_back(problem);
    problem.bias = problem.relu = false;
    problem.pass = ConvPass::kWeightGradient;
    problems.push_back(problem);
    if (!stage.input_gradient) continue;
    problem.pass = ConvPass::kDataGradient;
    problems.push_back(problem);
  }
  return problems;
}

std::string ToString(const ConvProblem& p) {
  static constexpr const char* kPasses[] = {"forward", "data gradient", "weight gradient"};
  const WindowGeometry& g = p.window;
  return absl::StrCat(kPasses[static_cast<int>(p.pass)], p.bias ? " bias" : "",
                      p.relu ? " relu" : "", ", ", g.in_c, "x", g.in_h, "x", g.in_w, " to ",
                      g.out_c, "x", g.out_h, "x", g.out_w, ", batch ", p.n, ", ",
                      PrecisionName(static_cast<Precision>(p.rules.precision)));
}

TEST(CudaPluginTest, AMissingNcclIsASentence) {
  const absl::Status status = LoadNccl("libnccl-that-is-not-there.so").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("training.deterministic"),
                               ::testing::HasSubstr("libnccl-that-is-not-there.so")));
  // A library that is not NCCL.
  EXPECT_THAT(std::string(LoadNccl("libm.so.6").status().message()),
              ::testing::HasSubstr("libm.so.6 has no ncclReduceScatter"));
}

TEST(DevicelessTest, CudnnTakesEveryGraphOfTheModels) {
  std::ifstream file(CAPSTAN_DEVICE_JSON);
  CudnnTarget target;
  target.device_json.assign(std::istreambuf_iterator<char>(file), {});
  ASSERT_FALSE(target.device_json.empty());
  while (!target.device_json.empty() && target.device_json.back() == '\n') {
    target.device_json.pop_back();
  }
  for (const char* const model : {"lenet", "lenet_d2l"}) {
    for (const int64_t n : {256, 17}) {
      for (const int32_t precision : {CAPSTAN_PRECISION_FP32, CAPSTAN_PRECISION_TF32,
                                      CAPSTAN_PRECISION_BF16, CAPSTAN_PRECISION_FP16}) {
        for (const ConvProblem& problem : Problems(model, n, precision)) {
          SCOPED_TRACE(absl::StrCat(model, ": ", ToString(problem)));
          const absl::StatusOr<std::vector<EngineCandidate>> candidates =
              ConvCandidates(target, problem);
          ASSERT_TRUE(candidates.ok()) << candidates.status();
          int allowed = 0;
          for (const EngineCandidate& candidate : *candidates) allowed += candidate.allowed;
          std::cout << model << ": " << ToString(problem) << ": " << candidates->size()
                    << " engines, " << allowed << " allowed\n";
          EXPECT_GT(allowed, 0);
        }
      }
    }
  }
}

// What the plug-in would take, in the workspace that it gives: the engine that cuDNN names first of
// those that the rules allow. So no layer of a wide network falls to a later one, for example to the
// generic engines 0 and 28, only because memory lacks.
TEST(DevicelessTest, WideNetworksGetTheEnginesThatCudnnNamesFirst) {
  std::ifstream file(CAPSTAN_DEVICE_JSON);
  CudnnTarget target;
  target.device_json.assign(std::istreambuf_iterator<char>(file), {});
  while (!target.device_json.empty() && target.device_json.back() == '\n') {
    target.device_json.pop_back();
  }
  for (const auto& [model, n] :
       {std::pair{"resnet18_v1", 256}, {"resnet18_v1", 1024}, {"mobilenet_v1", 256}}) {
    for (const int32_t precision : {CAPSTAN_PRECISION_FP32, CAPSTAN_PRECISION_TF32,
                                    CAPSTAN_PRECISION_BF16, CAPSTAN_PRECISION_FP16}) {
      for (const ConvProblem& problem : Problems(model, n, precision, {3, 32, 32})) {
        if (problem.bias || problem.relu) continue;  // neither network has these
        SCOPED_TRACE(absl::StrCat(model, ": ", ToString(problem)));
        const absl::StatusOr<std::vector<EngineCandidate>> candidates =
            ConvCandidates(target, problem);
        ASSERT_TRUE(candidates.ok()) << candidates.status();
        const int64_t given = ConvWorkspaceBytes(problem.window, n);
        // By groups, one engine wants twice as much for the gradient of the filter.
        const bool may_pass_over =
            problem.pass == ConvPass::kWeightGradient && problem.window.groups > 1;
        const auto first = std::find_if(
            candidates->begin(), candidates->end(), [&](const EngineCandidate& candidate) {
              return candidate.allowed && (!may_pass_over || candidate.workspace_bytes <= given);
            });
        ASSERT_NE(first, candidates->end());
        EXPECT_LE(first->workspace_bytes, given);
        std::cout << model << ": " << ToString(problem) << ": engine " << first->engine << ", "
                  << (first->workspace_bytes >> 20) << " of " << (given >> 20) << " MiB\n";
      }
    }
  }
}

// A graph that is not a convolution is refused with a message.
TEST(DevicelessTest, AWrongGraphIsRefused) {
  std::ifstream file(CAPSTAN_DEVICE_JSON);
  CudnnTarget target;
  target.device_json.assign(std::istreambuf_iterator<char>(file), {});
  ConvProblem problem = Problems("lenet", 16, CAPSTAN_PRECISION_FP32)[0];
  problem.window.out_h += 1;
  const absl::Status status = ConvCandidates(target, problem).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_FALSE(status.message().empty());
  target.device_json = "{}";
  EXPECT_FALSE(ConvCandidates(target, Problems("lenet", 16, CAPSTAN_PRECISION_FP32)[0]).ok());
}

}  // namespace
}  // namespace capstan::engine::cuda
