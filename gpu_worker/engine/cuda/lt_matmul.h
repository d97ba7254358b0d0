// Products of row-major matrices on cuBLASLt, with the bias and the Relu of a dense layer fused, or
// many products of one shape at once.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_LT_MATMUL_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_LT_MATMUL_H_

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/rules.h"

namespace capstan::engine::cuda {

// c [m, n] = op(a) op(b) (+ bias [n], then Relu). op(a) is [m, k], op(b) is [k, n]. A transposed
// operand lies in memory as its transpose. The precision gives the type of elements; sums are
// float32.
struct MatmulProblem {
  int64_t m = 1, n = 1, k = 1;
  int64_t batch = 1;        // products, whose matrices follow each other; not with bias or relu
  bool accumulate = false;  // c += the product; not with bias or relu
  bool transpose_a = false, transpose_b = false;
  bool bias = false;
  bool relu = false;
  bool float_result = false;  // c is float32 whatever the precision; not with bias
  KernelRules rules;
};

// Calls must not overlap.
class LtMatmul {
 public:
  virtual ~LtMatmul() = default;
  virtual absl::Status Run(cudaStream_t stream, const void* a, const void* b, const void* bias,
                           void* c, void* workspace) = 0;
};

// The heuristic's first algorithm that the rules allow. NotFound: there is none.
absl::StatusOr<std::unique_ptr<LtMatmul>> MakeLtMatmul(cublasLtHandle_t handle,
                                                       const MatmulProblem& problem,
                                                       int64_t workspace_bytes);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_LT_MATMUL_H_
