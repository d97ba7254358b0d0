// Convolutions on the graph API of cuDNN 9: the one file that knows its descriptors.
//
// Tensors are NHWC, filters OHWI, all packed, aligned to 16 bytes at least; of the type that the
// precision says. Sums are float32.
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
  // kForward: fused behind the convolution.
  bool bias = false;
  bool relu = false;
  KernelRules rules;
};

// What a graph is asked about: a card, or a card's description (JSON) where there is none.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  std::string device_json;  // used where handle is null
};

struct EngineCandidate {
  std::vector<EngineNote> notes;
  bool allowed = false;  // by the rules of the problem
};

// Validates the graph of `problem` and asks cuDNN for its engines, best first, without building
// one. Internal: cuDNN refuses the graph, with its words.
absl::StatusOr<std::vector<EngineCandidate>> ConvCandidates(const CudnnTarget& target,
                                                            const ConvProblem& problem);

// A convolution that is ready to run. Calls must not overlap.
class CudnnConv {
 public:
  virtual ~CudnnConv() = default;

  // Forward: x, w, bias (null without), y. Data gradient: dx, w, -, dy. Weight gradient: x, dw, -,
  // dy. Runs on the stream of the handle; `workspace` has the bytes of MakeCudnnConv.
  virtual absl::Status Run(const void* x, const void* w, const void* bias, const void* y,
                           void* workspace) = 0;
  // "cuDNN engine 7 of 12", for logs.
  virtual const std::string& description() const = 0;
};

// The first engine in cuDNN's order that the rules allow, that needs no more than workspace_bytes
// and that this card can build: a function of problem, library and card alone. NotFound: there is
// none.
absl::StatusOr<std::unique_ptr<CudnnConv>> MakeCudnnConv(cudnnHandle_t handle,
                                                         const ConvProblem& problem,
                                                         int64_t workspace_bytes);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDNN_GRAPH_H_
