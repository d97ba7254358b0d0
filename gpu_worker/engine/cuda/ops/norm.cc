// Normalisations: BatchNormalization (with a sum and a Relu behind it), LayerNormalization, LRN, Softmax and LogSoftmax.
#include <algorithm>
#include <cstddef>

#include "gpu_worker/engine/cuda/ops/norm_kernels.h"
#include "gpu_worker/engine/cuda/ops/op_kernel.h"
#include "gpu_worker/engine/cuda/ops/op_table.h"
#include "gpu_worker/engine/cuda/ops/walk_kernels.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/layer_normalization/layer_normalization.h"
#include "training/ops/lrn/lrn.h"
#include "training/ops/softmax/softmax.h"

namespace capstan::engine::cuda {
namespace {

// The first axis of input 0 as channels.
ChannelRows RowsOf(const OpSite& site) {
  const training::Shape& shape = site.input_shape(0);
  ChannelRows g;
  g.channels = static_cast<int32_t>(shape[0]);
  g.pixels = static_cast<int32_t>(training::Elements(shape) / shape[0]);
  g.rows = static_cast<int32_t>(site.n) * g.pixels;
  g.channels_last = site.stage.inputs[0].channels_last;
  return g;
}

class BatchNormKernelOf : public OpKernel {
 public:
  using Op = training::BatchNormalization;

  explicit BatchNormKernelOf(const OpSite& site)
      : OpKernel(site),
        g_(RowsOf(site)),
        epsilon_(static_cast<float>(Op::Read(site.attributes()).epsilon)) {}

  OpResult Forward(const OperatorCall& call) const override {
    const Moments moments = MomentsOf(call);
    const cudaError_t error = call.training
                                  ? LaunchBatchMoments(site_.stream, site_.element, g_, epsilon_,
                                                       call.x[0], call.scratch, moments)
                                  : LaunchRunningMoments(site_.stream, g_.channels, epsilon_,
                                                         call.parameters[Op::kRunningMean],
                                                         call.parameters[Op::kRunningVar], moments);
    if (error != cudaSuccess) return error;
    return LaunchBatchNorm(site_.stream, site_.element, g_, moments, call.parameters[Op::kWeight],
                           call.parameters[Op::kBias], call.x[0],
                           call.x.size() > 1 ? call.x[1] : nullptr, site_.stage.relu, call.y);
  }

  OpResult Backward(const OperatorCall& call) const override {
    const auto elements = static_cast<int32_t>(site_.output_elements());
    if (site_.stage.relu) {
      const cudaError_t error =
          LaunchReluMask(site_.stream, site_.element, elements, call.y, call.dy);
      if (error != cudaSuccess) return error;
    }
    BatchNormGradients to;
    to.weight = call.dparameters[Op::kWeight];
    to.bias = call.dparameters[Op::kBias];
    to.mean = call.dparameters[Op::kRunningMean];
    to.variance = call.dparameters[Op::kRunningVar];
    to.x = call.dx[0];
    to.add = site_.stage.inputs[0].add;
    static_assert(offsetof(BatchHeader, loss_scale) == 0, "read on the card as the first double");
    const cudaError_t error = LaunchBatchNormBackward(
        site_.stream, site_.element, g_, MomentsOf(call), call.parameters[Op::kWeight],
        reinterpret_cast<const double*>(call.header), static_cast<int32_t>(site_.n), call.x[0],
        call.dy, call.scratch, to);
    if (error != cudaSuccess || call.dx.size() < 2 || call.dx[1] == nullptr) return error;
    // In the order of the inputs, because the value that is added may be the one that is normalised.
    return LaunchUnaryBackward(site_.stream, site_.element, {Unary::kCopy},
                               site_.stage.inputs[1].add, elements, call.dy, call.dy, call.dx[1]);
  }

 private:
  static Moments MomentsOf(const OperatorCall& call) {
    return {call.saved[0], call.saved[1], call.saved[2]};
  }

  const ChannelRows g_;
  const float epsilon_;
};

class LayerNormKernelOf : public OpKernel {
 public:
  using Op = training::LayerNormalization;

