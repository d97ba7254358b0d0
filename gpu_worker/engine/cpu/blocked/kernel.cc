#include "gpu_worker/engine/cpu/blocked/kernel.h"

#include <utility>

#include "training/ops/add/add.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/global_average_pool/global_average_pool.h"
#include "training/ops/pool/pool.h"
#include "training/ops/relu/relu.h"
#include "training/ops/sum/sum.h"

namespace capstan::engine {
namespace {

using Maker = absl::StatusOr<NodePhases> (*)(const training::Graph& graph, int node,
                                             const NodePlaces& places);

struct OwnKernel {
  const char* op;
  Maker make;
};
// What is not here runs by its reference.
constexpr OwnKernel kOwnKernels[] = {
    {training::Add::kName, MakeSumPhases},
    {training::AveragePool::kName, MakePoolPhases},
    {training::BatchNormalization::kName, MakeNormPhases},
    {training::Concat::kName, MakeConcatPhases},
    {training::Conv::kName, MakeConvPhases},
    {training::Dropout::kName, MakeDropoutPhases},
    {training::Gelu::kName, MakeGeluPhases},
    {training::Gemm::kName, MakeGemmPhases},
    {training::GlobalAveragePool::kName, MakeGlobalPoolPhases},
    {training::MaxPool::kName, MakePoolPhases},
    {training::Relu::kName, MakeReluPhases},
    {training::Sum::kName, MakeSumPhases},
};

// In the order of FusedPatterns.
constexpr Maker kFusedKernels[] = {MakeConvPoolPhases, MakeConvPoolPhases, MakeGemmReluPhases,
                                   MakeNormAddReluPhases, MakeNormReluPhases};

}  // namespace

const std::vector<FusionPattern>& FusedPatterns() {
  static const std::vector<FusionPattern>& patterns = *new std::vector<FusionPattern>{
      ConvPoolPattern(training::MaxPool::kName), ConvPoolPattern(training::AveragePool::kName),
      GemmReluPattern(), NormAddReluPattern(), NormReluPattern()};
  return patterns;
}

absl::StatusOr<NodePhases> MakeStepPhases(const training::Graph& graph, int first, int pattern,
                                          const NodePlaces& places) {
  if (pattern >= 0) return kFusedKernels[pattern](graph, first, places);
  const training::OpDef& def = graph.def(first);
  if (def.in_place == training::InPlace::kView) return MakeViewPhases(graph, first, places);
  for (const OwnKernel& own : kOwnKernels) {
    if (def.name == own.op) return own.make(graph, first, places);
  }
  return MakeReferencePhases(graph, first, places);
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
