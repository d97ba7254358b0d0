// Relu: any shape; max(x, 0). A NaN stays a NaN.
#ifndef CAPSTAN_TRAINING_OPS_RELU_RELU_H_
#define CAPSTAN_TRAINING_OPS_RELU_RELU_H_

#include "training/ops/op.h"

namespace capstan::training {

struct Relu {
  static constexpr char kName[] = "Relu";
  operator Operator() const {  // NOLINT(google-explicit-constructor): a node takes either form
    return {kName, {}};
  }
  static Relu Read(const Attributes&) { return {}; }
};

const OpDef& ReluOp();

}  // namespace capstan::training

#endif  // CAPSTAN_TRAINING_OPS_RELU_RELU_H_
