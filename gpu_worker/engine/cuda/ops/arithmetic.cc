// Add, Sub, Mul and Div with broadcasting, and Sum.
#include "gpu_worker/engine/cuda/ops/op_kernel.h"
#include "gpu_worker/engine/cuda/ops/op_table.h"
#include "gpu_worker/engine/cuda/ops/sums.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"

namespace capstan::engine::cuda {
namespace {

using training::Shape;

Binary FunctionOf(const std::string& op) {
  return op == "Add"   ? Binary::kAdd
         : op == "Sub" ? Binary::kSub
         : op == "Mul" ? Binary::kMul
                       : Binary::kDiv;
}

class ArithmeticKernel : public OpKernel {
 public:
  explicit ArithmeticKernel(const OpSite& site)
      : OpKernel(site), f_(FunctionOf(site.graph.nodes()[site.stage.node].op.name)) {
    const Shape& y = site.output_shape();
    for (int k = 0; k < 2; ++k) {
      x_[k] = BroadcastTo(site.input(k), site.input_shape(k), y);
    }
    forward_ = MakeLoop<3>(site.n, y, {site.output(), x_[0], x_[1]});
    for (int k = 0; k < 2; ++k) gradients_[k] = GradientOf(k);
  }

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchBinary(site_.stream, site_.element, f_, forward_, call.x[0], call.x[1], call.y);
  }

  OpResult Backward(const OperatorCall& call) const override {
    for (int k = 0; k < 2; ++k) {
      if (call.dx[k] == nullptr) continue;
      const bool reads_x = f_ == Binary::kMul || f_ == Binary::kDiv;
      const cudaError_t error =
          LaunchSum(site_.stream, site_.element, gradients_[k], call.dy,
                    reads_x ? call.x[1 - k] : nullptr, reads_x ? call.x[k] : nullptr, call.dx[k]);
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }

 private:
  // Over the axes along which input k is repeated. p is dy, q the other input, r this one.
  SumWork GradientOf(int k) const {
    const Shape &y = site_.output_shape(), &x = site_.input_shape(k);
    std::vector<bool> summed(y.size(), true);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t axis = y.size() - x.size() + i;
      summed[axis] = x[i] != y[axis];
    }
    SumWork work = MakeSum(site_.n, y, summed, {x_[k], site_.output(), x_[1 - k], x_[k]});
    work.term = TermFor(k);
    work.add = site_.stage.inputs[k].add;
    return work;
  }
  SumTerm TermFor(int k) const {
    switch (f_) {
      case Binary::kAdd:
        return SumTerm::kP;
      case Binary::kSub:
        return k == 0 ? SumTerm::kP : SumTerm::kMinusP;
      case Binary::kMul:
        return SumTerm::kPQ;
      case Binary::kDiv:
        return k == 0 ? SumTerm::kPOverQ : SumTerm::kMinusPQOverRR;
    }
    return SumTerm::kP;
  }

  const Binary f_;
  Strided x_[2];
  Loop<3> forward_;
  SumWork gradients_[2];
};

// Of equal shapes.
class SumOfInputsKernel : public OpKernel {
 public:
  explicit SumOfInputsKernel(const OpSite& site) : OpKernel(site) {
    const Shape& shape = site.output_shape();
    const Strided y = site.output();
    for (int k = 0; k < site.inputs(); ++k) {
      const Strided x = site.input(k);
      const Strided before = k == 1 ? site.input(0) : y;
      sums_.push_back(MakeLoop<3>(site.n, shape, {y, before, x}));
      CopyWork copy;
      copy.loop = MakeLoop<2>(site.n, shape, {x, y});
      copy.add = site.stage.inputs[k].add;
      gradients_.push_back(copy);
    }
    first_.loop = MakeLoop<2>(site.n, shape, {y, site.input(0)});
  }

  OpResult Forward(const OperatorCall& call) const override {
    if (site_.inputs() == 1) {
      return LaunchCopy(site_.stream, site_.element, first_, call.x[0], call.y);
    }
    cudaError_t error = cudaSuccess;
    for (int k = 1; error == cudaSuccess && k < site_.inputs(); ++k) {
      error = LaunchBinary(site_.stream, site_.element, Binary::kAdd, sums_[k],
                           k == 1 ? call.x[0] : call.y, call.x[k], call.y);
    }
    return error;
  }

  OpResult Backward(const OperatorCall& call) const override {
    cudaError_t error = cudaSuccess;
    for (int k = 0; error == cudaSuccess && k < site_.inputs(); ++k) {
      if (call.dx[k] == nullptr) continue;
      error = LaunchCopy(site_.stream, site_.element, gradients_[k], call.dy, call.dx[k]);
    }
    return error;
  }

 private:
  CopyWork first_;
  std::vector<Loop<3>> sums_;
  std::vector<CopyWork> gradients_;
};

}  // namespace

std::unique_ptr<OpKernel> MakeArithmetic(const OpSite& site) {
  return std::make_unique<ArithmeticKernel>(site);
}
std::unique_ptr<OpKernel> MakeSumOfInputs(const OpSite& site) {
  return std::make_unique<SumOfInputsKernel>(site);
}

}  // namespace capstan::engine::cuda
