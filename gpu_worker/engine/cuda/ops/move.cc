// Operators that move numbers: Transpose, Slice, Pad, Concat, and those without inputs.
#include <algorithm>

#include "gpu_worker/engine/cuda/ops/op_kernel.h"
#include "gpu_worker/engine/cuda/ops/op_table.h"
#include "gpu_worker/engine/cuda/ops/sums.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"
#include "training/ops/concat/concat.h"
#include "training/ops/pad/pad.h"
#include "training/ops/slice/slice.h"
#include "training/ops/transpose/transpose.h"

namespace capstan::engine::cuda {
namespace {

using training::Shape;

// A run of numbers that lie both in an input and in the output.
struct Moved {
  Shape shape;
  Strided x, y;
  int64_t first_x = 0, first_y = 0;
};

CopyWork ForwardCopy(int64_t n, const Moved& moved) {
  CopyWork work;
  work.loop = MakeLoop<2>(n, moved.shape, {moved.y, moved.x});
  work.to_first = moved.first_y;
  work.from_first = moved.first_x;
  return work;
}

CopyWork BackwardCopy(int64_t n, const Moved& moved, bool add) {
  CopyWork work;
  work.loop = MakeLoop<2>(n, moved.shape, {moved.x, moved.y});
  work.to_first = moved.first_x;
  work.from_first = moved.first_y;
  work.add = add;
  return work;
}

// Of one input. `filled`: numbers of y that come from nowhere.
class MoveKernel : public OpKernel {
 public:
  MoveKernel(const OpSite& site, const Moved& moved, float filled)
      : OpKernel(site),
        forward_(ForwardCopy(site.n, moved)),
        backward_(BackwardCopy(site.n, moved, site.stage.inputs[0].add)),
        filled_(filled),
        fills_y_(site.n * training::Elements(moved.shape) < site.output_elements()),
        fills_dx_(site.n * training::Elements(moved.shape) < site.input_elements(0) &&
                  !site.stage.inputs[0].add) {}

  OpResult Forward(const OperatorCall& call) const override {
    if (fills_y_) {
      const cudaError_t error =
          LaunchFill(site_.stream, site_.element, site_.output_elements(), filled_, call.y);
      if (error != cudaSuccess) return error;
    }
    return LaunchCopy(site_.stream, site_.element, forward_, call.x[0], call.y);
  }

  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    if (fills_dx_) {
      const cudaError_t error =
          LaunchFill(site_.stream, site_.element, site_.input_elements(0), 0, call.dx[0]);
      if (error != cudaSuccess) return error;
    }
    return LaunchCopy(site_.stream, site_.element, backward_, call.dy, call.dx[0]);
  }

 private:
  const CopyWork forward_, backward_;
  const float filled_;
  const bool fills_y_, fills_dx_;
};

class ConcatKernel : public OpKernel {
 public:
  explicit ConcatKernel(const OpSite& site) : OpKernel(site) {
    const auto axis = static_cast<size_t>(training::Concat::Read(site.attributes()).axis) - 1;
    int64_t first = 0;
    for (int k = 0; k < site.inputs(); ++k) {
      Moved moved = {site.input_shape(k), site.input(k), site.output()};
      moved.first_y = first * moved.y.strides[axis];
      first += moved.shape[axis];
      forward_.push_back(ForwardCopy(site.n, moved));
      backward_.push_back(BackwardCopy(site.n, moved, site.stage.inputs[k].add));
    }
  }

  OpResult Forward(const OperatorCall& call) const override {
    cudaError_t error = cudaSuccess;
    for (int k = 0; error == cudaSuccess && k < site_.inputs(); ++k) {
      error = LaunchCopy(site_.stream, site_.element, forward_[k], call.x[k], call.y);
    }
    return error;
  }

