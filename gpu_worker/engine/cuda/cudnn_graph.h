// Convolutions on the graph API of cuDNN 9. Only this file and its source know its descriptors.
//
// Tensors are NHWC, filters OHWI with the channels of a group, all packed and aligned to at least 16 bytes. The precision gives
// their type. Sums are float32.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDNN_GRAPH_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDNN_GRAPH_H_

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/index_math.h"
#include "gpu_worker/engine/cuda/rules.h"

namespace capstan::engine::cuda {

enum class ConvPass { kForward, kDataGradient, kWeightGradient };

struct ConvProblem {
  ConvPass pass = ConvPass::kForward;
  WindowGeometry window;
  int64_t n = 1;
  // kForward: fused after the convolution.
  bool bias = false;
  bool relu = false;
  KernelRules rules;
};

// The target of a query: a card, or a card's description (JSON) if there is no card.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string device_json;  // used if handle is null
};

struct EngineCandidate {
  std::vector<EngineNote> notes;
  bool allowed = false;  // by the rules of the problem
  // Only of a target without a card: cuDNN's number of the engine, and what it asks for.
  int64_t engine = -1;
  int64_t workspace_bytes = 0;
};

// Validates the graph of `problem` and asks cuDNN for its engines, best first, without building
// one. Internal, with cuDNN's message: cuDNN refuses the graph.
absl::StatusOr<std::vector<EngineCandidate>> ConvCandidates(const CudnnTarget& target,
                                                            const ConvProblem& problem);

// A convolution that is ready to run. Calls must not overlap.
class CudnnConv {
 public:
  virtual ~CudnnConv() = default;

  // Forward: x, w, bias (or null), y. Data gradient: dx, w, -, dy. Weight gradient: x, dw, -, dy.
  // Runs on the stream of the handle. `workspace` must have the bytes given to MakeCudnnConv.
  virtual absl::Status Run(const void* x, const void* w, const void* bias, const void* y,
                           void* workspace) = 0;
  // "cuDNN engine 7 of 12", for logs.
  virtual const std::string& description() const = 0;
};

// The first engine in cuDNN's order that the rules allow, that needs at most workspace_bytes and
// that this card can build. It is a function of problem, library and card alone. NotFound: there is
// none.
absl::StatusOr<std::unique_ptr<CudnnConv>> MakeCudnnConv(cudnnHandle_t handle,
                                                         const ConvProblem& problem,
                                                         int64_t workspace_bytes);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDNN_GRAPH_H_
