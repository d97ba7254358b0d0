// The least that an operation of a program must move and compute, for a table of times against the
// roofline. Plain host code.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_COST_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_COST_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "gpu_worker/engine/cuda/operations.h"

namespace capstan::engine::cuda {

struct Cost {
  int64_t bytes = 0;  // each operand once
  int64_t flops = 0;
};

// The best rates that a card can reach.
struct Roof {
  double bytes_per_second = 0;
  double flops_per_second = 0;  // of products in the plan's precision
  // The least time in seconds for `cost`.
  double Seconds(const Cost& cost) const;
};

// Forwards operations to another implementation and times each. `clock(true)` begins a measurement;
// `clock(false)` ends it and returns its milliseconds.
class TimedOperations : public Operations {
 public:
  using Clock = std::function<double(bool begin)>;
  // Borrows both. The bytes are those of MemoryOptions.
  TimedOperations(const CardProgram& program, int64_t element_bytes, int64_t flat_bytes,
                  Clock clock)
      : program_(program),
        element_bytes_(element_bytes),
        flat_bytes_(flat_bytes),
        clock_(std::move(clock)) {}
  // Times `ops` from now on.
  void Wrap(Operations* ops) { ops_ = ops; }

  // Lines "conv1 forward  calls  us a call  GB/s  GFLOP/s  % of the roof", most time first.
  std::string Table(const Roof& roof) const;

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
  void BeginParameters() override { ops_->BeginParameters(); }
  void EndParameters() override { ops_->EndParameters(); }
  void StageDone(int stage) override { ops_->StageDone(stage); }
  void BackwardDone() override { ops_->BackwardDone(); }

 private:
  struct Entry {
    int64_t calls = 0;
    double milliseconds = 0;
    Cost cost;  // of all calls together
  };
  template <typename Call>
  void Time(const std::string& name, const Cost& cost, Call call);
  Cost LinearCost(const Stage& stage, int64_t n) const;
  int64_t OperatorBytes(const Stage& stage, int64_t n) const;

  const CardProgram& program_;
  const int64_t element_bytes_, flat_bytes_;
  const Clock clock_;
  Operations* ops_ = nullptr;
  std::map<std::string, Entry> entries_;
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_COST_H_
