#include "gpu_worker/engine/cuda/lt_matmul.h"

#include <algorithm>
#include <utility>

#include "gpu_worker/engine/cuda/cuda_status.h"

namespace capstan::engine::cuda {
namespace {

// cuBLASLt is column-major. A row-major c = a b is its column-major c' = b' a'.
class LtMatmulImpl : public LtMatmul {
 public:
  LtMatmulImpl(cublasLtHandle_t handle, const MatmulProblem& problem, int64_t workspace_bytes)
      : handle_(handle), problem_(problem), workspace_bytes_(workspace_bytes) {}
  ~LtMatmulImpl() override {
    for (const cublasLtMatrixLayout_t layout : {first_, second_, result_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (matmul_ != nullptr) cublasLtMatmulDescDestroy(matmul_);
  }

  absl::Status Build() {
    const MatmulProblem& p = problem_;
    const auto type = p.rules.precision == CAPSTAN_PRECISION_TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32
                                                                  : CUBLAS_COMPUTE_32F;
    CAPSTAN_CUDA_RETURN(cublasLtMatmulDescCreate(&matmul_, type, CUDA_R_32F));
    const cublasOperation_t first_op = p.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second_op = p.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    CAPSTAN_CUDA_RETURN(cublasLtMatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                       &first_op, sizeof first_op));
    CAPSTAN_CUDA_RETURN(cublasLtMatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_TRANSB,
                                                       &second_op, sizeof second_op));
    if (p.bias || p.relu) {
      const cublasLtEpilogue_t epilogue = p.bias && p.relu ? CUBLASLT_EPILOGUE_RELU_BIAS
                                          : p.bias         ? CUBLASLT_EPILOGUE_BIAS
                                                           : CUBLASLT_EPILOGUE_RELU;
      CAPSTAN_CUDA_RETURN(cublasLtMatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                                         &epilogue, sizeof epilogue));
    }
    // The heuristic needs the alignment of a bias. Run sets the address.
    if (p.bias) CAPSTAN_CUDA_RETURN(SetBias(reinterpret_cast<const void*>(kAlignment)));
    const cudaDataType_t element = ElementType(p.rules);
    const cudaDataType_t result = p.float_result ? CUDA_R_32F : element;
    CAPSTAN_CUDA_RETURN(
        Layout(element, p.transpose_b ? p.k : p.n, p.transpose_b ? p.n : p.k, &first_));
    CAPSTAN_CUDA_RETURN(
        Layout(element, p.transpose_a ? p.m : p.k, p.transpose_a ? p.k : p.m, &second_));
    CAPSTAN_CUDA_RETURN(Layout(result, p.n, p.m, &result_));
    if (p.batch > 1) {
      CAPSTAN_CUDA_RETURN(SetBatch(first_, p.k * p.n));
      CAPSTAN_CUDA_RETURN(SetBatch(second_, p.m * p.k));
      CAPSTAN_CUDA_RETURN(SetBatch(result_, p.m * p.n));
    }

    cublasLtMatmulPreference_t preference = nullptr;
    CAPSTAN_CUDA_RETURN(cublasLtMatmulPreferenceCreate(&preference));
    const absl::Status status = Choose(preference);
    cublasLtMatmulPreferenceDestroy(preference);
    return status;
  }

  absl::Status Run(cudaStream_t stream, const void* a, const void* b, const void* bias, void* c,
                   void* workspace) override {
    if (problem_.bias) CAPSTAN_CUDA_RETURN(SetBias(bias));
    const float one = 1, before = problem_.accumulate ? 1.0f : 0.0f;
    CAPSTAN_CUDA_RETURN(cublasLtMatmul(handle_, matmul_, &one, b, first_, a, second_, &before, c,
                                       result_, c, result_, &algorithm_, workspace,
                                       static_cast<size_t>(workspace_bytes_), stream));
    return absl::OkStatus();
  }

