// SoftmaxCrossEntropyLoss: logits [classes] -> [1], in nats. The batch carries a label in [0,
// classes).
//
// With label smoothing e the target is 1 - e + e / classes for the label and e / classes for the
// others (Szegedy et al. 2016, arXiv:1512.00567; PyTorch's definition).
#ifndef CAPSTAN_TRAINING_OPS_SOFTMAX_CROSS_ENTROPY_SOFTMAX_CROSS_ENTROPY_H_
#define CAPSTAN_TRAINING_OPS_SOFTMAX_CROSS_ENTROPY_SOFTMAX_CROSS_ENTROPY_H_

#include "training/ops/op.h"

namespace capstan::training {

struct SoftmaxCrossEntropyLoss {
  static constexpr char kName[] = "SoftmaxCrossEntropyLoss";
  double label_smoothing = 0;  // [0, 1)

  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {{"label_smoothing", label_smoothing}}};
  }
  static SoftmaxCrossEntropyLoss Read(const Attributes& attributes) {
    return {attributes.Float("label_smoothing")};
  }
};

const OpDef& SoftmaxCrossEntropyLossOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_SOFTMAX_CROSS_ENTROPY_SOFTMAX_CROSS_ENTROPY_H_
