#include "gpu_worker/engine/cpu/blocked/kernel.h"

#include <utility>

#include "absl/strings/string_view.h"
#include "training/ops/add/add.h"
#include "training/ops/arithmetic/arithmetic.h"
#include "training/ops/gather/gather.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/parameter/parameter.h"
#include "training/ops/pool/pool.h"
#include "training/ops/table.h"

namespace capstan::engine {
namespace {

using Maker = absl::StatusOr<NodePhases> (*)(const training::Graph& graph, int node,
                                             const NodePlaces& places);

struct Kernel {
  absl::string_view op;
  Maker make;
};
#define CAPSTAN_ROW(op, kernel) {#op, Make##kernel##Phases},
constexpr Kernel kKernels[] = {CAPSTAN_OPERATORS(CAPSTAN_ROW)};
#undef CAPSTAN_ROW

// In FusedPatterns' order.
constexpr Maker kFusedKernels[] = {MakeConvPoolPhases, MakeConvPoolPhases, MakeGemmReluPhases,
                                   MakeNormAddReluPhases, MakeNormReluPhases};

}  // namespace

bool ReadsParameterFromWeights(const training::Graph& graph, int node, int input) {
  const std::string& op = graph.def(node).name;
  if (op == training::MatMul::kName) {
    const training::Shape& matrix = graph.instance(node).x[1].shape;
    return input == 1 && training::Elements(matrix) == matrix.end()[-2] * matrix.back();
  }
  if (op == training::Gather::kName) {
    const std::vector<int>& inputs = graph.nodes()[node].inputs;
    return input == 0 && inputs[0] != inputs[1];
  }
  if (op != training::Add::kName && op != training::Sub::kName && op != training::Mul::kName &&
      op != training::Div::kName) {
    return false;
  }
  const int other = graph.nodes()[node].inputs[static_cast<size_t>(1 - input)];
  return other == 0 || graph.def(other - 1).name != training::ParameterNode::kName;
}

const std::vector<FusionPattern>& FusedPatterns() {
  static const std::vector<FusionPattern>& patterns = *new std::vector<FusionPattern>{
      ConvPoolPattern(training::MaxPool::kName), ConvPoolPattern(training::AveragePool::kName),
      GemmReluPattern(), NormAddReluPattern(), NormReluPattern()};
  return patterns;
}

absl::StatusOr<NodePhases> MakeStepPhases(const training::Graph& graph, int first, int pattern,
                                          const NodePlaces& places) {
  if (pattern >= 0) return kFusedKernels[pattern](graph, first, places);
  for (const Kernel& kernel : kKernels) {
    if (graph.def(first).name == kernel.op) return kernel.make(graph, first, places);
  }
  return MakeReferencePhases(graph, first,
                             places);  // an operator of a test, which is not in the table
}

absl::StatusOr<float*> KernelMemory(NodePhases& phases, int64_t floats, int64_t& bytes) {
  absl::StatusOr<AlignedBytes> memory = AllocateAligned(floats * 4, "a kernel's own memory");
  if (!memory.ok()) return memory.status();
  phases.memory.push_back(std::make_shared<AlignedBytes>(*std::move(memory)));
  bytes += RoundUp(floats * 4, kTensorAlignBytes);
  return reinterpret_cast<float*>(phases.memory.back()->get());
}

absl::StatusOr<std::shared_ptr<LaneHalves>> LaneHalves::Make(NodePhases& phases, int64_t tiles,
                                                             int64_t tile_floats) {
  absl::StatusOr<float*> memory =
      KernelMemory(phases, 2 * tiles * tile_floats, phases.scratch_bytes);
  if (!memory.ok()) return memory.status();
  return std::shared_ptr<LaneHalves>(new LaneHalves(tiles, tile_floats, *memory));
}

}  // namespace capstan::engine