 private:
  // Tensors of one layer begin at multiples of 64 bytes.
  static constexpr uintptr_t kAlignment = 64;

  cublasStatus_t SetBias(const void* bias) {
    return cublasLtMatmulDescSetAttribute(matmul_, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias);
  }
  static cudaDataType_t ElementType(const KernelRules& rules) {
    return rules.precision == CAPSTAN_PRECISION_BF16   ? CUDA_R_16BF
           : rules.precision == CAPSTAN_PRECISION_FP16 ? CUDA_R_16F
                                                       : CUDA_R_32F;
  }
  static cublasStatus_t Layout(cudaDataType_t type, int64_t rows, int64_t columns,
                               cublasLtMatrixLayout_t* layout) {
    return cublasLtMatrixLayoutCreate(layout, type, static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(columns), rows);
  }

  // `elements` of a matrix, whether it is transposed or not.
  absl::Status SetBatch(cublasLtMatrixLayout_t layout, int64_t elements) const {
    const auto count = static_cast<int32_t>(problem_.batch);
    CAPSTAN_CUDA_RETURN(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                         &count, sizeof count));
    CAPSTAN_CUDA_RETURN(cublasLtMatrixLayoutSetAttribute(
        layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &elements, sizeof elements));
    return absl::OkStatus();
  }

  // What the first element of every matrix of an operand is a multiple of.
  uint32_t AlignmentOf(int64_t elements, bool wide) const {
    if (problem_.batch == 1) return kAlignment;
    const int64_t bytes = elements * (wide ? 4 : ElementBytes(problem_.rules.precision));
    return static_cast<uint32_t>(std::min<int64_t>(kAlignment, bytes & -bytes));
  }

  absl::Status Choose(cublasLtMatmulPreference_t preference) {
    const auto workspace = static_cast<uint64_t>(workspace_bytes_);
    CAPSTAN_CUDA_RETURN(cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    const MatmulProblem& p = problem_;
    const uint32_t of_result = AlignmentOf(p.m * p.n, p.float_result);
    for (const auto& [attribute, alignment] :
         {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, AlignmentOf(p.k * p.n, false)},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, AlignmentOf(p.m * p.k, false)},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_result},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_result}}) {
      CAPSTAN_CUDA_RETURN(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment,
                                                               sizeof alignment));
    }
    if (problem_.rules.deterministic) {
      // No split sums, as NVIDIA advises for equal bits from run to run.
      const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE;
      CAPSTAN_CUDA_RETURN(cublasLtMatmulPreferenceSetAttribute(
          preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes));
    }
    cublasLtMatmulHeuristicResult_t found = {};
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, matmul_, first_, second_, result_, result_, preference, 1, &found, &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED ||
        (status == CUBLAS_STATUS_SUCCESS &&
         (count == 0 || found.state == CUBLAS_STATUS_NOT_SUPPORTED))) {
      return absl::NotFoundError("cuBLASLt has no algorithm for this product");
    }
    CAPSTAN_CUDA_RETURN(status);
    CAPSTAN_CUDA_RETURN(found.state);
    algorithm_ = found.algo;
    return absl::OkStatus();
  }

  const cublasLtHandle_t handle_;
  const MatmulProblem problem_;
  const int64_t workspace_bytes_;
  cublasLtMatmulDesc_t matmul_ = nullptr;
  cublasLtMatrixLayout_t first_ = nullptr, second_ = nullptr, result_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<LtMatmul>> MakeLtMatmul(cublasLtHandle_t handle,
                                                       const MatmulProblem& problem,
                                                       int64_t workspace_bytes) {
  auto matmul = std::make_unique<LtMatmulImpl>(handle, problem, workspace_bytes);
  const absl::Status status = matmul->Build();
  if (!status.ok()) return status;
  return std::unique_ptr<LtMatmul>(std::move(matmul));
}

}  // namespace capstan::engine::cuda
