// The operations of a program, one method each, and the walks that call them in order. Two
// implementations: CUDA kernels and libraries (cuda_operations.h), and plain loops for tests
// (plugin/fake).
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPERATIONS_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPERATIONS_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/engine/cuda/program.h"

namespace capstan::engine::cuda {

// What a kOperator computes with. Tensors are those of the stage.
struct OperatorCall {
  int64_t n = 0;
  bool training = false;       // false: statistics are read and nothing is random
  std::vector<const void*> x;  // by input; null: a parameter that the kernel reads itself
  void* y = nullptr;
  std::vector<float*> saved;
  std::vector<const float*> parameters;
  const BatchHeader* header = nullptr;
  const int64_t* ids = nullptr;
  float* scratch = nullptr;
  // Backward. Gradients of parameters are stored.
  void* dy = nullptr;     // may be overwritten
  std::vector<void*> dx;  // by input; null: not wanted
  std::vector<float*> dparameters;
};

// Buffers lie in the device's memory. Operations run one after the other in the order of the calls,
// except those between BeginParameters and EndParameters, which may lag (program.h says how far). A
// failure is kept until the implementation is asked for it; later calls do nothing. `n` is the
// number of samples. Names are those of index_math.h: dx is the gradient by x.
class Operations {
 public:
  virtual ~Operations() = default;

  // Loads a batch, NCHW or flat, of capstan_image_type, into tensor 0. CAPSTAN_IMAGE_KEPT: `images`
  // are places of images that the implementation keeps.
  virtual void LoadImages(int64_t n, const BatchHeader* header, const void* images, int image_type,
                          void* x) = 0;
  // Converts from the flat type to elements.
  virtual void CopyWeights(const std::vector<WeightCopy>& copies) = 0;
  // Converts the gradient by the weights of a stage, [rows, pixels, channels], to the flat vector's
  // order; from elements if it is rounded_gradient, else from the flat type.
  virtual void GradientToFlat(const Stage& stage, const void* from, void* to) = 0;
  // Reorder elements from [rows, channels, pixels] to [rows, pixels, channels], and back.
  virtual void ToChannelsLast(int64_t rows, int32_t channels, int32_t pixels, const void* from,
                              void* to) = 0;
  virtual void ToCanonical(int64_t rows, int32_t channels, int32_t pixels, const void* from,
                           void* to) = 0;

  // For kConv and kDense, by the index of the stage. `bias` may be null. dw has the flat type
  // unless it is rounded_gradient.
  virtual void LinearForward(int stage, int64_t n, const void* x, const void* weight,
                             const void* bias, void* y) = 0;
  virtual void LinearWeightGradient(int stage, int64_t n, const void* x, const void* dy,
                                    void* dw) = 0;
  virtual void LinearDataGradient(int stage, int64_t n, const void* dy, const void* weight,
                                  void* dx) = 0;
  // Sums dy [rows, columns] over `rows`. `parts` is scratch of kSumParts * columns. Parts and db
  // have the flat type.
  virtual void BiasGradient(int64_t rows, int32_t columns, const void* dy, void* parts,
                            void* db) = 0;

  virtual void PoolForward(const Stage& stage, int64_t n, const void* x, void* y) = 0;
  virtual void PoolBackward(const Stage& stage, int64_t n, const void* x, const void* dy,
                            void* dx) = 0;
  // In place.
  virtual void ReluForward(int64_t elements, void* x) = 0;
  virtual void ReluBackward(int64_t elements, const void* y, void* dy) = 0;

  // kOperator, by the index of the stage.
  virtual void OperatorForward(int stage, const OperatorCall& call) = 0;
  virtual void OperatorBackward(int stage, const OperatorCall& call) = 0;
  // to[i] += from[i], rounded to the elements' type.
  virtual void AddInto(int64_t elements, const void* from, void* to) = 0;
  virtual void Clear(int64_t elements, void* x) = 0;

  // Loss computes the rows of the loss; `dx` may be null. `targets` are labels [n], or the numbers
  // [n, classes] of a squared error. `tokens` [n, stage.rows] is null except for a sequence. SumRows
  // adds them up into the walk's result.
  virtual void Loss(const Stage& stage, int64_t n, int32_t classes, const BatchHeader* header,
                    const void* targets, const float* tokens, const void* x, void* dx,
                    double* row_loss, int32_t* row_correct) = 0;
  virtual void SumRows(int64_t n, const double* row_loss, const int32_t* row_correct,
                       capstan_result* sums) = 0;

  // Enclose the gradients by the parameters of a stage. These may lag: calls meanwhile do not wait
  // for them, except BackwardDone, and BeginParameters kParameterLag stages later.
  virtual void BeginParameters() {}
  virtual void EndParameters() {}
  // Backward has done a stage. The gradients of its parameters are final, or will be once lagging
  // work is done.
  virtual void StageDone(int stage) {}
  // All lagging work is done.
  virtual void BackwardDone() {}
};

// Runs a program in memory at `base`.
class Walk {
 public:
  // Borrows all arguments. The byte counts are those of MemoryOptions. The device writes *sums.
  Walk(const CardProgram& program, const MemoryPlan& memory, char* base, int64_t element_bytes,
       int64_t flat_bytes, capstan_result* sums)
      : program_(program),
        memory_(memory),
        base_(base),
        element_bytes_(element_bytes),
        flat_bytes_(flat_bytes),
        sums_(sums) {}

  // Makes the plan's copies of the weights, after the flat vector has arrived.
  void CopyWeights(Operations& ops) const;
  // `image_type` -1: the images are already in tensor 0.
  void Forward(Operations& ops, int64_t n, int image_type, bool training) const;
  void Loss(Operations& ops, int64_t n, bool gradient) const;
  void Backward(Operations& ops, int64_t n) const;

  char* at(int64_t offset) const { return base_ + offset; }
  void* value(int tensor) const { return at(memory_.values[tensor]); }
  void* gradient_of(int tensor) const { return at(memory_.gradients[tensor]); }
  void* logits() const { return value(program_.loss().x); }
  // Scratch of the size of kSumParts biases.
  void* parts() const { return at(memory_.parts); }
  // In the order that the stage needs.
  void* weight_of(const Stage& stage) const {
    return stage.copy < 0 ? flat_weight(stage.weight) : copied(stage.copy);
  }
  // Null if the stage has no bias.
  void* bias_of(const Stage& stage) const {
    if (stage.bias < 0) return nullptr;
    return stage.bias_copy < 0 ? flat_weight(stage.bias) : copied(stage.bias_copy);
  }

 private:
  void* flat_weight(int64_t offset) const { return at(memory_.weights + offset * flat_bytes_); }
  void* flat_gradient(int64_t offset) const { return at(memory_.gradient + offset * flat_bytes_); }
  void* copied(int64_t offset) const { return at(memory_.copies + offset * element_bytes_); }
  void LinearBackward(Operations& ops, int index, int64_t n) const;
  OperatorCall CallOf(int index, int64_t n, bool training) const;
  void OperatorBackward(Operations& ops, int index, int64_t n) const;
  // Where backward of a stage writes dx, and what is done with it there.
  void* gradient_target(const Stage& stage) const {
    return stage.add_gradient ? at(memory_.scratch) : gradient_of(stage.x);
  }
  void FinishGradient(Operations& ops, const Stage& stage, int64_t n) const;

  const CardProgram& program_;
  const MemoryPlan& memory_;
  char* const base_;
  const int64_t element_bytes_, flat_bytes_;
  capstan_result* const sums_;
};

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPERATIONS_H_
