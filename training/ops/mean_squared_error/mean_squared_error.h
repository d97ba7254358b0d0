// MeanSquaredErrorLoss: outputs [K] of a sample -> [1]. The batch carries K numbers t for each
// sample, in place of a label:
//
//   loss = 1 / K * sum over k of (x[k] - t[k])^2
//   d loss / d x[k] = 2 / K * (x[k] - t[k])
//
// A step averages its samples' losses, so it has the loss and the gradient of PyTorch's
// MSELoss(reduction='mean'), which divides by all numbers of the batch:
// https://docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html. MXNet's L2Loss is half of
// it. There is no accuracy.
#ifndef CAPSTAN_TRAINING_OPS_MEAN_SQUARED_ERROR_MEAN_SQUARED_ERROR_H_
#define CAPSTAN_TRAINING_OPS_MEAN_SQUARED_ERROR_MEAN_SQUARED_ERROR_H_

#include "training/ops/op.h"

namespace capstan::training {

struct MeanSquaredErrorLoss {
  static constexpr char kName[] = "MeanSquaredErrorLoss";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static MeanSquaredErrorLoss Read(const Attributes&) { return {}; }
};

const OpDef& MeanSquaredErrorLossOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_MEAN_SQUARED_ERROR_MEAN_SQUARED_ERROR_H_
