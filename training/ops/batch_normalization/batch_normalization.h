// BatchNormalization: x [C, H, W] or [C] -> the same shape, y = weight * (x - mean) / sqrt(variance
// + epsilon) + bias, per channel; weight, bias, running_mean and running_var [C], as in PyTorch.
//
// Training: mean and variance are taken over the samples of the call (a lane) and their pixels, n
// numbers per channel. The variance is the biased one, a sum over n. The statistics are the mean
// and the unbiased variance, a sum over n - 1. If n is 1, PyTorch refuses; here the biased
// variance, 0, serves as both. Evaluation uses the running statistics instead.
//
// `momentum` is PyTorch's: running = (1 - momentum) * running + momentum * statistic. ONNX's is 1 -
// momentum. Saved: mean [C] and 1 / sqrt(variance + epsilon) [C] of the batch.
// Source: Ioffe & Szegedy 2015, arXiv:1502.03167.
#ifndef CAPSTAN_TRAINING_OPS_BATCH_NORMALIZATION_BATCH_NORMALIZATION_H_
#define CAPSTAN_TRAINING_OPS_BATCH_NORMALIZATION_BATCH_NORMALIZATION_H_

#include "training/ops/op.h"

namespace capstan::training {

struct BatchNormalization {
  static constexpr char kName[] = "BatchNormalization";
  // Indices of parameters and of saved tensors.
  enum { kWeight, kBias, kRunningMean, kRunningVar };
  enum { kSavedMean, kSavedScale };

  double epsilon = 1e-5;  // a normal number as a float: from 1.18e-38
  double momentum = 0.1;  // [0, 1]

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"epsilon", epsilon}, {"momentum", momentum}}};
  }
  static BatchNormalization Read(const Attributes& attributes) {
    return {attributes.Float("epsilon"), attributes.Float("momentum")};
  }
};

const OpDef& BatchNormalizationOp();

template <typename T>
void BatchNormalizationForward(const ForwardCall<T>& call);
// The backward of a forward in training.
template <typename T>
void BatchNormalizationBackward(const BackwardCall<T>& call);

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_BATCH_NORMALIZATION_BATCH_NORMALIZATION_H_