  explicit LayerNormKernelOf(const OpSite& site)
      : OpKernel(site),
        size_(
            static_cast<int32_t>(training::Elements(site.instance().inferred.parameters[0].shape))),
        rows_(static_cast<int32_t>(site.output_elements() / size_)),
        epsilon_(static_cast<float>(Op::Read(site.attributes()).epsilon)) {}

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchLayerNorm(site_.stream, site_.element, rows_, size_, epsilon_,
                           call.parameters[Op::kWeight], call.parameters[Op::kBias], call.x[0],
                           call.y, {call.saved[0], call.saved[1]});
  }
  OpResult Backward(const OperatorCall& call) const override {
    return LaunchLayerNormBackward(site_.stream, site_.element, rows_, size_,
                                   {call.saved[0], call.saved[1]}, call.parameters[Op::kWeight],
                                   call.x[0], call.dy, call.scratch, call.dparameters[Op::kWeight],
                                   call.dparameters[Op::kBias], site_.stage.inputs[0].add,
                                   call.dx[0]);
  }

 private:
  const int32_t size_, rows_;
  const float epsilon_;
};

class SoftmaxKernelOf : public OpKernel {
 public:
  explicit SoftmaxKernelOf(const OpSite& site)
      : OpKernel(site),
        log_(site.graph.nodes()[site.stage.node].op.name != training::Softmax::kName) {
    const training::Shape& shape = site.output_shape();
    const auto axis = static_cast<size_t>(site.attributes().Int("axis")) - 1;
    size_ = static_cast<int32_t>(shape[axis]);
    for (size_t i = axis + 1; i < shape.size(); ++i) step_ *= static_cast<int32_t>(shape[i]);
    lines_ = static_cast<int32_t>(site.output_elements() / size_);
  }

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchSoftmax(site_.stream, site_.element, log_, lines_, size_, step_, call.x[0],
                         call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    return LaunchSoftmaxBackward(site_.stream, site_.element, log_, site_.stage.inputs[0].add,
                                 lines_, size_, step_, call.y, call.dy, call.dx[0]);
  }

 private:
  const bool log_;
  int32_t lines_ = 0, size_ = 1, step_ = 1;
};

class LrnKernelOf : public OpKernel {
 public:
  explicit LrnKernelOf(const OpSite& site) : OpKernel(site), rows_(RowsOf(site)) {
    const training::LRN lrn = training::LRN::Read(site.attributes());
    rule_.channels = rows_.channels;
    rule_.step = rows_.channels_last ? 1 : rows_.pixels;
    rule_.before = static_cast<int32_t>(std::min<int64_t>(rows_.channels, (lrn.size - 1) / 2));
    rule_.behind = static_cast<int32_t>(std::min<int64_t>(rows_.channels, lrn.size / 2));
    rule_.alpha_over_size = static_cast<float>(lrn.alpha / static_cast<double>(lrn.size));
    rule_.beta = static_cast<float>(lrn.beta);
    rule_.bias = static_cast<float>(lrn.bias);
  }

  OpResult Forward(const OperatorCall& call) const override {
    return LaunchLrn(site_.stream, site_.element, rule_, rows_, call.x[0], call.y);
  }
  OpResult Backward(const OperatorCall& call) const override {
    if (call.dx[0] == nullptr) return cudaSuccess;
    return LaunchLrnBackward(site_.stream, site_.element, rule_, rows_, site_.stage.inputs[0].add,
                             call.x[0], call.dy, call.dx[0]);
  }

 private:
  const ChannelRows rows_;
  LrnRule rule_;
};

}  // namespace

std::unique_ptr<OpKernel> MakeBatchNorm(const OpSite& site) {
  return std::make_unique<BatchNormKernelOf>(site);
}
std::unique_ptr<OpKernel> MakeLayerNorm(const OpSite& site) {
  return std::make_unique<LayerNormKernelOf>(site);
}
std::unique_ptr<OpKernel> MakeSoftmax(const OpSite& site) {
  return std::make_unique<SoftmaxKernelOf>(site);
}
std::unique_ptr<OpKernel> MakeLrn(const OpSite& site) {
  return std::make_unique<LrnKernelOf>(site);
}

}  // namespace capstan::engine::cuda
