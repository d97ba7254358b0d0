// Operators that sum products over axes: ReduceSum, ReduceMean and MatMul.
#include "training/ops/reduce/reduce.h"

#include <algorithm>
#include <utility>

#include "gpu_worker/engine/cuda/lt_matmul.h"
#include "gpu_worker/engine/cuda/ops/op_kernel.h"
#include "gpu_worker/engine/cuda/ops/op_table.h"
#include "gpu_worker/engine/cuda/ops/sums.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"

namespace capstan::engine::cuda {
namespace {

using training::Shape;

class ReduceKernel : public OpKernel {
 public:
  explicit ReduceKernel(const OpSite& site) : OpKernel(site) {
    const Shape& x = site.input_shape(0);
    std::vector<bool> summed(x.size(), false);
    Shape kept = x;
    for (const int64_t axis : site.attributes().Ints("axes")) {
      summed[axis - 1] = true;
      kept[axis - 1] = 1;
    }
    // Along the axes of x, whether y keeps them or not.
    const Strided y = BroadcastTo(StridedValue(kept, false), kept, x);
    const bool mean = site.graph.nodes()[site.stage.node].op.name == training::ReduceMean::kName;
    const float factor = mean ? static_cast<float>(site.output_elements()) /
                                    static_cast<float>(site.input_elements(0))
                              : 1;
    forward_ = MakeSum(site.n, x, summed, {y, site.input(0), NoTensor(x), NoTensor(x)});
    forward_.factor = factor;
    backward_.loop = MakeLoop<2>(site.n, x, {site.input(0), y});
    backward_.factor = factor;
    backward_.add = site.stage.inputs[0].add;
  }

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchSum(site_.stream, site_.element, forward_, call.x[0], nullptr, nullptr, call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    return LaunchCopy(site_.stream, site_.element, backward_, call.dy, call.dx[0]);
  }

 private:
  SumWork forward_;
  CopyWork backward_;
};

// y = a b for each of the matrices, da = dy b^T, db = a^T dy: sums over one of the axes [..., M, N,
// K], and over those along which a factor is repeated.
class MatMulKernel : public OpKernel {
 public:
  explicit MatMulKernel(const OpSite& site) : OpKernel(site) {
    const Shape& y = site.output_shape();
    const size_t front = y.size() - 2;
    Shape shape = y;
    shape.push_back(site.input_shape(0).back());
    // Stride 0 where a tensor does not have an axis.
    Strided views[3] = {site.output(), site.input(0), site.input(1)};
    std::vector<bool> repeated[3];
    for (int t = 0; t < 3; ++t) {
      const Shape& own = t == 0 ? y : site.input_shape(t - 1);
      Strided& view = views[t];
      const int64_t row = view.strides.end()[-2], column = view.strides.back();
      Shape own_front(own.begin(), own.end() - 2), y_front(y.begin(), y.end() - 2);
      view.strides.resize(own_front.size());
      view = BroadcastTo(view, own_front, y_front);
      const int64_t m = t == 2 ? 0 : row, n = t == 0 ? column : t == 1 ? 0 : column;
      const int64_t k = t == 0 ? 0 : t == 1 ? column : row;
      view.strides.insert(view.strides.end(), {m, n, k});
      repeated[t].assign(front + 3, false);
      for (size_t i = 0; i < front; ++i) {
        const size_t missing = front - own_front.size();
        repeated[t][i] = y_front[i] > 1 && (i < missing || own_front[i - missing] == 1);
      }
      repeated[t][front + (t == 0 ? 2 : t == 1 ? 1 : 0)] = true;
    }
    const Strided none = NoTensor(shape);
    forward_ = MakeSum(site.n, shape, repeated[0], {views[0], views[1], views[2], none});
    gradients_[0] = MakeSum(site.n, shape, repeated[1], {views[1], views[0], views[2], none});
    gradients_[1] = MakeSum(site.n, shape, repeated[2], {views[2], views[0], views[1], none});
    forward_.term = gradients_[0].term = gradients_[1].term = SumTerm::kPQ;
    for (int k = 0; k < 2; ++k) gradients_[k].add = site.stage.inputs[k].add;
    ChooseProducts();
  }

  OpResult Forward(const OperatorCall& call) const override {
    if (product_ != nullptr) return Run(*product_, call.x[0], call.x[1], call.y);
    return LaunchSum(site_.stream, site_.element, forward_, call.x[0], call.x[1], nullptr, call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    cudaError_t error = cudaSuccess;
    for (int k = 0; error == cudaSuccess && k < 2; ++k) {
      if (call.dx[k] == nullptr) continue;
      if (gradient_products_[k] != nullptr) {
        // da = dy b^T, db = a^T dy
        absl::Status status = k == 0 ? Run(*gradient_products_[0], call.dy, call.x[1], call.dx[0])
                                     : Run(*gradient_products_[1], call.x[0], call.dy, call.dx[1]);
        if (!status.ok()) return status;
        continue;
      }
      error = LaunchSum(site_.stream, site_.element, gradients_[k], call.dy, call.x[1 - k], nullptr,
                        call.dx[k]);
    }
    return error;
  }
  const char* description() const override {
    return product_ != nullptr ? "cuBLASLt" : "own kernels";
  }

 private:
  // If the matrices of all three tensors follow each other, cuBLASLt multiplies them. What it does
  // not have stays with our sums.
  void ChooseProducts() {
    const Shape &a = site_.input_shape(0), &b = site_.input_shape(1), &y = site_.output_shape();
    const bool as_they_lie = !site_.stage.inputs[0].channels_last &&
                             !site_.stage.inputs[1].channels_last &&
                             Shape(a.begin(), a.end() - 2) == Shape(b.begin(), b.end() - 2);
    if (!as_they_lie || site_.library.lt == nullptr) return;
    MatmulProblem problem;
    problem.rules = site_.library.rules;
    problem.batch = site_.n * (training::Elements(y) / (y.end()[-2] * y.back()));
    const int64_t m = y.end()[-2], n = y.back(), k = a.back();
    problem.m = m, problem.n = n, problem.k = k;
    product_ = Make(problem);
    problem.m = m, problem.n = k, problem.k = n;
    problem.transpose_b = true;
    problem.accumulate = site_.stage.inputs[0].add;
    gradient_products_[0] = Make(problem);
    problem.m = k, problem.n = n, problem.k = m;
    problem.transpose_a = true, problem.transpose_b = false;
    problem.accumulate = site_.stage.inputs[1].add;
    gradient_products_[1] = Make(problem);
  }
  std::unique_ptr<LtMatmul> Make(const MatmulProblem& problem) const {
    absl::StatusOr<std::unique_ptr<LtMatmul>> made =
        MakeLtMatmul(site_.library.lt, problem, kWorkspaceBytes);
    return made.ok() ? *std::move(made) : nullptr;
  }
  absl::Status Run(LtMatmul& product, const void* a, const void* b, void* c) const {
    return product.Run(site_.stream, a, b, nullptr, c, site_.library.workspace);
  }

  SumWork forward_;
  SumWork gradients_[2];
  std::unique_ptr<LtMatmul> product_, gradient_products_[2];  // null: by the sums
};

}  // namespace

std::unique_ptr<OpKernel> MakeReduce(const OpSite& site) {
  return std::make_unique<ReduceKernel>(site);
}
std::unique_ptr<OpKernel> MakeMatMul(const OpSite& site) {
  return std::make_unique<MatMulKernel>(site);
}

}  // namespace capstan::engine::cuda
