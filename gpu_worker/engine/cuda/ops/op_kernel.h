// A kOperator on a card: for each operator an object that is made for a batch count and enqueues
// the launches of forward and backward. To add an operator, write its class in a file of this
// folder, name its maker in all.cc, and its form in carried_out.cc.
//
// Threads: calls on one object must not overlap.
#ifndef CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_OP_KERNEL_H_
#define CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_OP_KERNEL_H_

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "gpu_worker/engine/cuda/cuda_status.h"
#include "gpu_worker/engine/cuda/kernels.h"
#include "gpu_worker/engine/cuda/operations.h"
#include "gpu_worker/engine/cuda/ops/loop_plan.h"
#include "gpu_worker/engine/cuda/rules.h"
#include "training/graph/graph.h"

namespace capstan::engine::cuda {

// The products of an operator's matrices.
struct OpLibrary {
  cublasLtHandle_t lt = nullptr;
  void* workspace = nullptr;  // kWorkspaceBytes
  KernelRules rules;
};

// Of a launch, or of a library.
class OpResult {
 public:
  OpResult(cudaError_t error)  // NOLINT(google-explicit-constructor): most are launches
      : status_(ToStatus("a launch", error)) {}
  OpResult(absl::Status status)  // NOLINT(google-explicit-constructor): as above
      : status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// A kOperator and where its work is enqueued. Borrows all of it.
struct OpSite {
  const training::Graph& graph;
  const Stage& stage;
  int64_t n;  // samples
  Element element;
  cudaStream_t stream;
  OpLibrary library;

  const training::OpInstance& instance() const { return graph.instance(stage.node); }
  const training::Attributes& attributes() const { return instance().attributes; }
  int inputs() const { return static_cast<int>(stage.inputs.size()); }
  const training::Shape& input_shape(int k) const { return instance().x[k].shape; }
  const training::Shape& output_shape() const { return instance().inferred.output.shape; }
  int64_t input_elements(int k) const { return n * training::Elements(input_shape(k)); }
  int64_t output_elements() const { return n * training::Elements(output_shape()); }
  Strided input(int k) const { return StridedValue(input_shape(k), stage.inputs[k].channels_last); }
  Strided output() const { return StridedValue(output_shape(), stage.channels_last); }
};

class OpKernel {
 public:
  virtual ~OpKernel() = default;
  virtual OpResult Forward(const OperatorCall& call) const = 0;
  // Only if the stage runs in backward. Stores or adds every dx of the call that is not null, and
  // stores every dparameter.
  virtual OpResult Backward(const OperatorCall& call) const = 0;
  // For logs.
  virtual const char* description() const { return "own kernels"; }

 protected:
  explicit OpKernel(const OpSite& site) : site_(site) {}
  const OpSite site_;
};

// Never null: CheckCarriedOut has accepted the graph.
std::unique_ptr<OpKernel> MakeOpKernel(const OpSite& site);

}  // namespace capstan::engine::cuda

#endif  // CAPSTAN_GPU_WORKER_ENGINE_CUDA_OPS_OP_KERNEL_H_
