// Operators that take numbers one by one: activations and Cast, Dropout, Trilu, and Gather.
#include <cstddef>

#include "gpu_worker/engine/cuda/ops/index_kernels.h"
#include "gpu_worker/engine/cuda/ops/op_kernel.h"
#include "gpu_worker/engine/cuda/ops/op_table.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"
#include "training/ops/activation/activation.h"
#include "training/ops/cast/cast.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gelu/gelu.h"
#include "training/ops/relu/relu.h"
#include "training/ops/trilu/trilu.h"

namespace capstan::engine::cuda {
namespace {

using training::As;

UnaryFunction UnaryOf(const training::Operator& op) {
  if (op.name == training::Relu::kName) return {Unary::kRelu};
  if (op.name == training::Sigmoid::kName) return {Unary::kSigmoid};
  if (op.name == training::Tanh::kName) return {Unary::kTanh};
  if (const auto leaky = As<training::LeakyRelu>(op)) {
    return {Unary::kLeakyRelu, static_cast<float>(leaky->alpha)};
  }
  if (const auto clip = As<training::Clip>(op)) {
    return {Unary::kClip, static_cast<float>(clip->min), static_cast<float>(clip->max)};
  }
  if (op.name == training::Gelu::kName) {
    return {op.attributes.Text("approximate") == "tanh" ? Unary::kGeluTanh : Unary::kGelu};
  }
  const auto cast = As<training::Cast>(op);
  return {cast.has_value() && cast->to != "float" ? Unary::kTruncate : Unary::kCopy};
}

class ElementsKernel : public OpKernel {
 public:
  explicit ElementsKernel(const OpSite& site)
      : OpKernel(site),
        f_(UnaryOf(site.graph.nodes()[site.stage.node].op)),
        elements_(static_cast<int32_t>(site.output_elements())) {}

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchUnary(site_.stream, site_.element, f_, elements_, call.x[0], call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    // dy itself where no slope is read: neither x nor y is kept for these.
    const void* const from = f_.f == Unary::kCopy || f_.f == Unary::kTruncate ? call.dy
                             : SlopeReadsY(f_.f)                              ? call.y
                                                                              : call.x[0];
    return LaunchUnaryBackward(site_.stream, site_.element, f_, site_.stage.inputs[0].add,
                               elements_, from, call.dy, call.dx[0]);
  }

 private:
  const UnaryFunction f_;
  const int32_t elements_;
};

class DropoutKernelOf : public OpKernel {
 public:
  explicit DropoutKernelOf(const OpSite& site) : OpKernel(site) {
    const double ratio = training::Dropout::Read(site.attributes()).ratio;
    const WindowGeometry& g = site.stage.window;
    work_.samples = static_cast<int32_t>(site.n);
    work_.channels = g.in_c;
    work_.pixels = g.in_h * g.in_w;
    work_.channels_last = site.stage.inputs[0].channels_last;
    work_.node = site.stage.node;
    work_.threshold = training::DropoutThreshold(ratio);
    work_.factor = static_cast<float>(1 / (1 - ratio));
  }

  OpResult Forward(const OperatorCall& call) const override {
    if (!call.training) {
      return LaunchUnary(site_.stream, site_.element, {Unary::kCopy},
                         static_cast<int32_t>(site_.output_elements()), call.x[0], call.y);
    }
    return Run(call, work_, call.x[0], call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    DropoutWork work = work_;
    work.add = site_.stage.inputs[0].add;
    return Run(call, work, call.dy, call.dx[0]);
  }

 private:
  cudaError_t Run(const OperatorCall& call, const DropoutWork& work, const void* from,
                  void* to) const {
    // Addresses on the card; the host does not read them.
    const auto* const header = reinterpret_cast<const char*>(call.header);
    const auto* const key =
        reinterpret_cast<const uint32_t*>(header + offsetof(BatchHeader, dropout_key));
    const auto* const epoch =
        reinterpret_cast<const uint32_t*>(header + offsetof(BatchHeader, epoch));
    return LaunchDropout(site_.stream, site_.element, work, call.ids, key, epoch, from, to);
  }

  DropoutWork work_;
};

class TriluKernelOf : public OpKernel {
 public:
  explicit TriluKernelOf(const OpSite& site) : OpKernel(site) {
    const training::Trilu trilu = training::Trilu::Read(site.attributes());
    const training::Shape& shape = site.output_shape();
    work_.elements = static_cast<int32_t>(site.output_elements());
    work_.rows = static_cast<int32_t>(shape.end()[-2]);
    work_.columns = static_cast<int32_t>(shape.back());
    work_.k = static_cast<int32_t>(trilu.k);
    work_.upper = trilu.upper;
  }

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchTrilu(site_.stream, site_.element, work_, call.x[0], call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    TriluWork work = work_;
    work.add = site_.stage.inputs[0].add;
    return LaunchTrilu(site_.stream, site_.element, work, call.dy, call.dx[0]);
  }

 private:
  TriluWork work_;
};

class GatherKernelOf : public OpKernel {
 public:
  explicit GatherKernelOf(const OpSite& site) : OpKernel(site) {
    const training::Shape& table = site.input_shape(0);
    work_.samples = static_cast<int32_t>(site.n);
    work_.indices = static_cast<int32_t>(training::Elements(site.input_shape(1)));
    work_.rows = static_cast<int32_t>(table[0]);
    work_.size = static_cast<int32_t>(training::Elements(table) / table[0]);
    work_.one_table = site.stage.inputs[0].tensor < 0;
    work_.add = site.stage.inputs[0].add;
  }

  OpResult Forward(const OperatorCall& call) const override {
    const void* const table = work_.one_table ? call.parameters[0] : call.x[0];
    return LaunchGather(site_.stream, site_.element, work_, table, Indices(call), call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    void* const dtable = work_.one_table ? call.dparameters[0] : call.dx[0];
    if (dtable != nullptr) {
      const cudaError_t error =
          LaunchGatherBackward(site_.stream, site_.element, work_, Indices(call), call.dy, dtable);
      if (error != cudaSuccess) return error;
    }
    if (call.dx[1] == nullptr || site_.stage.inputs[1].add) return cudaSuccess;
    return LaunchFill(site_.stream, site_.element, site_.input_elements(1), 0, call.dx[1]);
  }

 private:
  // float32 in every precision (CheckCarriedOut).
  static const float* Indices(const OperatorCall& call) {
    return static_cast<const float*>(call.x[1]);
  }

  GatherWork work_;
};

}  // namespace

std::unique_ptr<OpKernel> MakeElements(const OpSite& site) {
  return std::make_unique<ElementsKernel>(site);
}
std::unique_ptr<OpKernel> MakeDropout(const OpSite& site) {
  return std::make_unique<DropoutKernelOf>(site);
}
std::unique_ptr<OpKernel> MakeTrilu(const OpSite& site) {
  return std::make_unique<TriluKernelOf>(site);
}
std::unique_ptr<OpKernel> MakeGather(const OpSite& site) {
  return std::make_unique<GatherKernelOf>(site);
}

}  // namespace capstan::engine::cuda
