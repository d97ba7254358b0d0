// The operations of a program on a card, for one batch count, by own kernels, cuDNN and cuBLASLt.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_OPERATIONS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_OPERATIONS_H_

#include <cublasLt.h>
#include <cudnn.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/engine/cuda/cudnn_graph.h"
#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/lt_matmul.h"
#include "gpu_worker/engine/cuda/operations.h"
#include "gpu_worker/engine/cuda/ops/op_kernel.h"

namespace capstan::engine::cuda {

// Resources that a plan lends to the operations of its batch counts.
struct CudaContext {
  cudaStream_t stream = nullptr;
  cudnnHandle_t cudnn = nullptr;  // on `stream`
  cublasLtHandle_t lt = nullptr;
  void* workspace =
      nullptr;  // as large as every stage may use: ConvWorkspaceBytes, kWorkspaceBytes
  // Gradients by parameters run beside the rest of backward, because nothing in it waits for them.
  // The same stream if every operation is timed.
  cudaStream_t parameter_stream = nullptr;
  cudnnHandle_t parameter_cudnn = nullptr;
  void* parameter_workspace = nullptr;  // of the same size
  cudaEvent_t fork = nullptr, join = nullptr;
  std::array<cudaEvent_t, kParameterLag> parameters_done = {};
  KernelRules rules;
  Element element = Element::kFloat;  // of the precision of the rules
  const float* kept = nullptr;        // images that are kept on the card
};

// `values` begins with `count` elements of type `element`. They become floats.
void WidenInPlace(Element element, int64_t count, float* values);

// The kernels of one convolution or dense layer. Null: own kernels.
struct LinearKernels {
  std::unique_ptr<CudnnConv> conv_forward, conv_data, conv_weight;
  std::unique_ptr<LtMatmul> lt_forward, lt_data, lt_weight;
  // What the library's forward kernel leaves to our own kernel.
  bool own_bias = false, own_relu = false;
};

class CudaOperations : public Operations {
 public:
  // Borrows both. Chooses the forward kernels for `n` samples. Overwrites `y` of the stages.
  static absl::StatusOr<std::unique_ptr<CudaOperations>> Create(const CardProgram& program,
                                                                const CudaContext& context,
                                                                const Walk& walk, int64_t n);
  // Chooses the kernels of backward. Must be called before backward is used.
  absl::Status PrepareBackward();

  // The first failure since the last call.
  absl::Status TakeStatus();
  // Lines "conv1 forward: cuDNN candidate 0 of 9\n".
  std::string Describe() const;
  // `done` is called by backward at the end of each stage.
  void set_on_stage_done(std::function<absl::Status(int)> done) {
    on_stage_done_ = std::move(done);
  }
  // For on_stage_done: once the work now on this stream is done, the gradients of that stage and of
  // all stages before it in backward are final.
  cudaStream_t final_stream() const {
    return lags_ > 0 ? context_.parameter_stream : context_.stream;
  }
  // Makes the plan's stream wait for lagging work.
  absl::Status Join();

  void LoadImages(int64_t n, const BatchHeader* header, const void* images, int image_type,
                  void* x) override;
  void CopyWeights(const std::vector<WeightCopy>& copies) override;
  void GradientToFlat(const Stage& stage, const void* from, void* to) override;
  void ToChannelsLast(int64_t rows, int32_t channels, int32_t pixels, const void* from,
                      void* to) override;
  void ToCanonical(int64_t rows, int32_t channels, int32_t pixels, const void* from,
                   void* to) override;
  void LinearForward(int stage, int64_t n, const void* x, const void* weight, const void* bias,
                     void* y) override;
  void LinearWeightGradient(int stage, int64_t n, const void* x, const void* dy, void* dw) override;
  void LinearDataGradient(int stage, int64_t n, const void* dy, const void* weight,
                          void* dx) override;
  void BiasGradient(int64_t rows, int32_t columns, const void* dy, void* parts, void* db) override;
  void PoolForward(const Stage& stage, int64_t n, const void* x, void* y) override;
  void PoolBackward(const Stage& stage, int64_t n, const void* x, const void* dy,
                    void* dx) override;
  void ReluForward(int64_t elements, void* x) override;
  void ReluBackward(int64_t elements, const void* y, void* dy) override;
  void OperatorForward(int stage, const OperatorCall& call) override;
  void OperatorBackward(int stage, const OperatorCall& call) override;
  void AddInto(int64_t elements, const void* from, void* to) override;
  void Clear(int64_t elements, void* x) override;
  void Loss(const Stage& stage, int64_t n, int32_t classes, const BatchHeader* header,
            const void* targets, const float* tokens, const void* x, void* dx, double* row_loss,
            int32_t* row_correct) override;
  void SumRows(int64_t n, const double* row_loss, const int32_t* row_correct,
               capstan_result* sums) override;
  void BeginParameters() override;
  void EndParameters() override;
  void StageDone(int stage) override;
  void BackwardDone() override;

 private:
  CudaOperations(const CardProgram& program, const CudaContext& context, int64_t n)
      : program_(program),
        context_(context),
        n_(n),
        kernels_(program.stages.size()),
        operators_(program.stages.size()) {}
  absl::Status ChooseForward(int index, const Walk& walk);
  void MakeOperator(int index);
  // With the name of the stage in front.
  absl::Status OfNode(int stage, const absl::Status& status) const;
  absl::Status ChooseConvForward(int index, const Walk& walk);
  absl::Status ChooseDenseForward(int index, const Walk& walk);
  absl::Status RunForward(int index, const void* x, const void* weight, const void* bias, void* y);
  // Whether the fused kernels keep a NaN in the bias.
  absl::StatusOr<bool> ReluKeepsNan(int index, const Walk& walk);
  void Keep(const absl::Status& status) {
    if (status_.ok()) status_ = status;
  }

  const CardProgram& program_;
  const CudaContext& context_;
  const int64_t n_;
  std::vector<LinearKernels> kernels_;                // by stage
  std::vector<std::unique_ptr<OpKernel>> operators_;  // by stage
  std::vector<std::string> lines_;
  bool backward_ready_ = false;
  int lags_ = 0;  // stages since the last Join whose parameter gradients were enqueued
  absl::Status status_;
  std::function<absl::Status(int)> on_stage_done_;
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_CUDA_OPERATIONS_H_
