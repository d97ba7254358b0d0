// Convolution and dense layer of one block, compiled for its size: the two operators with weights.
//
// Two makers: oneDNN's primitives, and plain loops for what oneDNN would do with its reference code
// and for builds without it. A kernel is chosen by geometry and instruction set alone (rule R5).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CPU_LINEAR_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CPU_LINEAR_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/engine/cpu/lowering.h"

namespace capstan::engine {

// A thread's buffers, in the layouts of LinearGeometry. dx is null without a data gradient.
struct LinearBuffers {
  float* x = nullptr;
  float* y = nullptr;
  float* dx = nullptr;
  float* dy = nullptr;
  char* scratch = nullptr;  // LinearKernel::scratch_bytes(); holds nothing between calls
};

// A kernel on the buffers of one thread. Calls on one object must not overlap.
class LinearCalls {
 public:
  virtual ~LinearCalls() = default;
  virtual absl::Status Forward() = 0;
  // Writes the gradients by weight and bias, canonical. `bias` is null without one.
  virtual absl::Status BackwardWeights(float* weight, float* bias) = 0;
  virtual absl::Status BackwardData() = 0;
};

class LinearKernel {
 public:
  virtual ~LinearKernel() = default;

  // "forward: jit:avx512_core", ...
  virtual std::vector<std::string> Describe() const = 0;
  virtual int64_t scratch_bytes() const = 0;
  // Copies of the weights that the kernel owns.
  virtual int64_t weight_bytes() const = 0;

  // Takes canonical weights (OIHW or [O, I]) into the kernel's layouts. No other call may run
  // meanwhile.
  virtual absl::Status LoadWeights(const float* weight, const float* bias) = 0;
  // The kernel must outlive the result; results of one kernel may run at the same time.
  virtual absl::StatusOr<std::unique_ptr<LinearCalls>> Bind(const LinearBuffers& buffers) = 0;
};

// What `batch` samples need. ResourceExhausted: no memory.
absl::StatusOr<std::unique_ptr<LinearKernel>> MakePlainLinear(const LinearGeometry& geometry,
                                                              int64_t batch);

// Null where oneDNN has nothing but reference code, or is not in this build.
absl::StatusOr<std::unique_ptr<LinearKernel>> MakeOnednnLinear(const LinearGeometry& geometry,
                                                               int64_t batch);

// "oneDNN 2.6.3, avx512_core"; "plain loops" in a build without it.
std::string LinearLibrary();

}  // namespace capstan::engine

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CPU_LINEAR_H_
