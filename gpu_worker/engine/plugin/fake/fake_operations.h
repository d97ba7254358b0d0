// The operations of a program as plain loops over the functions that the CUDA kernels run.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_OPERATIONS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_OPERATIONS_H_

#include <cstdint>

#include "gpu_worker/engine/cuda/operations.h"

namespace capstan::engine::cuda {

// T is the type of elements: float, double, Bf16 or Fp16. The flat type is Sum<T>. Borrows the
// program. Calls must not overlap.
template <typename T>
class FakeOperations : public Operations {
 public:
  explicit FakeOperations(const CardProgram& program) : program_(program) {}
  // The images that places of CAPSTAN_IMAGE_KEPT refer to.
  void set_kept(const float* kept) { kept_ = kept; }

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
  // Plain chains have none.
  void OperatorForward(int stage, const OperatorCall& call) override;
  void OperatorBackward(int stage, const OperatorCall& call) override;
  void AddInto(int64_t elements, const void* from, void* to) override;
  void Clear(int64_t elements, void* x) override;
  void Loss(const Stage& stage, int64_t n, int32_t classes, const BatchHeader* header,
            const void* targets, const float* tokens, const void* x, void* dx, double* row_loss,
            int32_t* row_correct) override;
  void SumRows(int64_t n, const double* row_loss, const int32_t* row_correct,
               capstan_result* sums) override;

 private:
  const CardProgram& program_;
  const float* kept_ = nullptr;
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_PLUGIN_FAKE_FAKE_OPERATIONS_H_