  OpResult Backward(const OperatorCall& call) const override {
    cudaError_t error = cudaSuccess;
    for (int k = 0; error == cudaSuccess && k < site_.inputs(); ++k) {
      if (call.dx[k] == nullptr) continue;
      error = LaunchCopy(site_.stream, site_.element, backward_[k], call.dy, call.dx[k]);
    }
    return error;
  }

 private:
  std::vector<CopyWork> forward_, backward_;
};

class ConstantKernel : public OpKernel {
 public:
  explicit ConstantKernel(const OpSite& site) : OpKernel(site) {}
  OpResult Forward(const OperatorCall& call) const override {
    return LaunchFill(site_.stream, site_.element, site_.output_elements(),
                      static_cast<float>(site_.attributes().Float("value")), call.y);
  }
  OpResult Backward(const OperatorCall&) const override { return cudaSuccess; }
};

// Every sample has a copy of the numbers.
class ParameterKernel : public OpKernel {
 public:
  explicit ParameterKernel(const OpSite& site) : OpKernel(site) {
    const Shape& shape = site.output_shape();
    Strided weight = site.output();
    weight.batch = 0;
    forward_.loop = MakeLoop<2>(site.n, shape, {site.output(), weight});
    forward_.float_source = true;
    const std::vector<bool> none(shape.size(), false);
    backward_ = MakeSum(site.n, shape, none,
                        {weight, site.output(), NoTensor(shape), NoTensor(shape)}, /*batch=*/true);
    backward_.float_target = true;
  }

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchCopy(site_.stream, site_.element, forward_, call.parameters[0], call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    return LaunchSum(site_.stream, site_.element, backward_, call.dy, nullptr, nullptr,
                     call.dparameters[0]);
  }

 private:
  CopyWork forward_;
  SumWork backward_;
};

}  // namespace

std::unique_ptr<OpKernel> MakeTranspose(const OpSite& site) {
  Moved moved = {site.output_shape(), site.input(0), site.output()};
  const Strided x = moved.x;
  moved.x.strides.clear();
  for (const int64_t axis : training::Transpose::Read(site.attributes()).perm) {
    moved.x.strides.push_back(x.strides[axis - 1]);
  }
  return std::make_unique<MoveKernel>(site, moved, 0.0f);
}

std::unique_ptr<OpKernel> MakeSlice(const OpSite& site) {
  const training::SliceNode slice = training::SliceNode::Read(site.attributes());
  Moved moved = {site.output_shape(), site.input(0), site.output()};
  for (size_t i = 0; i < slice.axes.size(); ++i) {
    int64_t& stride = moved.x.strides[slice.axes[i] - 1];
    moved.first_x += slice.starts[i] * stride;
    stride *= slice.steps[i];
  }
  return std::make_unique<MoveKernel>(site, moved, 0.0f);
}

std::unique_ptr<OpKernel> MakePad(const OpSite& site) {
  const training::Pad pad = training::Pad::Read(site.attributes());
  Moved moved = {site.input_shape(0), site.input(0), site.output()};
  for (size_t i = 0; i < moved.shape.size(); ++i) {
    const int64_t before = pad.pads[i], after = pad.pads[moved.shape.size() + i];
    moved.shape[i] += std::min<int64_t>(before, 0) + std::min<int64_t>(after, 0);
    moved.first_x += std::max<int64_t>(-before, 0) * moved.x.strides[i];
    moved.first_y += std::max<int64_t>(before, 0) * moved.y.strides[i];
  }
  return std::make_unique<MoveKernel>(site, moved, static_cast<float>(pad.value));
}

std::unique_ptr<OpKernel> MakeConcat(const OpSite& site) {
  return std::make_unique<ConcatKernel>(site);
}
std::unique_ptr<OpKernel> MakeConstant(const OpSite& site) {
  return std::make_unique<ConstantKernel>(site);
}
std::unique_ptr<OpKernel> MakeParameter(const OpSite& site) {
  return std::make_unique<ParameterKernel>(site);
}

}  // namespace capstan::engine::cuda
